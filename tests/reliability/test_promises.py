"""``docs/reliability.md``: every test that it names exists, and its figures are those of the result files."""

import ast
import json
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))


@cache
def functions_of(path):
    tree = ast.parse((ROOT / path).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_there_are_promises():
    assert len(NAMED) > 40
    assert PAGE.count("::") == len(re.findall(r"`tests/[\w/]+\.py::\w+`", PAGE)) + 2, "but for path::name, twice"


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_a_promised_test_exists(path, name):
    assert name in functions_of(path)


def results(name):
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())["results"]


def soak_figures():
    found = results("soak")
    phases = ", ".join(f"{phase} {count}" for phase, count in found["phase_hit"].items())
    return (
        f"{found['kills']} kills ({phases}); {found['runs_compared']} runs compared, {found['runs_differing']} differ"
    )


def endurance_figures(filter):
    found = results("endurance")[filter]
    grown = (
        f"{label} {found[name]['growth_percent']:+.2f} % (highest {found[name]['highest']:,}{unit})"
        for name, label, unit in (
            ("resident_kib", "resident memory", " KiB"),
            ("open_files", "open files", ""),
            ("threads", "threads", ""),
        )
    )
    return f"{filter} filter, {found['epochs']} epochs; after warm-up: {', '.join(grown)}"


def both_filters():
    return "; ".join(endurance_figures(filter) for filter in ("paper", "difficulty"))


def sizes_sentence():
    found = results("endurance")["difficulty"]
    sizes, epochs = found["sizes"], found["epochs"]
    grown = sizes["last_checkpoint"] - sizes["first_checkpoint"]
    return (
        f"After {epochs} epochs with {sizes['filter_steps']} steps of the difficulty filter, `policy.json` has "
        f"{sizes['policy']:,} bytes, `metrics.jsonl` {sizes['metrics']:,}, and a checkpoint {grown:,} more than the "
        f"first one ({sizes['last_checkpoint']:,}); {sizes['checkpoints']} checkpoints are kept."
    )


def test_sizes_are_those_of_the_result_file():
    assert sizes_sentence() in " ".join(PAGE.split()), sizes_sentence()


def fuzz_figures():
    found = results("fuzz_files")
    formats = ", ".join(
        f"{name} {counts['files']:,} ({counts['refused']:,} refused, {counts['read']:,} still sound)"
        for name, counts in found["formats"].items()
    )
    most = max(found["costly"].values(), key=lambda row: row["peak_mib"])
    return f"{formats}; the costliest file of 64 MiB takes {most['peak_mib']} MiB"


def attack_figures():
    classes = results("attacks")["classes"]
    made = ", ".join(f"{name} {found['attacks']:,}" for name, found in classes.items())
    findings = sum(len(found["findings"]) for found in classes.values())
    return f"{sum(found['attacks'] for found in classes.values()):,} attacks ({made}); {findings} findings"


def ray_figures():
    found = results("attack_ray")
    kills = ", ".join(f"{part} {count}" for part, count in sorted(found["kills"].items()))
    return (
        f"{sum(found['kills'].values())} kills ({kills}), {found['comparisons']} comparison(s); "
        f"{found['runs_compared']} runs compared, {len(found['findings'])} findings"
    )


@pytest.mark.parametrize("figures", [soak_figures, both_filters, fuzz_figures, attack_figures, ray_figures])
def test_figures_are_those_of_the_result_files(figures):
    assert f"| {figures()} |" in PAGE, f"the page should say: {figures()}"


def test_the_long_runs_were_long_and_found_nothing():
    soak, endurance, fuzz = results("soak"), results("endurance"), results("fuzz_files")
    assert soak["kills"] >= 30
    assert soak["runs_differing"] == 0
    assert {"checkpoint", "report"} < soak["phase_hit"].keys()
    assert soak["phase_hit"].keys() & {"clone", "measure"}, "filter steps"
    for filter in ("paper", "difficulty"):
        assert endurance[filter]["epochs"] >= 300
        assert endurance[filter]["flat"]
    assert all(counts["files"] >= 10_000 for counts in fuzz["formats"].values())
    attacks = results("attacks")["classes"].values()
    assert sum(found["attacks"] for found in attacks) >= 2000
    assert not any(found["findings"] for found in attacks)
    ray = results("attack_ray")
    assert {"worker", "raylet", "run", "command", "board"} == ray["kills"].keys()
    assert ray["findings"] == []
