"""Runs that are asked for here and done elsewhere."""

import asyncio
import threading
from datetime import timedelta
from types import SimpleNamespace

import pytest
from django.contrib.auth import get_user_model
from django.db import connections, transaction
from django.test import RequestFactory
from django.utils import timezone

from mlango.agents import BufferMemory
from mlango.agents.execution import execute_now
from mlango.agents.providers import ScriptedProvider
from mlango.agents.worker import Worker
from mlango.clock import Now
from mlango.exceptions import IdempotencyConflict, Misused
from mlango.models import DurableRun, Trace
from mlango.models.approval import Operator
from tests.durable.agents import LEDGER, Clerk, Lead, plan

User = get_user_model()

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def ledger():
    LEDGER.clear()
    return LEDGER


def work(**options):
    """Do what is due, as a worker does."""
    asyncio.run(Worker(**options).work(until_idle=True))


async def lingering():
    """Wait until the tool of that name has begun, in whatever thread."""
    while not LEDGER:  # noqa: ASYNC110 - the tool belongs to another loop in some tests
        await asyncio.sleep(0.01)


def outcome(trace):
    trace.refresh_from_db()
    return trace.status, trace.output


class TestEnqueue:
    def test_a_worker_does_what_was_asked_for(self):
        trace = Clerk().enqueue(plan([["send", {"to": "ann"}]], "Sent."))
        assert (trace.status, LEDGER) == ("queued", [])

        work()

        assert outcome(trace) == ("finished", "Sent.")
        assert LEDGER == [("send", "ann")]

    async def test_it_can_be_asked_for_in_a_loop(self):
        trace = await Clerk().aenqueue(plan("Hello."))

        await Worker().work(until_idle=True)

        assert (await Trace.objects.aget(pk=trace.pk)).output == "Hello."

    def test_the_immediate_queue_does_it_at_once(self, settings):
        settings.MLANGO = {"QUEUE": "immediate"}

        trace = Clerk().enqueue(plan("Hello."))

        assert outcome(trace) == ("finished", "Hello.")

    def test_nothing_is_done_before_the_transaction_commits(self, settings):
        settings.MLANGO = {"QUEUE": "immediate"}

        with transaction.atomic():
            trace = Clerk().enqueue(plan("Hello."))
            assert outcome(trace) == ("queued", "")

        assert outcome(trace) == ("finished", "Hello.")

    def test_nothing_is_left_of_a_transaction_that_is_rolled_back(self):
        with transaction.atomic():
            Clerk().enqueue(plan("Hello."))
            transaction.set_rollback(True)

        assert not Trace.objects.exists()
        assert not DurableRun.objects.exists()

    def test_a_queue_that_refuses_leaves_the_run_to_a_worker(self, settings, caplog):
        settings.MLANGO = {"QUEUE": "tests.durable.agents.Refusing"}
        trace = Clerk().enqueue(plan("Hello."))

        work()

        assert outcome(trace) == ("finished", "Hello.")
        assert "Nobody could be told of the run" in caplog.text

    def test_a_message_that_comes_twice_does_nothing_more(self):
        trace = Clerk().enqueue(plan([["send", {"to": "ann"}]], "Sent."))

        assert execute_now(trace.pk).status == "finished"
        assert execute_now(trace.pk) is None
        assert LEDGER == [("send", "ann")]

    def test_a_message_that_comes_to_many_at_once_is_for_one(self):
        trace = Clerk().enqueue(plan([["send", {"to": "ann"}]], "Sent."))
        barrier, runs = threading.Barrier(6), []

        def do():
            try:
                barrier.wait()
                runs.append(execute_now(trace.pk))
            finally:
                connections.close_all()

        threads = [threading.Thread(target=do) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert [run.status for run in runs if run] == ["finished"]
        assert len(runs) == 6
        assert LEDGER == [("send", "ann")]

    def test_the_user_and_the_options_are_those_of_the_request(self):
        ann = User.objects.create(username="ann")
        trace = Clerk().enqueue(
            plan("Hello."), user=ann, session_id="s1", metadata={"a": 1}, max_steps=3
        )

        run = execute_now(trace.pk)

        trace.refresh_from_db()
        assert (trace.user, trace.session_key, trace.metadata) == (ann, "s1", {"a": 1})
        assert run.session_id == "s1"

    def test_a_run_for_later_waits(self):
        trace = Clerk().enqueue(plan("Hello."), run_after=timezone.now() + timedelta(hours=1))

        work()

        assert outcome(trace) == ("queued", "")

    def test_a_worker_does_only_its_own_queue(self):
        trace = Clerk().enqueue(plan("Hello."), queue="slow")

        work()
        assert outcome(trace) == ("queued", "")
        work(queue="slow")
        assert outcome(trace) == ("finished", "Hello.")

    @pytest.mark.parametrize(
        ("option", "value"),
        [
            ("memory", BufferMemory()),
            ("approve", lambda request: True),
            ("request", object()),
            ("provider", ScriptedProvider(["Hello."])),
            ("state", {"a": object()}),
            ("user", SimpleNamespace(is_authenticated=True, pk=5)),
        ],
    )
    def test_what_cannot_be_stored_is_refused_by_name(self, option, value):
        if option == "request":
            value = RequestFactory().get("/")
        with pytest.raises(Misused, match=f"cannot be given this '{option}'"):
            Clerk().enqueue(plan("Hello."), **{option: value})


class TestTheSameRequest:
    def test_is_one_run(self):
        first = Clerk().enqueue(plan("Hello."), idempotency_key="k")
        second = Clerk().enqueue(plan("Hello."), idempotency_key="k")

        assert first.pk == second.pk

    def test_has_one_answer_for_those_who_wait(self):
        asked = plan([["send", {"to": "ann"}]], "Sent.")
        first = Clerk().run(asked, idempotency_key="k")
        second = Clerk().run(asked, idempotency_key="k")

        assert (second.trace_uuid, second.text) == (first.trace_uuid, "Sent.")
        assert second.messages == first.messages
        assert LEDGER == [("send", "ann")]

    def test_is_done_by_who_asks_if_nobody_does(self):
        trace = Clerk().enqueue(plan("Hello."), idempotency_key="k")

        run = Clerk().run(plan("Hello."), idempotency_key="k")

        assert (run.trace_uuid, run.text) == (trace.pk, "Hello.")

    def test_is_one_run_for_two_who_ask_at_once(self):
        async def both():
            asked = plan([["send", {"to": "ann"}]], "Sent.")
            return await asyncio.gather(
                *(Clerk().arun(asked, idempotency_key="k") for _ in range(4))
            )

        runs = asyncio.run(both())

        assert len({run.trace_uuid for run in runs}) == 1
        assert {run.text for run in runs} == {"Sent."}
        assert LEDGER == [("send", "ann")]

    def test_is_another_for_another_user(self):
        ann, bob = (User.objects.create(username=name) for name in ("ann", "bob"))

        first = Clerk().enqueue(plan("Hello."), idempotency_key="k", user=ann)
        second = Clerk().enqueue(plan("Hello."), idempotency_key="k", user=bob)

        assert first.pk != second.pk

    def test_another_request_with_its_key_is_refused(self):
        Clerk().enqueue(plan("Hello."), idempotency_key="k")

        with pytest.raises(IdempotencyConflict, match="'k' was used for another request"):
            Clerk().run(plan("Bye."), idempotency_key="k")


class TestCancel:
    def test_what_nobody_began_is_cancelled_at_once(self):
        trace = Clerk().enqueue(plan("Hello."))

        assert trace.cancel()
        work()
        assert outcome(trace) == ("cancelled", "")
        assert not trace.cancel()

    def test_what_waits_is_cancelled_by_a_worker(self):
        run = Clerk().run(plan([["pay", {"amount": 3}]], "Paid."))

        assert run.trace.cancel()
        work()

        trace = run.trace
        assert trace.status == "cancelled"
        assert trace.messages[-1]["role"] == "tool"
        assert trace.approvals.get().status == "expired"
        assert LEDGER == []

    def test_a_run_of_another_process_is_told_within_seconds(self):
        trace = Clerk().enqueue(plan([["linger", {}]], "Never."))

        async def cancel():
            worker = asyncio.create_task(Worker().work(until_idle=True))
            await lingering()
            await trace.acancel()
            async with asyncio.timeout(10):
                await worker

        asyncio.run(cancel())

        assert outcome(trace)[0] == "cancelled"


def test_a_decision_has_a_worker_go_on():
    trace = Clerk().enqueue(plan([["pay", {"amount": 3}]], "Paid."))
    work()
    assert outcome(trace) == ("waiting", "")

    trace.approvals.get().approve(by=Operator())
    work()

    assert outcome(trace) == ("finished", "Paid.")
    assert LEDGER == [("pay", 3)]


def test_an_approval_that_nobody_gave_in_time_has_a_worker_go_on():
    trace = Clerk().enqueue(plan([["pay", {"amount": 3}]], "Not paid."))
    work()
    trace.approvals.update(expires_at=Now() - timedelta(seconds=1))

    work()

    assert outcome(trace) == ("finished", "Not paid.")
    assert LEDGER == []


def test_a_sub_agent_that_waits_is_gone_on_with_in_its_lead():
    inner = plan([["pay", {"amount": 3}]], "Paid.")
    trace = Lead().enqueue(plan([["clerk", {"message": inner}]], "All done."))
    work()
    assert outcome(trace) == ("waiting", "")

    child = trace.children.get()
    child.approvals.get().approve(by=Operator())
    work()

    assert outcome(trace) == ("finished", "All done.")
    assert outcome(child) == ("finished", "Paid.")
    assert LEDGER == [("pay", 3)]


def test_a_drained_worker_leaves_a_run_at_its_next_step():
    trace = Clerk().enqueue(plan([["linger", {"seconds": 0.3}]], [["send", {"to": "ann"}]], "Ok."))

    async def drain():
        worker = Worker()
        task = asyncio.create_task(worker.work())
        await lingering()
        worker.drain()
        await task

    asyncio.run(drain())
    assert outcome(trace) == ("queued", "")
    assert DurableRun.objects.get(pk=trace.pk).worker == ""
    work()
    assert outcome(trace) == ("finished", "Ok.")
    assert LEDGER == [("linger", 0.3), ("send", "ann")]


def test_a_fork_goes_on_where_the_first_run_was():
    run = Clerk().run(plan([["send", {"to": "ann"}]], [["put", {"what": "a"}]], "Done."))
    LEDGER.clear()

    other = Clerk().fork(run, 2)

    assert (other.text, LEDGER) == ("Done.", [("put", "a")])
    assert other.trace_uuid != run.trace_uuid
    assert other.messages == run.messages
    assert other.trace.metadata["forked_from"] == run.trace_uuid


def test_a_run_that_was_stopped_before_it_began_is_told_to_who_asks_again():
    trace = Clerk().enqueue(plan("Never."), idempotency_key="k")
    trace.cancel()

    run = asyncio.run(asyncio.wait_for(Clerk().arun(plan("Never."), idempotency_key="k"), 10))

    assert (run.trace_uuid, run.status, run.output) == (trace.pk, "cancelled", "")
