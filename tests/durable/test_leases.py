"""Who has a durable run: claims, leases and tokens, as the rows tell."""

import threading
from datetime import timedelta

import pytest
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from mlango.agents import tool
from mlango.clock import Now
from mlango.models import DurableRun, Trace
from mlango.runtime import leases
from tests.durable.agents import Clerk, plan

pytestmark = pytest.mark.django_db

SECONDS = 30


def queued(uuid="1", **fields):
    """Return the key of a run that waits to be begun."""
    Trace.objects.create(uuid=uuid, agent="a.A", status="queued", started_at=timezone.now())
    DurableRun.objects.create(pk=uuid, agent="a.A", due_at=Now(), **fields)
    return uuid


def let_lapse(uuid):
    DurableRun.objects.filter(pk=uuid).update(due_at=Now() - timedelta(seconds=1))


def claim(uuid, worker="w1"):
    return DurableRun.objects.claim(uuid, worker, SECONDS)


def test_a_claimed_run_is_running_and_has_a_token():
    run = claim(queued())

    assert (run.token, run.worker, run.trace.status) == (1, "w1", "running")
    assert run.lease_until > timezone.now()


def test_a_run_that_is_held_cannot_be_claimed():
    uuid = queued()
    claim(uuid)

    assert claim(uuid, "w2") is None


def test_several_are_claimed_at_once_the_oldest_first():
    oldest, older = queued("1"), queued("2")
    claim(oldest)
    let_lapse(oldest)
    queued("3")

    claimed = DurableRun.objects.claim_due("default", "w2", SECONDS, 2)

    assert [(run.pk, run.token, run.crashes) for run in claimed] == [(oldest, 2, 1), (older, 1, 0)]
    assert {run.worker for run in claimed} == {"w2"}
    assert Trace.objects.filter(status="running").count() == 2
    assert DurableRun.objects.claim_due("default", "w3", SECONDS, 5)[0].pk == "3"


def test_a_lease_that_has_lapsed_is_claimed_with_the_next_token():
    uuid = queued()
    first = claim(uuid)
    let_lapse(uuid)

    second = claim(uuid, "w2")

    assert second.token == first.token + 1
    assert not DurableRun.objects.held(uuid, first.token).exists()
    assert DurableRun.objects.held(uuid, second.token).exists()


def test_what_a_process_gives_back_is_no_crash():
    uuid = queued()
    run = claim(uuid)

    assert DurableRun.objects.give_back(uuid, run.token)
    assert claim(uuid, "w2").crashes == 0


def test_crashes_are_counted_while_nothing_is_finished_between_them():
    uuid = queued()
    seen = []
    for _ in range(3):
        claim(uuid)
        let_lapse(uuid)
        seen.append(claim(uuid).crashes)
        let_lapse(uuid)
    DurableRun.objects.filter(pk=uuid).update(progress=7)

    assert seen == [1, 3, 5]
    assert claim(uuid).crashes == 1


def test_a_worker_that_renews_learns_what_it_has_lost():
    mine, stolen = queued("1"), queued("2")
    claim(mine)
    claim(stolen)
    let_lapse(stolen)
    claim(stolen, "w2")

    assert set(DurableRun.objects.mine("w1", [mine, stolen], renew=SECONDS)) == {mine}


def test_a_run_that_rests_is_not_due_until_it_is_woken():
    uuid = queued()
    run = claim(uuid)
    DurableRun.objects.rest(uuid, run.token)
    Trace.objects.filter(pk=uuid).update(status="waiting")
    assert not DurableRun.objects.due("default", 1)

    assert DurableRun.objects.wake(uuid)
    assert claim(uuid).token == 2


def test_a_run_that_is_cancelled_as_it_comes_to_wait_is_due():
    uuid = queued()
    run = claim(uuid)
    DurableRun.objects.cancel(uuid)

    DurableRun.objects.park(uuid, run.token)

    assert claim(uuid).cancel_requested


def test_the_most_urgent_run_goes_first_then_the_oldest():
    queued("1")
    queued("2")
    queued("3", priority=5)
    queued("4", queue="other")
    queued("5", priority=-1)
    DurableRun.objects.filter(pk="2").update(due_at=Now() - timedelta(minutes=1))

    claimed = [DurableRun.objects.claim_due("default", "w1", SECONDS, 2) for _ in range(3)]

    assert [[run.pk for run in each] for each in claimed] == [["3", "2"], ["1", "5"], []]


def test_what_is_urgent_later_does_not_hold_up_what_is_due():
    queued("1", priority=5)
    queued("2")
    DurableRun.objects.filter(pk="1").update(due_at=Now() + timedelta(hours=1))

    [claimed] = DurableRun.objects.claim_due("default", "w1", SECONDS, 2)

    assert claimed.pk == "2"


def test_a_run_for_later_is_not_due():
    queued("1")
    DurableRun.objects.filter(pk="1").update(due_at=Now() + timedelta(hours=1))

    assert not DurableRun.objects.claim_due("default", "w1", SECONDS, 5)


def test_runs_are_asked_for_by_the_names_of_their_queues():
    for uuid, queue in (("1", "slow"), ("2", "default"), ("3", "slow")):
        queued(uuid, queue=queue)
    queued("4", queue="done")
    DurableRun.objects.filter(pk="4").update(due_at=None)

    assert list(DurableRun.objects.queues()) == ["default", "slow"]


@pytest.mark.django_db(transaction=True)
def test_many_threads_claim_each_run_once():
    uuids = [queued(f"{n:02}") for n in range(20)]
    claimed = []

    def work(name):
        try:
            while found := DurableRun.objects.claim_due("default", name, SECONDS, 3):
                claimed.extend(run.pk for run in found)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=work, args=(f"w{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(claimed) == uuids


@pytest.mark.django_db(transaction=True)
def test_a_run_is_held_while_its_tool_blocks(settings, monkeypatch):
    settings.MLANGO = {"LEASE_SECONDS": 3}
    monkeypatch.setattr(leases, "LOOK", 0.01)

    @tool
    def block() -> bool:
        """Block until the lease was renewed twice."""
        begun = DurableRun.objects.get().due_at
        return any(DurableRun.objects.get().due_at > begun for _ in range(100_000))

    class Blocked(Clerk):
        class Meta(Clerk.Meta):
            tools = [block]

    run = Blocked().run(plan([["block", {}]], "Done."))

    assert (run.text, run.tool_results[0].content) == ("Done.", "true")
    assert DurableRun.objects.get().token == 1


def transactions(*steps):
    """Return how many transactions a run takes, each of which touches its row first."""
    with CaptureQueriesContext(connection) as asked:
        Clerk().run(plan(*steps, "Done."))
    return sum("SET due_at" in each["sql"] and "progress +" in each["sql"] for each in asked)


def test_a_step_takes_a_transaction_for_its_model_call_and_one_for_its_tool():
    look = [["look", {"at": "sky"}]]

    assert transactions(look, look) - transactions(look) == 2
