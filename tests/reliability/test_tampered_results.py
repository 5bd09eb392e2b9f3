"""Results that somebody has changed: every field is checked, and whatever a page shows is escaped."""

import copy
import html
import json
import os
import random
import shutil

import pytest
from matplotlib.figure import Figure
from mutations import CONFIG, RAW, epoch_record, filter_record, search
from pages import check_self_contained, check_well_formed, outline
from runs import command

from particleaugment import TrivialAugment
from particleaugment.compare.arms import Base, parse_arms, parse_seeds
from particleaugment.compare.comparison import Comparison, ComparisonFolder
from particleaugment.compare.comparison_page import render
from particleaugment.compare.run_record import RunRecord
from particleaugment.recipes import get_recipe
from particleaugment.report import html as pages
from particleaugment.report.page import write_report
from particleaugment.training.run import RunError, RunFolder

HOSTILE = [
    "<script>alert(1)</script>",
    "</title><img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "' onmouseover='alert(1)",
    "{{ 7 * 7 }}{% raw %}",
    "$\\frac{1}{$",
    "</text></svg><script>",
    "../../../etc/cron.d/x",
    "&amp;&lt;",
]


def check_harmless(page):
    check_self_contained(page)
    check_well_formed(page)
    assert outline(page).scripts == 0
    for text in HOSTILE:
        assert "<" not in text or text not in page


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """A folder with a finished comparison of two arms and two seeds, without the folders of its runs."""
    base = Base.of(get_recipe("digits"), ["epochs=3"])
    arms = parse_arms("none,paper")
    health = {"steps": 2, "skipped": 1, "resampled": 0, "effective_sample_size": 3.5, "ops_per_image": 0.7}
    records = [
        RunRecord(
            arm=arm.name,
            seed=seed,
            epochs=3,
            finished=True,
            accuracy=(80.0, 85.0, 90.0 + seed),
            train_loss=(2.0, 1.5, 1.0),
            ops_per_image=(0.5, 0.6, 0.7) if arm.learned else (),
            seconds={"train": 10.0, "evaluate": 1.0} | ({"clone": 3.0} if arm.learned else {}),
            filter=health if arm.learned else {},
        )
        for arm in arms
        for seed in parse_seeds("0-1")
    ]
    records.append(RunRecord(arm="none", seed=2, epochs=3, problem="it failed"))
    machine = {"cpu": "a CPU", "cores": 2, "gpu": None, "system": "Linux", "python": "3.12", "versions": {"torch": "2"}}
    comparison = Comparison(base, arms, "none", (), ({"command": "particleaugment compare", "machine": machine},))
    folder = ComparisonFolder(tmp_path_factory.mktemp("compare"))
    folder.write(comparison.with_runs(records))
    return folder.path


def places(value, place=()):
    """Every place in a JSON value."""
    yield place
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*place, key))


def changed(document, place, value):
    document = copy.deepcopy(document)
    holder = document
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value
    return document


def report(path):
    outcome = command("compare", path, "--report", "-q")
    assert outcome.exit_code in (0, 1)
    if outcome.exit_code == 1:
        assert len(outcome.stderr.splitlines()) == 1
        assert f"{path / 'compare.json'} " in outcome.stderr
    return outcome.exit_code == 0


READ = ("arms", "against", "runs", "commands", "config", "filter_settings")


def not_drawn(figure, buffer, **options):
    buffer.write('<svg><use href="#a"/></svg>')


def test_every_field_replaced(compared, tmp_path, monkeypatch):
    document = json.loads((compared / "compare.json").read_text())
    where = [place for place in places(document) if place and place[0] in READ]
    chosen, folder, accepted = random.Random(0), tmp_path / "c", 0
    for place in where:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        value = chosen.choice([*HOSTILE, 3, -1, 1e300, 10**40, True, None, [], {}, [HOSTILE[0]], {HOSTILE[0]: 1}])
        (folder / "compare.json").write_text(json.dumps(changed(document, place, value)))
        with monkeypatch.context() as patch:
            if not isinstance(value, (str, list, dict)):  # only texts could spoil a drawing, and drawing takes long
                patch.setattr(Figure, "savefig", not_drawn)
            sound = report(folder)
        if sound:
            accepted += 1
            check_harmless((folder / "compare.html").read_text())
        assert {file.name for file in folder.iterdir()} <= {"compare.json", "compare.html"}
    assert 5 < accepted < len(where) / 2


