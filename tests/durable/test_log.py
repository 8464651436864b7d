"""What durable runs tell: written with what it tells, and once, whoever goes on."""

import json
import threading
from contextlib import contextmanager
from itertools import count, pairwise

import pytest
from django.db import connections

from mlango.agents.execution import carry_on, execute_now
from mlango.core.log import Cursor
from mlango.models import DurableRun, Event, Span, Trace
from mlango.models.approval import Operator
from mlango.runtime import outgoing
from mlango.runtime.following import asker, follow
from mlango.runtime.leases import Fenced, Lease
from mlango.runtime.sync import Call
from tests.durable.agents import LEDGER, Clerk, Lead, Speaker, plan
from tests.durable.processes import let_lapse, until, worker

pytestmark = pytest.mark.django_db(transaction=True)

SHAPES = {
    "text": plan("Hello."),
    "tools": plan([["put", {"what": "a"}]], [["look", {"at": "sky"}]], "Done."),
    "parallel": plan([["put", {"what": "a"}], ["look", {"at": "sky"}], ["none", {}]], "Done."),
}

STEPS = {"text": 1, "tools": 3, "parallel": 2}


@pytest.fixture(autouse=True)
def _clean():
    LEDGER.clear()
    yield
    asker.close()


def told_by(uuid):
    """Return the log of a run as its readers have it, which must be without gaps."""
    told = list(follow(uuid))
    places = [each.cursor for each in told]
    assert places[0] == Cursor(0)
    assert all(a.is_followed_by(b) for a, b in pairwise(places)), places
    return [each.describe() for each in told]


def kinds(told):
    return [each["kind"] for each in told]


def rows_of(uuid):
    """Return the events that are in the log of a run, finished or not."""
    return [each.describe() for row in Event.objects.filter(trace=uuid) for each in row.told()]


def finished_calls(told):
    return [each["tool_call_id"] for each in told if each["kind"] == "tool_finished"]


def spanned_calls(uuid):
    spans = Span.objects.filter(trace=uuid, kind="tool").order_by("tool_call_id")
    return list(spans.values_list("tool_call_id", flat=True))


@contextmanager
def dead_from(at):
    """Have this process write no more from its n-th transaction on."""
    do, begun = Lease.do, count(1)

    async def until_dead(self, function, done=0):
        if next(begun) >= at:
            self.is_lost = True
            raise Fenced(self.uuid)
        return await do(self, function, done)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lease, "do", until_dead)
        yield


def test_a_durable_run_has_a_log():
    run = Clerk().run(SHAPES["tools"])

    told = told_by(run.trace_uuid)

    assert kinds(told) == [
        "started",
        "thinking",
        "tool_called",
        "tool_finished",
        "step_finished",
        "thinking",
        "tool_called",
        "tool_finished",
        "step_finished",
        "thinking",
        "text_chunk",
        "step_finished",
        "finished",
    ]
    assert told[-2]["text"] == told[-1]["output"] == "Done."


@pytest.mark.parametrize("shape", SHAPES)
def test_wherever_a_process_dies_each_fact_is_told_with_its_row(shape):
    for at in count(1):
        trace = Clerk().enqueue(SHAPES[shape])
        with dead_from(at):
            execute_now(trace.pk)
        early = rows_of(trace.pk)
        assert sorted(finished_calls(early)) == spanned_calls(trace.pk)
        trace.refresh_from_db()
        assert ("finished" in kinds(early)) == (trace.status == "finished")
        if trace.status == "finished":
            return
        let_lapse(trace.pk)
        execute_now(trace.pk)

        told = told_by(trace.pk)
        assert told[: len(early)] == early
        assert sorted(finished_calls(told)) == spanned_calls(trace.pk)
        assert kinds(told).count("finished") == 1
        assert kinds(told).count("step_finished") == told[-1]["steps"] == STEPS[shape]
        assert Span.objects.filter(trace=trace.pk, kind="llm").count() == STEPS[shape]
        assert told[-1]["output"] == ("Hello." if shape == "text" else "Done.")


