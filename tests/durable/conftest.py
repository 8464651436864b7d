import pytest

from tests.durable.mortals import Mortals
from tests.durable.shapes import Ledger


@pytest.fixture
def ledger(tmp_path, monkeypatch):
    """What tools do to the world, in this process and in others."""
    path = tmp_path / "ledger"
    monkeypatch.setenv("SITE_LEDGER", str(path))
    return Ledger(path)


@pytest.fixture(scope="session")
def graveyard():
    """The process that the mortals come from, for all tests: it takes a second to start."""
    mortals = Mortals()
    yield mortals
    mortals.close()


@pytest.fixture
def mortals(graveyard, ledger):
    """Processes that can be killed."""
    graveyard.ledger = ledger.path
    return graveyard
