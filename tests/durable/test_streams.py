"""The streams of durable runs: their readers come, leave and come back."""

import asyncio
import json

import pytest
from django.db import transaction

from mlango.agents import BufferMemory, Finished, TextChunk
from mlango.agents.worker import Worker
from mlango.exceptions import Misused
from mlango.models import DurableRun, Instruction, Trace
from mlango.runtime.following import asker, follow
from mlango.runtime.live import running
from tests.durable.agents import LEDGER, Clerk, Lead, Speaker, plan
from tests.durable.processes import until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _clean(settings):
    settings.MLANGO = {"QUEUE": "immediate"}
    LEDGER.clear()
    yield
    asker.close()


@pytest.fixture
def way(monkeypatch, tmp_path):
    """Return what lets a speaker go on once it is made."""
    monkeypatch.setenv("WAY", str(tmp_path / "way"))
    return tmp_path / "way"


def is_over(uuid):
    return Trace.objects.get(pk=uuid).status in Trace.ENDED and running(uuid) is None


def told(uuid):
    return [json.loads(each.data) for each in follow(uuid)]


def test_the_events_are_those_of_the_log():
    stream = Clerk().stream(plan([["put", {"what": "a"}]], "Done."))

    events = list(stream)

    assert [each.describe() for each in events[:-1]] == told(stream.uuid)[:-1]
    assert isinstance(events[-1], Finished)
    assert events[-1].result == stream.run
    assert (stream.run.text, stream.run.status) == ("Done.", "finished")
    assert stream.run.messages == stream.run.trace.messages


def test_the_events_of_a_sub_agent_are_among_them():
    inner = plan([["put", {"what": "a"}]], "Inner.")

    events = list(Lead().stream(plan([["clerk", {"message": inner}]], "Outer.")))

    assert [each.output for each in events if isinstance(each, Finished)] == ["Inner.", "Outer."]


async def test_it_can_be_read_in_a_loop():
    stream = Clerk().astream(plan("Hello."))

    said = [each.text async for each in stream if isinstance(each, TextChunk)]

    assert "".join(said) == stream.run.output == "Hello."


def test_a_run_goes_on_when_its_reader_leaves(way):
    with Speaker().stream("Speak.") as stream:
        for event in stream:
            if isinstance(event, TextChunk):
                break
    way.touch()

    until(lambda: is_over(stream.uuid))

    assert Trace.objects.get(pk=stream.uuid).output == "All done."
    assert DurableRun.objects.get(pk=stream.uuid).token == 1
    assert [each["seq"] for each in told(stream.uuid)][: event.seq + 1] == list(
        range(event.seq + 1)
    )


def test_a_run_goes_on_when_the_loop_of_its_reader_ends(way):
    async def glance():
        stream = Speaker().astream("Speak.")
        async with stream:
            while not isinstance(await anext(stream), TextChunk):
                pass
        return stream.uuid

    uuid = asyncio.run(glance())
    way.touch()

    until(lambda: is_over(uuid))
    assert Trace.objects.get(pk=uuid).output == "All done."


def test_a_reader_can_stop_and_tell_a_run(way):
    stream = Speaker().stream("Speak.")
    while not isinstance(next(stream), TextChunk):
        pass
    stream.follow_up("And then?")
    stream.abort()

    *_, event = stream
    assert event.result.status == "cancelled"
    with pytest.raises(Misused, match=r"has ended \(cancelled\)"):
        stream.steer("Too late.")


def test_a_reader_tells_a_run_of_another_process(way, monkeypatch):
    monkeypatch.setattr("mlango.agents.detached.running", lambda uuid: None)
    stream = Speaker().stream("Speak.")
    with pytest.raises(Misused, match="has not begun"):
        stream.follow_up("Too early.")
    while not isinstance(next(stream), TextChunk):
        pass

    stream.follow_up("And then?")
    until(Instruction.objects.exists)
    way.touch()

    assert "followed_up" in [each.kind for each in stream]


def test_what_is_stopped_before_it_is_read_is_not_begun():
    stream = Clerk().stream(plan([["put", {"what": "a"}]], "Done."))
    stream.abort()

    assert list(stream)[-1].result.status == "cancelled"


async def test_a_worker_does_the_run_if_there_is_one(settings, monkeypatch):
    settings.MLANGO = {"QUEUE": "worker"}
    monkeypatch.setattr("mlango.agents.queues.base.Queue.patience", 3600.0)
    worker = Worker()
    working = asyncio.create_task(worker.work())

    async with asyncio.timeout(30):
        events = [each async for each in Clerk().astream(plan("Hello."))]
        worker.drain()
        await working

    assert events[-1].output == "Hello."


def test_a_run_for_which_no_worker_comes_is_done_here(settings, monkeypatch):
    settings.MLANGO = {"QUEUE": "worker"}
    monkeypatch.setattr("mlango.agents.queues.base.Queue.patience", 0.01)

    assert list(Clerk().stream(plan("Hello.")))[-1].output == "Hello."


def test_the_same_key_has_the_same_events():
    first = Clerk().stream(plan([["put", {"what": "a"}]], "Done."), idempotency_key="k")
    events = list(first)
    second = Clerk().stream(plan([["put", {"what": "a"}]], "Done."), idempotency_key="k")

    assert list(second) == events
    assert second.uuid == first.uuid
    assert LEDGER == [("put", "a")]


def test_in_a_transaction_the_reader_does_the_run_himself():
    with transaction.atomic():
        stream = Clerk().stream(plan([["found", {"group": "staff"}]], "Done."))
        assert list(stream)[-1].output == "Done."
        assert told(stream.uuid)[-1]["output"] == "Done."
        transaction.set_rollback(True)

    assert not Trace.objects.exists()


def test_what_cannot_be_stored_is_refused_at_once():
    with pytest.raises(Misused, match="cannot be given this 'memory'"):
        Clerk().stream(plan("Hello."), memory=BufferMemory())