def test_a_process_that_lost_the_run_tells_nothing_more():
    trace = Clerk().enqueue(plan([["put", {"what": "a"}]], "Done."))
    first = DurableRun.objects.claim(trace.pk, "w1", 30)
    let_lapse(trace.pk)
    execute_now(trace.pk)
    told = told_by(trace.pk)

    call = Call("")
    assert call.run(carry_on(first, call)).status == "lost"
    assert told_by(trace.pk) == told


def test_a_run_that_waits_is_followed_behind_its_wait():
    run = Clerk().run(plan([["pay", {"amount": 3}]], "Paid."))
    waiting = told_by(run.trace_uuid)
    assert waiting[-1]["status"] == "waiting"

    run.trace.approvals.get().approve(by=Operator())
    execute_now(run.trace_uuid)

    rest = [each.describe() for each in follow(run.trace_uuid, waiting[-1]["seq"])]
    assert kinds(rest)[0] == "started"
    assert [each["seq"] for each in rest] == [len(waiting) + number for number in range(len(rest))]
    assert rest[-1]["output"] == "Paid."


def test_a_sub_agent_tells_its_events_among_those_of_its_lead():
    inner = plan([["put", {"what": "a"}]], "Inner.")
    run = Lead().run(plan([["clerk", {"message": inner}]], "Outer."))

    told = told_by(run.trace_uuid)

    child = [each for each in told if each["run"] != run.trace_uuid]
    assert kinds(child)[0] == "started"
    assert kinds(child)[-1] == "finished"
    assert [each["seq"] for each in child] == list(range(len(child)))
    assert not Event.objects.exclude(trace=run.trace_uuid).exists()


def test_what_a_long_step_says_is_told_meanwhile(monkeypatch, tmp_path):
    monkeypatch.setattr(outgoing, "EVENTS_WAIT", 0.0)
    monkeypatch.setenv("WAY", str(tmp_path / "way"))
    trace = Speaker().enqueue("Speak.")
    thread = threading.Thread(target=lambda: (execute_now(trace.pk), connections.close_all()))
    thread.start()

    said = []
    for told in follow(trace):
        said.append(told.describe())
        if said[-1]["kind"] == "text_chunk" and said[-1]["text"] == "two ":
            assert Trace.objects.get(pk=trace.pk).status == "running"
            (tmp_path / "way").touch()
    thread.join()

    assert [each["text"] for each in said if each["kind"] == "text_chunk"] == [
        "one ",
        "two ",
        "three",
        "All done.",
    ]


def text_of(told):
    """Return what was said, as a reader shows it who begins a step anew when it begins anew."""
    said = {}
    for each in told:
        if each["kind"] == "thinking":
            said[each["step"]] = ""
        elif each["kind"] == "text_chunk":
            said[each["step"]] += each["text"]
    return list(said.values())


def test_a_reader_is_told_all_once_when_a_worker_is_killed_and_another_goes_on(tmp_path):
    trace = Speaker().enqueue("Speak.")
    told = []
    way = {"WAY": str(tmp_path / "way")}

    def read():
        told.extend(follow(trace.pk))

    reader = threading.Thread(target=read)
    reader.start()
    with worker(**way) as first:
        until(lambda: Event.objects.filter(trace=trace.pk, kind="text_chunk").exists())
        first.kill()
        first.wait()
    (tmp_path / "way").touch()
    let_lapse(trace.pk)
    with worker("--once", **way) as second:
        assert second.wait() == 0
    reader.join()

    seen = [json.loads(each.data) for each in told]
    assert seen == told_by(trace.pk)
    assert kinds(seen).count("started") == 2  # the attempts
    assert kinds(seen).count("tool_finished") == 1
    assert text_of(seen) == ["one two three", "All done."]
    assert [each["text"] for each in seen if each["kind"] == "step_finished"] == text_of(seen)
    assert DurableRun.objects.get(pk=trace.pk).token == 2