@pytest.mark.parametrize("raw", RAW, ids=lambda raw: raw[:12])
def test_numbers_that_are_none(compared, tmp_path, raw):
    document, mark = json.loads((compared / "compare.json").read_text()), "\ue000"
    for place in [("runs", 0, "accuracy", 0), ("runs", 0, "seconds", "train"), ("runs", 1, "filter", "skipped")]:
        tampered = json.dumps(changed(document, place, mark)).replace(json.dumps(mark), raw)
        (tmp_path / "compare.json").write_bytes(tampered.encode("utf-8", "surrogatepass"))
        report(tmp_path)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("runs", 0, "accuracy", 1), "<b>99</b>", "runs[0].accuracy[1] must be a number, got '<b>99</b>'"),
        (("runs", 0, "accuracy", 1), 101, "runs[0].accuracy[1] must be from 0 to 100, got 101.0"),
        (("runs", 1, "filter", "skipped"), "<b>", "runs[1].filter.skipped must be a number, got '<b>'"),
        (("runs", 1, "filter"), {"steps": 1}, "runs[1].filter must have the numbers steps, skipped and ops_per_image"),
        (("runs", 0, "seconds"), {"train": -1}, "runs[0].seconds.train must be from 0 to 1e+30"),
        (("runs", 0, "accuracy"), [], "runs[0] is finished, but has no accuracy"),
        (("runs", 0, "accuracy"), [1.0], "runs[0].train_loss must be as long as accuracy, 1 numbers"),
        (("runs", 0, "evaluated"), [3, 2, 1], "runs[0].evaluated must be epochs of the run, in rising order"),
        (("runs", 0, "evaluated"), [1, 2, 9], "runs[0].evaluated must be epochs of the run, in rising order"),
        (("runs", 0, "seed"), 1, "its runs must have different arms or seeds"),
        (("runs", 0, "arm"), "../../x", "runs[0].arm must be an arm's name"),
        (("runs", 0, "arm"), "other", "its runs have the arm other, which is none of its arms"),
        (("runs", 0, "arm"), None, "runs[0].arm must be text, got None"),
        (("runs", 0, "finished"), 1, "runs[0].finished must be true or false, got 1"),
        (("runs", 0, "colour"), 1, "there is no field 'runs[0].colour'"),
        (("runs", 0), [], "runs[0] must be an object, got []"),
        (("runs",), {}, "runs must be a list"),
        (("arms", 0, "name"), "..", "arms[0].name must be an arm's name"),
        (("arms", 0, "name"), "a/b", "arms[0].name must be an arm's name"),
        (("arms", 0, "name"), "x" * 200, "arms[0].name must be an arm's name"),
        (("arms", 1, "name"), "none", "its arms must have different names"),
        (("arms", 1, "filter"), "magic", "arms[1].filter must be one of difficulty, paper"),
        (("arms", 0, "settings"), ["nonsense=1"], "arm 'none': there is no setting 'nonsense'"),
        (("arms", 0, "settings"), "epochs=1", "arms[0].settings must be a list, got 'epochs=1'"),
        (("against",), "<b>", "against must be one of its arms"),
        (("commands", 0, "machine"), "<b>", "commands[0].machine must be an object, got '<b>'"),
        (("commands", 0, "machine", "cores"), "<b>", "commands[0].machine.cores must be a whole number, got '<b>'"),
        (("commands", 0, "command"), 3, "commands[0].command must be text, got 3"),
        (("config",), 3, "not a configuration of version"),
        (("config", "training", "epochs"), "<b>", "training.epochs takes a whole number, got '<b>'"),
        (("filter_settings",), "m=3", "filter_settings must be a list, got 'm=3'"),
        (("version",), 99, "its format must be 'particleaugment comparison', version"),
    ],
)
def test_what_is_wrong_is_named(compared, tmp_path, place, value, message):
    document = json.loads((compared / "compare.json").read_text())
    (tmp_path / "compare.json").write_text(json.dumps(changed(document, place, value)))
    outcome = command("compare", tmp_path, "--report")
    assert outcome.exit_code == 1
    assert f"{tmp_path / 'compare.json'} is not a valid comparison file: {message}" in outcome.stderr
    assert not (tmp_path / "compare.html").exists()


