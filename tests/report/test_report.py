"""The report: self-contained, complete, quick to write, and it renders in a browser."""

import json
import os
import re
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from pages import check_self_contained, check_well_formed, outline

from particleaugment import OPS, PaperFilter
from particleaugment import filter as pf
from particleaugment.recipes import recipe
from particleaugment.report.metrics import alarms, history
from particleaugment.report.page import render, write_report
from particleaugment.report.plots import heat_map
from particleaugment.training.run import RunError, RunFolder

EPOCHS = 100


def epoch_record(epoch):
    return {
        "kind": "epoch",
        "epoch": epoch,
        "train_loss": 2.0 / epoch,
        "test_loss": 2.1 / epoch,
        "test_accuracy": 100.0 - 80.0 / epoch,
        "learning_rate": 0.1,
        "seconds": {"train": 1.0, "evaluate": 0.1, "resumes": 0},
    }


def filter_record(epoch, skip=None, size=40.0, resampled=False):
    return {
        "kind": "filter",
        "epoch": epoch,
        "step": epoch,
        "d0": -1.0 if skip else 3.0,
        "delta": [1.0 + 0.01 * i for i in range(50)],
        "standard_error": [0.1] * 49 + [None],
        "skip_reason": skip,
        "effective_sample_size": size,
        "resampled": resampled,
        "ops_per_image": 0.7,
        "seconds": {"clone": 0.5, "measure": 0.2, "filter": 0.01, "resumes": 0},
    }


def records(skipped=0, size=40.0, epochs=EPOCHS):
    lines = []
    for epoch in range(1, epochs + 1):
        lines.append(epoch_record(epoch))
        if epoch < epochs:
            skip = "d0 is <negative> & useless" if epoch <= skipped else None
            lines.append(filter_record(epoch, skip, size, resampled=epoch % 10 == 0))
    return lines


def config_of(**changes):
    settings = {"filter": "paper", "epochs": EPOCHS, "clone_size": 512, "measure_size": 120, "num_particles": 50}
    return recipe("digits", **settings | changes)


def schedule(epochs=EPOCHS, steps=None):
    filter, history = PaperFilter(num_particles=50, nonzero=3, m=3), []
    state = filter.init(0, OPS, epochs=60)
    for epoch in range(1, (steps or epochs) + 1):
        history.append((epoch, state))
        state = filter.moved(state)
    return filter.schedule(history, epochs)


@pytest.fixture(scope="module")
def page():
    return render(history(config_of(), records(skipped=40), schedule()))


def test_nothing_external_is_referenced(page):
    check_self_contained(page)


def test_page_is_well_formed(page):
    check_well_formed(page)


def test_everything_is_told(page):
    parsed = outline(page)
    wanted = ["Training", "The policy", "The filter", "What the network saw", "Time"]
    assert all(heading in parsed.headings for heading in wanted)
    assert parsed.figures >= 7
    assert "99.20 %" in page, "accuracy of the last epoch"
    assert "not a result" in page, "the best epoch is named as such"
    assert "40 of 99 weight updates were skipped" in page
    assert "d0 is &lt;negative&gt; &amp; useless" in page, "reasons are escaped"
    assert "particleaugment train digits --seed 0" in page
    assert "--set epochs=100" in page


def test_alarms():
    quiet = history(config_of(epochs=5), records(epochs=5), schedule(5, steps=1))
    assert alarms(quiet) == []
    degenerate = history(config_of(epochs=5), records(size=3.0, epochs=5), schedule(5, steps=1))
    assert "degenerate" in alarms(degenerate)[0]
    dense = history(config_of(), records(), schedule())
    assert any("grew dense" in alarm for alarm in alarms(dense))
    filter = PaperFilter(num_particles=50)
    start = filter.init(0, OPS, epochs=60)
    same = replace(start, particles=pf.ParticleSet(start.particles.particles[:1].expand(50, -1)))
    collapsed = history(config_of(epochs=5), records(epochs=5), filter.schedule([(1, start), (2, same)], 5))
    assert any("collapsed to 1 distinct" in alarm for alarm in alarms(collapsed))


