"""Attacks by texts: results that somebody has changed, names that a terminal would act on, arguments of any kind."""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from attack_sandbox import STATES, Finding, Sandbox
from PIL import Image

import particleaugment.runs.train as train_commands
from particleaugment.compare.comparison import ComparisonFolder
from particleaugment.policies import load

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "reliability"))

from mutations import RAW  # type: ignore[import-not-found]
from pages import check_self_contained, check_well_formed, outline  # type: ignore[import-not-found]

HOSTILE = (
    "<script>alert(1)</script>", "</title><img src=x onerror=alert(1)>", '"><svg onload=alert(1)>', "&amp;&lt;",
    "' onmouseover='alert(1)", "{{ 7 * 7 }}{% raw %}", "$\\frac{1}{$", "</text></svg><script>", "../../../etc/x", "a/b",
    "..", ".", "/etc/passwd", "none", "paper", "x" * 300, "$x_{$", "\\", "%s%n", "~/x", "digits", "learned", "trivial",
    "rand-m9-n3", "file:/dev/zero", "schedule:/dev/zero", "cifar10", "mnist", "imagenet", "cuda", "auto", "bf16",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    0,
    1,
    2,
    3,
    -1,
    0.5,
    1e300,
    10**19,
    True,
    False,
    None,
    [],
    {},
    [0],
    [[0.5]],
    {"a": 1},
    1e30,
    100,
)
ESCAPES = ("\x1b[2J", "\x1b]0;owned\x07", "\x9b2J", "\x07", "\r", "\n", "\x7f", "\u202e", "\u2028", "\x08", "\t",
           "\u200f", "\udcff", "\udc9b", "\x1bP1;1|x\x1b\\", "\x0e")  # fmt: skip


def _containers(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, dict):
        return [(value, key) for key in value] + [place for item in value.values() for place in _containers(item)]
    if isinstance(value, list):
        return [(value, key) for key in range(len(value))] + [place for item in value for place in _containers(item)]
    return []


def mutated(content: bytes, draw: random.Random) -> bytes:
    """Change one value, name or field somewhere in a JSON text, or in one of its lines, or a few of its bytes."""
    if draw.random() < 0.1:
        changed = bytearray(content)
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
        return bytes(changed[: draw.choice([len(changed), draw.randrange(len(changed))])])
    lines = content.rstrip(b"\n").split(b"\n") if content.startswith(b'{"kind"') else [content]
    number = draw.randrange(len(lines))
    if len(lines) > 1 and draw.random() < 0.2:
        lines[number : number + 1] = draw.choice([[], [lines[number]] * 2, [b"{}"], [b""], [lines[0]]])
        return b"\n".join([*lines, b""])
    value, mark = json.loads(lines[number]), "\ue000"
    holder, key = draw.choice(_containers(value))
    raw = draw.choice([*RAW, *map(json.dumps, HOSTILE), *map(json.dumps, VALUES)])
    if type(holder[key]) in (int, float) and draw.random() < 0.4:
        raw = json.dumps(holder[key] + draw.choice([1, -1, 0.25, 100]))
    match draw.choice(["replace"] * 6 + ["delete", "rename", "twice", "add", "repeat"]):
        case "delete":
            del holder[key]
        case "rename" if isinstance(holder, dict):
            holder[draw.choice([*HOSTILE, key.upper()])] = holder.pop(key)
        case "twice" if isinstance(holder, dict):
            holder[mark], raw = holder[key], json.dumps(key)
        case "add" if isinstance(holder, dict):
            holder[draw.choice(HOSTILE)] = mark
        case "repeat" if isinstance(holder, list):
            holder.append(holder[key])
        case _:
            holder[key] = mark
    lines[number] = json.dumps(value).replace(json.dumps(mark), raw).encode("utf-8", "surrogatepass")
    return b"\n".join([*lines, b""] if len(lines) > 1 else lines)


