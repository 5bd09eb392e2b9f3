"""Reports, logs and lines of progress of runs whose strength is steered."""

import io
import re

import pytest
import torch
from pages import check_self_contained, check_well_formed, outline
from rich.console import Console
from runs import command, epoch_record

import particleaugment as pa
from particleaugment.policies.mixture import Mixture, MixtureSchedule, even_counts
from particleaugment.recipes import recipe
from particleaugment.report.loggers import SearchLogger, search_figures
from particleaugment.report.metrics import alarms, history
from particleaugment.report.page import render
from particleaugment.report.strength import difficulty, op_counts, strength
from particleaugment.report.summary import print_summary
from particleaugment.report.tensorboard import EventWriter
from particleaugment.training.display import filter_note
from particleaugment.training.run import RunFolder

EPOCHS, STEERED = 20, 16
PARTICLES = re.compile("particle|N_eff|effective sample size|weight update|updated the weights|clone", re.IGNORECASE)


def step_record(epoch, strength):
    known = {"training_loss": 0.4, "held_out_loss": 0.5, "difficulty": 0.8, "wanted": 1.0 - 0.02 * epoch}
    if epoch > STEERED:
        known = dict.fromkeys(known)
    step = {"kind": "filter", "epoch": epoch, "step": epoch, "skip_reason": None, "ops_per_image": strength}
    return step | {"strength": strength, "seconds": {"measure": 0.1}} | known


def strength_in(epoch):
    return 2.0 if epoch <= 10 else 3.5


def records(**fields):
    """The strength rises from 2 to 3.5 after half of the epochs."""
    lines = []
    for epoch in range(1, EPOCHS + 1):
        lines.append(epoch_record(epoch))
        if epoch < EPOCHS:
            lines.append(step_record(epoch, strength_in(epoch + 1)) | fields)
    return lines


def schedule():
    steps = tuple((epoch, 1.0, even_counts(strength_in(epoch), 8)) for epoch in (1, 11))
    return MixtureSchedule(steps, EPOCHS)


def config():
    return recipe("digits", filter="difficulty", epochs=EPOCHS)


@pytest.fixture(scope="module")
def page():
    return render(history(config(), records(), schedule()))


def test_the_page_tells_difficulty_strength_and_ops_and_nothing_of_particles(page):
    check_self_contained(page)
    check_well_formed(page)
    parsed = outline(page)
    wanted = ["How hard training was", "How strong augmentation was", "What the network saw", "Time"]
    assert [heading for heading in parsed.headings if heading in wanted] == wanted
    assert "The filter" not in parsed.headings
    assert PARTICLES.findall(re.sub(r"<pre>.*|<title>.*?</title>", "", page, flags=re.DOTALL)) == []
    assert (
        "Strength was 2.00 ops per image in the first epoch and 3.50 at most (epoch 11). It ends at 3.50. All" in page
    )
    assert "difficulty in epoch 16, averaged; 0.46 to 1.01 is fine" in page
    assert parsed.figures >= 6


def test_the_gallery_names_the_strength_of_its_epochs(page):
    titles = re.findall("<span>([^<]*)</span><img", page)
    moments = ["epoch 1\n2.00 ops per image", "epoch 10\n2.00 ops per image", "epoch 20\n3.50 ops per image"]
    assert titles == ["plain", *moments]


def test_without_a_wanted_value_or_a_measurement_the_page_is_made_all_the_same():
    for fields in ({"wanted": None}, {"difficulty": None, "skip_reason": "the held-out loss is nan"}):
        shown = render(history(config(), records(**fields), schedule()))
        check_well_formed(shown)
        assert ("How hard training was" in shown) == ("wanted" in fields)


def test_a_replayed_schedule_has_strength_and_no_difficulty():
    lines = [record for record in records() if record["kind"] == "epoch"]
    shown = render(history(recipe("digits", policy="trivial", epochs=EPOCHS), lines, schedule()))
    assert "How strong augmentation was" in shown
    assert "How hard training was" not in shown


def test_counts_are_the_shares_of_images_with_so_many_ops():
    mixture = Mixture(slots=even_counts(1.3, 4), ops=("Rotate", "Color"))
    applied = (mixture.sample(torch.arange(20_000)).op != 0).sum(1)
    assert sum(mixture.counts) == pytest.approx(1)
    for number, share in enumerate(mixture.counts):
        assert float((applied == number).double().mean()) == pytest.approx(share, abs=0.02)


def test_the_figure_of_counts_ends_with_the_most_ops_that_images_get():
    drawn = op_counts(history(config(), records(), schedule()))
    assert "7 ops" in drawn
    assert "8 ops" not in drawn