def test_finished_runs_of_other_epochs(compared, tmp_path):
    document = json.loads((compared / "compare.json").read_text())
    for name in ("accuracy", "train_loss"):
        document["runs"][0][name] = document["runs"][0][name][:2]
    (tmp_path / "compare.json").write_text(json.dumps(document))
    wrong = "the finished runs of the arm none must have figures of the same epochs"
    assert wrong in command("compare", tmp_path, "--report").stderr


def test_texts_are_shown_escaped(compared, tmp_path):
    document = json.loads((compared / "compare.json").read_text())
    text = "<script>alert('1')</script> $x_{$ {{ 7 * 7 }}"
    document["runs"][-1]["problem"] = document["arms"][0]["meaning"] = document["commands"][0]["command"] = text
    document["runs"][0]["seconds"][text] = 1.5
    document["commands"][0]["machine"]["versions"] = {text: text}
    (tmp_path / "compare.json").write_text(json.dumps(document))
    assert report(tmp_path)
    page = (tmp_path / "compare.html").read_text()
    check_harmless(page)
    assert html.unescape(page).count(text) >= 6


@pytest.mark.parametrize("kind", ["pipe", "folder", "nothing", "nonsense", "cut"])
def test_files_that_are_none(compared, tmp_path, kind):
    file = tmp_path / "compare.json"
    content = (compared / "compare.json").read_bytes()
    {
        "pipe": lambda: os.mkfifo(file),
        "folder": file.mkdir,
        "nothing": file.touch,
        "nonsense": lambda: file.write_bytes(b"\xff\x00"),
        "cut": lambda: file.write_bytes(content[:-300]),
    }[kind]()
    assert not report(tmp_path)


def test_the_report_of_a_run_escapes_everything(tmp_path):
    text = HOSTILE[0] + HOSTILE[5]
    run = RunFolder.create(tmp_path / "run", CONFIG)
    for record in (epoch_record(1), filter_record(1), epoch_record(2), filter_record(2), epoch_record(3)):
        if record["kind"] == "filter":
            record["skip_reason"] = text
        record["seconds"][text] = 1.0
        run.append_metrics(record)
    search().schedule(3).save(run.policy)
    page = write_report(run).read_text()
    check_harmless(page)
    assert html.unescape(page).count(text) >= 3
    TrivialAugment().save(run.policy)
    with pytest.raises(RunError, match=r"policy.json does not match the filter steps"):
        write_report(run)


def test_a_part_that_is_plain_text_is_escaped():
    page = pages.self_contained("<b>", "<i>", ["<script>alert(1)</script>", None, pages.figure("<svg>", "<u>")])
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "&lt;svg&gt;" in page
    for tag in ("<b>", "<i>", "<u>"):
        assert tag not in page


def test_what_follows_from_the_runs_is_not_read(compared, tmp_path):
    document = json.loads((compared / "compare.json").read_text())
    document["recommendation"] = document["summary"] = document["differences"] = "<script>alert(1)</script>"
    (tmp_path / "compare.json").write_text(json.dumps(document))
    assert render(ComparisonFolder(tmp_path).read()) == render(ComparisonFolder(compared).read())