def _check_page(page: Path) -> None:
    text = page.read_text()
    try:
        check_self_contained(text)
        check_well_formed(text)
        assert outline(text).scripts == 0
        assert not any("<" in hostile and hostile in text for hostile in HOSTILE)
    except AssertionError as error:
        raise Finding(f"{page.name} is not harmless: {error}") from None


def _tampered_comparison(box: Sandbox, draw: random.Random) -> str:
    run = box.copy("compare")
    file = run / "compare.json"
    for _ in range(draw.choice([1, 1, 2])):
        try:
            file.write_bytes(mutated(file.read_bytes(), draw))
        except (ValueError, IndexError):  # what the change before has left is no JSON any more
            break
    names = {path.name for path in run.iterdir()}
    found = box.command("compare", run, "--report", "-q")
    if {path.name for path in run.iterdir()} - names - {"compare.html"}:
        raise Finding(f"compare --report has made {sorted(path.name for path in run.iterdir())}")
    if found.code:
        return "refused"
    _check_page(run / "compare.html")
    ComparisonFolder(run).read()
    return "accepted"


def _tampered_run(box: Sandbox, draw: random.Random) -> str:
    kind, state = draw.choice(box.workshop.kinds), draw.choice(STATES)
    run = box.copy(f"{kind}-{state}")
    names = ["config.json", "config.json", "metrics.jsonl", "policy.json", "given-policy.json"]
    file = run / draw.choice([name for name in names if (run / name).exists()])
    before = file.read_bytes()
    file.write_bytes(mutated(before, draw))
    if file.read_bytes() == before:
        return "passed over"
    if draw.random() < 0.15:
        if box.command("report", run).code:
            return "refused"
        _check_page(run / "report.html")
        return "accepted"
    outcome = box.agreement(kind, to_the_end=draw.random() < 0.5)
    if outcome == "accepted" and state == "finished":
        _check_unnoticed(file, before)
    return outcome


def _check_unnoticed(file: Path, before: bytes) -> None:
    """Of a finished run ``verify`` lets pass only what means the same."""
    if file.name == "metrics.jsonl":
        raise Finding("changed metrics of a finished run are called sound")
    if file.name == "policy.json":
        after, old = file.read_bytes(), load(file)
        file.write_bytes(before)
        if load(file) != old:
            raise Finding("a changed policy of a finished run is called sound")
        file.write_bytes(after)


def _tampered_policy(box: Sandbox, draw: random.Random) -> str:
    box.run.mkdir()
    folder = box.workshop.folder
    source = draw.choice(
        [folder / "trivial.json", *(folder / f"{kind}-finished/policy.json" for kind in box.workshop.kinds)]
    )
    file = box.run / "policy.json"
    file.write_bytes(mutated(source.read_bytes(), draw))
    found = box.command(
        *draw.choice(
            [
                ("policy", "show", file),
                ("policy", "export", file, "--to", draw.choice(["timm", "torchvision", "json"])),
                ("policy", "export", file, "--to", "json", "--epoch", draw.choice([1, 3, 9])),
            ]
        )
    )
    if not found.code:
        load(file).sample(torch.arange(3), epoch=1)
    return "refused" if found.code else "accepted"


def tampered_results(box: Sandbox, draw: random.Random) -> str:
    """JSON with any value replaced: refused in a sentence, or shown escaped; what is called sound means the same."""
    return draw.choice([_tampered_comparison, _tampered_run, _tampered_run, _tampered_policy])(box, draw)


# Terminals.


def _escaped(draw: random.Random, name: str) -> str:
    for _ in range(draw.randint(1, 3)):
        place = draw.randrange(len(name) + 1)
        name = name[:place] + draw.choice(ESCAPES) + name[place:]
    return name


def terminal(box: Sandbox, draw: random.Random) -> str:
    """Escapes in names of files, classes, settings and arms: no command passes them on to a terminal."""
    box.run.mkdir()
    os.chdir(box.run)
    name = _escaped(draw, "name")
    way = draw.choice([_escaped_words, _escaped_words, _escaped_run, _escaped_images])
    return "refused" if way(box, draw, name) else "accepted"


