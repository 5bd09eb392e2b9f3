import pytest
from cases import Tally

TALLY = pytest.StashKey[Tally]()


@pytest.fixture(scope="session")
def tally(request):
    """Counts the images compared with Pillow over the whole session."""
    return request.config.stash.setdefault(TALLY, Tally())


def pytest_terminal_summary(terminalreporter, config):
    if TALLY in config.stash:
        terminalreporter.write_line(f"exactness: {config.stash[TALLY]}")
