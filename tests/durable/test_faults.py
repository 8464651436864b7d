"""Durable runs whose connections to PostgreSQL break, at each request of theirs."""

import os
from itertools import count

import pytest
from django.db import connection

from mlango.models import Trace
from tests.durable.agents import plan
from tests.durable.checker import violations
from tests.durable.crashing import Clerk
from tests.durable.mortals import Mortals
from tests.durable.proxy import LOST_ANSWER, LOST_REQUEST, Proxy
from tests.durable.shapes import EACH, see_through

# All of them take minutes.
EVERY = int(os.environ.get("MLANGO_TEST_FAULT_EVERY", "37"))

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="is about a server"),
]
SAID = plan([*EACH], [["put", {"what": "b"}]], "Done.")


@pytest.fixture(scope="module")
def proxy():
    """What stands between a process and PostgreSQL."""
    options = connection.settings_dict
    with Proxy(options["HOST"] or "127.0.0.1", int(options["PORT"] or 5432)).running() as proxy:
        yield proxy


@pytest.fixture(scope="module")
def processes(proxy):
    mortals = Mortals(PGHOST="127.0.0.1", PGPORT=str(proxy.port))
    yield mortals
    mortals.close()


@pytest.fixture
def remote(processes, ledger):
    """Processes that reach the database through the proxy."""
    processes.ledger = ledger.path
    return processes


@pytest.mark.parametrize("fault", [LOST_REQUEST, LOST_ANSWER])
def test_a_worker_does_a_run_whatever_request_is_cut_off(fault, proxy, remote, ledger):
    for number in count(1, EVERY):
        trace = Clerk().enqueue(SAID)
        proxy.meet(number, fault)
        remote.call("tests.durable.faults.work")

        trace = see_through(trace, ledger)

        assert violations(trace, ledger.read()) == [], f"request {number}"
        assert trace.output == "Done.", f"request {number}"
        if not proxy.is_met:
            break


@pytest.mark.parametrize("fault", [LOST_REQUEST, LOST_ANSWER])
@pytest.mark.parametrize("agent", ["crashing.Clerk", "tests.Passing"])
def test_who_waits_for_a_run_gets_it_whatever_request_is_cut_off(
    agent, fault, proxy, remote, ledger
):
    for number in count(1, EVERY):
        proxy.meet(number, fault)
        remote.call("tests.durable.faults.ask", agent, SAID)
        if not proxy.is_met:
            break
    for trace in Trace.objects.filter(agent="crashing.Clerk"):
        assert violations(trace, ledger.read()) == []
