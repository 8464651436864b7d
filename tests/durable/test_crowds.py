"""However many runs wait, who looks for some reads about as many rows as he finds."""

from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.utils import timezone

from mlango.agents.rounds import ring_for_overdue, until_next_round
from mlango.models import Approval, DurableRun, Event, Instruction, Trace
from mlango.runtime.following import Reader
from mlango.runtime.sweep import sweep
from tests.durable.agents import Clerk, plan
from tests.durable.plans import plan_of, plans

pytestmark = pytest.mark.django_db

CROWD = 10_000
SECONDS = 30
MINUTE = timedelta(minutes=1)
UUIDS = [f"{n:032x}" for n in range(CROWD)]
ONE, SOME = UUIDS[777], UUIDS[700:710]
CROWDED = {model._meta.db_table for model in (Trace, DurableRun, Event)}

# What the runs wait for: the status of each, in how long it is due, and who has it.
CROWDS = {
    "a worker": ("queued", -MINUTE, ""),
    "their time": ("queued", timedelta(days=1), ""),
    "a decision": ("waiting", None, ""),
    "their process": ("running", MINUTE, "w9"),
}


@pytest.fixture(scope="module", params=CROWDS)
def crowd(request, django_db_setup, django_db_blocker):
    """Ten thousand runs that wait for one thing, with their rows."""
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("VACUUM")  # what is left of the last one
        with transaction.atomic():
            gather(*CROWDS[request.param])
            cursor.execute("ANALYZE")
            yield request.param
            transaction.set_rollback(True)


def gather(status, due_in, worker):
    agent, now = Clerk._meta.label, timezone.now()
    due_at = None if due_in is None else now + due_in
    Trace.objects.bulk_create(
        Trace(uuid=uuid, agent=agent, status=status, started_at=now) for uuid in UUIDS
    )
    DurableRun.objects.bulk_create(
        DurableRun(
            trace_id=uuid,
            agent=agent,
            idempotency_key=uuid,
            queue=("default", "slow")[n % 2],
            priority=n % 3,
            due_at=due_at,
            worker=worker,
        )
        for n, uuid in enumerate(UUIDS)
    )
    Event.objects.bulk_create(
        Event(trace_id=uuid, seq=1, kind="thinking", at=now, data_json="{}") for uuid in UUIDS
    )
    if status == "waiting":
        Approval.objects.bulk_create(
            Approval(trace_id=uuid, agent=agent, tool="pay", expires_at=now + MINUTE)
            for uuid in UUIDS
        )


@pytest.fixture
def looked(crowd, db):
    """The plans of what a test does."""
    with plans() as found:
        yield found


def read_a_log():
    for cursor in (None, "0"):
        reader = Reader(ONE, cursor)
        reader.fetch()
        reader.fetch()
        reader.is_known()
        reader.is_at_end()


RUNS = DurableRun.objects
LOOKS = {
    "a worker claims": lambda: RUNS.claim_due("default", "w2", SECONDS, 10),
    "a worker claims one": lambda: RUNS.claim_due("default", "w2", SECONDS, 1),
    "a worker of another queue claims": lambda: RUNS.claim_due("other", "w2", SECONDS, 10),
    "a message comes": lambda: RUNS.claim(ONE, "w2", SECONDS),
    "a round rings": ring_for_overdue,
    "a round rests": until_next_round,
    "a round sweeps": lambda: sweep("default"),
    "leases are renewed": lambda: RUNS.mine("w1", SOME, SECONDS),
    "a run writes": lambda: RUNS.held(ONE, 1).update(progress=1),
    "a run rests": lambda: RUNS.rest(ONE, 1),
    "a run comes to wait": lambda: RUNS.park(ONE, 1),
    "a run is left": lambda: RUNS.give_back(ONE, 1),
    "a run is woken": lambda: RUNS.wake(ONE),
    "a run is cancelled": lambda: RUNS.cancel(ONE),
    "a run is gone on with": lambda: RUNS.take(ONE, "w2", SECONDS),
    "a run is told something": lambda: [*Instruction.objects.filter(trace__in=SOME)],
    "a process may have died": lambda: Trace.objects.filter(pk=ONE).mark_lost(),
    "a schedule fires": lambda: Clerk().enqueue(plan("Hi."), idempotency_key="report 1"),
    "a reader looks": read_a_log,
}


@pytest.mark.parametrize("look", LOOKS)
def test_little_is_read_whatever_they_wait_for(looked, look):
    LOOKS[look]()

    assert looked
    assert not [str(each) for each in looked if each.scanned & CROWDED]
    assert not [str(each) for each in looked if not each.is_small]


@pytest.mark.parametrize("crowd", ["a worker"], indirect=True)
def test_a_claim_reads_its_index(looked):
    assert len(RUNS.claim_due("default", "w2", SECONDS, 10)) == 10

    priority, due, *_ = looked
    assert "mlango_durable_due" in priority.told
    assert "mlango_durable_due" in due.told
    assert (priority.rows, due.rows) == (1, 10)


def test_to_read_all_of_them_would_be_seen(looked):
    """The bounds above tell a look from a walk through the table."""
    walk = plan_of("SELECT count(*) FROM mlango_durablerun WHERE progress = 0")

    assert walk.scanned == {"mlango_durablerun"}
    assert not walk.is_small