def _escaped_words(box: Sandbox, draw: random.Random, name: str) -> int:
    if draw.random() < 0.5:
        draw.choice([os.mkdir, lambda path: Path(path).write_text("{}")])(name)  # type: ignore[operator]
    policy = box.workshop.folder / "trivial.json"
    command: tuple[object, ...] = draw.choice(
        [
            ("verify", name),
            ("resume", name),
            ("report", name),
            ("compare", name, "--report"),
            ("compare", name),
            ("compare", "digits", "--arms", name),
            ("compare", "digits", "--arms", f"{name}:epochs=0"),
            ("compare", "digits", "--arms", f"schedule:{name}"),
            ("compare", "digits", "--seeds", name),
            ("compare", "digits", "--set", f"{name}=1"),
            ("compare", "digits", "--against", name, "--set", "epochs=0"),
            ("policy", "show", name),
            ("policy", "gallery", name),
            ("policy", "gallery", "--out", name),
            ("policy", "import", name, "--from", "dada"),
            ("policy", "import", name, "--from", name),
            ("policy", "export", name, "--to", "timm"),
            ("policy", "export", policy, "--to", name),
            ("policy", "export", policy, "--to", "json", "--out", name),
            ("policy", name),
            ("data", "cifar10", f"{name}/file"),
            ("data", name, "elsewhere"),
            ("train", name),
            ("train", "--set", f"data_dir={name}"),
            ("train", "folder", "--set", f"data_dir={name}", "--out", name),
            ("train", "--set", f"policy=file:{name}"),
            ("train", "--set", f"policy={name}"),
            ("train", "--set", f"model={name}"),
            ("train", "--set", name),
            ("train", "--set", f"{name}={name}"),
            ("train", "--seed", name),
            ("bench", "--out", f"{name}/x/y", name),
            (name,),
            (f"--{name}",),
        ]
    )
    return box.command(*command).code


def _escaped_run(box: Sandbox, draw: random.Random, name: str) -> int:
    """A run under another name, one of whose texts holds escapes too."""
    kind = draw.choice(box.workshop.kinds)
    run = box.run / name
    try:
        os.rmdir(box.run)
        box.copy(f"{kind}-{draw.choice(STATES)}").rename(box.root / "moved")
        box.run.mkdir()
        (box.root / "moved").rename(run)
    except OSError:
        return 1
    file = run / draw.choice(["config.json", "metrics.jsonl", "policy.json", ".lock", "nothing"])
    if file.suffix.startswith(".json") and draw.random() < 0.5:
        text = file.read_text()
        place = draw.choice([number for number, character in enumerate(text) if character == '"'])
        content = text[: place + 1] + draw.choice([*ESCAPES, json.dumps(name)[1:-1]]) + text[place + 1 :]
        file.write_bytes(content.encode("utf-8", "surrogatepass"))
    elif file.exists():
        file.write_bytes(os.fsencode(name))
    box.command("verify", run)
    return box.command(draw.choice(["verify", "resume", "report"]), run).code


def _escaped_images(box: Sandbox, draw: random.Random, name: str) -> int:
    for label in ("lime", _escaped(draw, "plum")):
        os.mkdir(box.run / label)
        for number in range(6):
            Image.new("RGB", (9, 8), (9 * number, 99 - number, 5 * number)).save(f"{label}/{number}.png")
        if draw.random() < 0.3:
            Path(label, f"{name}.png").write_bytes(draw.choice([b"no image", b"", b"\x89PNG\r\n\x1a\n"]))
    common = ["epochs=1", "model=wrn-10-1", "image_size=8", "policy=none", "device=cpu", "workers=0"]
    settings = [f"data_dir={box.run}", f"stream={draw.choice(['true', 'false'])}", *common]
    options = [word for setting in settings for word in ("--set", setting)]
    with patch.object(train_commands, "train_session", lambda session: sys.exit(0)):
        return box.command("train", "folder", *options, "--out", box.run / "out").code