def test_alarms_say_only_what_was_measured():
    lines = [line | {"d0": 0.1} if line["kind"] == "filter" else line for line in records(skipped=40)]
    found = alarms(history(config_of(), lines, schedule(steps=1)))
    assert found == ["40 of 99 weight updates were skipped (40 %). In skipped steps the particles move by noise alone."]
    other = recipe("digits", filter="difficulty", epochs=EPOCHS, measure_size=120)
    assert alarms(history(other, records(), schedule())) == [], "only the paper's noise makes policies dense"


def test_the_heat_map_shows_epochs_without_a_record_too():
    sparse = [record for record in records(epochs=20) if record["kind"] == "filter" or record["epoch"] in (8, 16, 20)]
    run = history(config_of(epochs=20, evaluate_every=8), sparse, schedule(20))
    parts = ElementTree.fromstring(heat_map(run)).iterfind(".//{*}g[@id]")
    ticks = next(part for part in parts if part.get("id").endswith("-matplotlib.axis_1"))
    numbers = [float(text.text) for text in ticks.iterfind(".//{*}text") if text.text != "epoch"]
    assert 15 <= max(numbers) <= 20, numbers
    assert list(run.policies) == list(range(1, 21))


def test_baseline_has_no_filter_story():
    lines = [record for record in records() if record["kind"] == "epoch"]
    page = render(history(config_of(policy="trivial"), lines, config_of(policy="trivial").fixed_policy()))
    assert "The filter" not in page
    assert "What the network saw" in page


def test_size_and_time_to_write(tmp_path):
    epochs = 250
    config = config_of(epochs=epochs)
    run = RunFolder.create(tmp_path / "run", config)
    for record in records(skipped=100, epochs=epochs):
        with open(run.metrics, "a") as file:
            file.write(json.dumps(record) + "\n")
    schedule(epochs).save(run.policy)
    write_report(run)  # the first one also imports matplotlib
    start = time.process_time()
    path = write_report(run)
    seconds = time.process_time() - start
    assert path.stat().st_size < 5_000_000
    assert seconds < 2.0 * epochs / 100 * 2, "processor time; twice the allowance, since others may use the caches"


def test_nothing_to_report_yet(tmp_path):
    run = RunFolder.create(tmp_path / "run", config_of())
    with pytest.raises(RunError, match="no finished epoch yet"):
        write_report(run)


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.mark.site
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine; the parser tests above stand in")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_browser_renders_it(page, tmp_path, scheme):
    file, picture, log = tmp_path / "report.html", tmp_path / "report.png", tmp_path / "net.json"
    file.write_text(page)
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync", "--hide-scrollbars"]
    flags += [
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-quic",
        "--enable-logging=stderr",
    ]
    flags += [f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1100,3200", f"--log-net-log={log}"]
    flags += [f"--blink-settings=preferredColorScheme={int(scheme == 'light')}"]
    done = subprocess.run(
        [CHROMIUM, *flags, f"--screenshot={picture}", file.as_uri()],
        capture_output=True, text=True, timeout=120, check=False, env=os.environ | {"HOME": str(tmp_path)},
    )  # fmt: skip
    assert picture.exists(), done.stderr[-2000:]
    assert "CONSOLE" not in done.stderr, "no console message"
    addresses = re.findall(r'"url":"https?://([^/:"]+)', log.read_text())
    # The browser itself asks its maker for the time and for updates.
    asked = {
        host for host in addresses if not host.endswith(("google.com", "googleapis.com", "gvt1.com", "gstatic.com"))
    }
    assert asked == set(), "no network request"
    from PIL import Image

    pixels = torch.frombuffer(bytearray(Image.open(picture).convert("RGB").tobytes()), dtype=torch.uint8).view(-1, 3)
    background = pixels[0].float().mean()
    assert (background > 200) if scheme == "light" else (background < 60)
    distinct = torch.unique(pixels, dim=0)
    assert len(distinct) > 500, "there are figures on it"
    assert Path(picture).stat().st_size > 20_000
