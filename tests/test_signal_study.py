"""The signal study's arithmetic, and its page."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import signal_statistics as study  # noqa: E402

NUMBERS = st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5)), min_size=3, max_size=20)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(NUMBERS)
def test_rank_correlations_are_scipys(pairs):
    first, second = (np.array(column, dtype=float) for column in zip(*pairs))
    if len(set(first)) == 1 or len(set(second)) == 1:
        assert study.spearman(first, second) == 0
    else:
        assert study.spearman(first, second) == pytest.approx(stats.spearmanr(first, second).statistic, abs=1e-12)


def test_the_jackknife_of_a_mean_is_its_standard_error():
    values = np.random.default_rng(0).normal(size=50)
    assert study.jackknife(list(values), np.mean) == pytest.approx(stats.sem(values))


def results(noise, seed=0):
    generator = np.random.default_rng(seed)
    worth = generator.normal(size=15)
    signal = np.concatenate([generator.normal(size=50), worth])
    models = [{"good": list(signal + noise * generator.normal(size=65)), "d_0": [float(i - 2)]} for i in range(8)]
    truth = {f"op{i}": {str(s): {"accuracy": 80 + w, "train_loss": 1.0} for s in range(2)} for i, w in enumerate(worth)}
    shuffled = dict(sorted(truth.items(), key=lambda item: item[1]["0"]["accuracy"]))  # as runs happen to end
    return {"repeatability": {"large": {"moments": {"low": models}}}, "truth": shuffled}


def test_a_planted_signal_repeats_and_predicts():
    found = study.summary(results(0.1), 50, [f"op{i}" for i in range(15)])
    assert found["repeatability"]["good"]["large low sparse"]["spearman"] > 0.95
    assert found["validity"]["good"]["large low"]["spearman"] > 0.95
    assert found["validity"]["good"]["large low"]["p"] < 0.01
    assert found["repeatability"]["d_0 <= 0"]["large low"]["share"] == 3 / 8
    assert abs(found["shuffled"]["spearman"]) < 0.02


def test_noise_does_neither():
    found = study.summary(results(1000.0), 50, [f"op{i}" for i in range(15)])
    entry = found["repeatability"]["good"]["large low sparse"]
    assert abs(entry["spearman"]) < 4 * max(entry["error"], 0.03)
    assert found["validity"]["good"]["large low"]["p"] > 0.01


def test_the_page_is_up_to_date():
    check = [sys.executable, str(ROOT / "benchmarks" / "filter_page.py"), "--check"]
    assert subprocess.run(check, check=False).returncode == 0, "run python benchmarks/filter_page.py"