def test_alarms_are_those_of_strength():
    assert alarms(history(config(), records(), schedule())) == [], "more ops are no alarm here"
    (stuck,) = alarms(history(config(), records(strength=4.0), schedule()))
    assert stuck.startswith("Strength was at its maximum, 4 ops per image, after 16 of 16 steps")
    unknown = records(difficulty=None, skip_reason="the held-out loss is nan")
    (skipped,) = alarms(history(config(), unknown, schedule()))
    assert skipped == "19 of 19 filter steps were skipped (100 %): no loss was measured, and strength did not change."


def test_the_summary_says_strength_and_difficulty(tmp_path):
    run = RunFolder.create(tmp_path / "run", config())
    for record in records():
        run.append_metrics(record)
    console = Console(file=io.StringIO(), width=200)
    print_summary(run, schedule(), console)
    text = console.file.getvalue()
    assert "3.50 at the end, at most 3.50" in text
    assert "0.80 in epoch 16, wanted 0.68" in text
    assert "leading ops" not in text


def test_the_summary_knows_the_strength_of_the_first_epoch(tmp_path):
    run = RunFolder.create(tmp_path / "run", config())
    for record in records(strength=0.0):
        run.append_metrics(record)
    console = Console(file=io.StringIO(), width=200)
    print_summary(run, schedule(), console)
    assert "0.00 at the end, at most 2.00" in console.file.getvalue()


def test_a_line_of_progress_says_strength_and_difficulty(tiny, no_report, tmp_path):
    settings = ["filter=difficulty", "epochs=5", "batch_size=20", "measure_size=10", "precision=fp32"]
    words = [word for setting in settings for word in ("--set", setting)]
    outcome = command("train", *words, "--out", tmp_path / "run")
    lines = [line for line in outcome.stdout.splitlines() if line.startswith("epoch")]
    measured = r"  difficulty \d\.\d\d \(\d\.\d\d to \d\.\d\d is fine\)"
    for number, line in enumerate(lines, start=1):
        assert bool(re.search(rf"%  strength \d\.\d\d ops/image{measured if number > 1 else ''}", line)), line
    assert filter_note(1.0, 2, 1.5, {"difficulty": None, "wanted": None}) == "strength 1.50 ops/image  2 steps skipped"


class Target:
    def log(self, values, step=None):
        self.values = values


def test_loggers_get_strength_difficulty_and_the_wanted_value(tmp_path):
    data = torch.zeros(12, 3, 8, 8, dtype=torch.uint8), torch.arange(12) % 2
    search = pa.ParticleAugment(data, epochs=10, filter=pa.DifficultyFilter(measure_size=2))
    record = pa.search.difficulty.DifficultyRecord(
        step=1, ops_per_image=2.0, strength=2.1, training_loss=0.4, held_out_loss=0.5, difficulty=0.8, wanted=1.0
    )
    target = Target()
    SearchLogger(target).log(search, record, step=1)
    for name, value in (("strength", 2.1), ("difficulty", 0.8), ("wanted", 1.0), ("held_out_loss", 0.5)):
        assert target.values[f"filter/{name}"] == value
    assert set(search_figures(search, record)) == {"policy/op_counts"}


def test_events_have_them_too(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    writer = EventWriter(tmp_path)
    writer.log(step_record(10, 2.5))
    writer.log(step_record(18, 2.5))
    writer.log_figure(EPOCHS, schedule())
    writer.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("filter/strength")] == [10, 18]
    assert [(event.step, event.value) for event in events.Scalars("filter/wanted")] == [(10, pytest.approx(0.8))]
    assert [event.step for event in events.Scalars("filter/difficulty")] == [10], "not where none was measured"
    assert [event.step for event in events.Images("policy/op_counts")] == [EPOCHS]


def test_where_nothing_is_steered_nothing_is_measured_or_shaded():
    lines = records(difficulty=None, wanted=None, training_loss=None, held_out_loss=None)
    run = history(config(), lines, schedule())
    assert strength(run) != strength(history(config(), records(), schedule())), "one of them has a grey part"
    assert difficulty(run) == ""
    assert alarms(run) == []


def test_strength_is_shown_from_the_first_epoch_where_evaluations_are_rarer():
    lines = [record for record in records() if record["kind"] == "filter" or record["epoch"] in (15, 20)]
    run = history(config(), lines, schedule())
    assert list(run.mixtures) == list(range(1, EPOCHS + 1))
    assert "Strength was 2.00 ops per image in the first epoch and 3.50 at most (epoch 11)" in render(run)
