import sys

import pytest


@pytest.fixture(autouse=True)
def _fresh_accelerate():
    """Accelerate keeps device and precision for the whole process; each test starts without."""
    yield
    if "accelerate" in sys.modules:
        from accelerate.state import AcceleratorState, GradientState

        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
