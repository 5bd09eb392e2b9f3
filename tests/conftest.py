import random
from contextlib import contextmanager

import pytest
import torch
from forked import end_nursery
from hypothesis import settings
from runs import few_digits, no_report, tiny

__all__ = ["few_digits", "no_report", "tiny"]

settings.register_profile("suite", derandomize=True, deadline=None)
settings.load_profile("suite")


def pytest_collection_modifyitems(config, items):
    without_gpu = pytest.mark.skip(reason="needs a CUDA device, and there is none")
    in_turn = pytest.mark.skip(reason="builds the site or opens a browser, once in CI; run with -m site")
    on_request = pytest.mark.skip(reason="the long version of a check; run with -m slow")
    for item in items:
        if "gpu" in item.keywords and not torch.cuda.is_available():
            item.add_marker(without_gpu)
        if "site" in item.keywords and "site" not in config.option.markexpr:
            item.add_marker(in_turn)
        if "slow" in item.keywords and "slow" not in config.option.markexpr:
            item.add_marker(on_request)


@pytest.fixture(autouse=True)
def seeded():
    """The same random numbers in every run, in whatever order and process tests run."""
    torch.manual_seed(0)
    random.seed(0)


@pytest.fixture(scope="session", autouse=True)
def no_process_left():
    yield
    end_nursery()


@pytest.fixture(params=[torch.float16, torch.bfloat16, torch.float64], ids=str)
def another_default_dtype(request):
    """A context in which torch makes floats of another type than float32."""

    @contextmanager
    def context():
        before = torch.get_default_dtype()
        torch.set_default_dtype(request.param)
        try:
            yield
        finally:
            torch.set_default_dtype(before)

    return context
