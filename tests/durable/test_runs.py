"""Durable runs in one process: what is written, and when."""

import pytest
from django.contrib.auth.models import Group

from mlango.models import Attempt, DurableRun, Span, Trace
from tests.durable.agents import LEDGER, Clerk, plan

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def ledger():
    LEDGER.clear()
    return LEDGER


def test_a_durable_run_ends_like_any_other():
    run = Clerk().run(plan([["look", {"at": "sky"}]], "It is blue."))

    assert (run.text, run.status, run.steps) == ("It is blue.", "finished", 2)
    trace = run.trace
    assert (trace.status, trace.span_count, trace.output) == ("finished", 3, "It is blue.")
    assert [span.kind for span in trace.spans] == ["llm", "tool", "llm"]
    assert trace.messages == run.messages


def test_nothing_is_due_and_nobody_has_it_once_it_ended():
    run = Clerk().run(plan("Hello."))

    durable = DurableRun.objects.get(pk=run.trace_uuid)
    assert (durable.due_at, durable.worker, durable.token) == (None, "", 1)


def test_each_act_is_written_before_it_is_done():
    run = Clerk().run(plan([["send", {"to": "ann"}], ["look", {"at": "sky"}]], "Done."))

    attempts = Attempt.objects.filter(trace=run.trace_uuid)
    assert [(each.kind, each.name) for each in attempts] == [
        ("llm", "one"),
        ("tool", "send"),
        ("llm", "one"),
    ]
    assert all(each.token == 1 for each in attempts)


def test_an_attempt_stands_where_its_span_does():
    run = Clerk().run(plan([["send", {"to": "ann"}], ["send", {"to": "bob"}]], "Done."))

    places = dict(Span.objects.filter(trace=run.trace_uuid).values_list("ordering", "name"))
    for attempt in Attempt.objects.filter(trace=run.trace_uuid):
        assert places[attempt.ordering] == attempt.name


def test_a_transactional_tool_writes_once():
    run = Clerk().run(plan([["found", {"group": "staff"}]], "Done."))

    assert Group.objects.get().name == "staff"
    assert Attempt.objects.get(trace=run.trace_uuid, name="found").result[0] == "founded staff"
    assert run.trace.span_count == run.trace.spans.count() == 3


async def test_it_runs_in_a_loop_too():
    run = await Clerk().arun(plan([["put", {"what": "a"}]], "Done."))

    assert (run.text, LEDGER) == ("Done.", [("put", "a")])


def test_a_run_waits_for_an_approval_and_goes_on():
    run = Clerk().run(plan([["pay", {"amount": 3}], ["put", {"what": "a"}]], "Done."))
    trace = run.trace
    assert (run.status, LEDGER) == ("waiting", [("put", "a")])
    assert DurableRun.objects.get(pk=trace.pk).due_at is None

    from mlango.models.approval import Operator

    trace.approvals.get().approve(by=Operator())
    done = Clerk().resume(trace)

    assert (done.text, LEDGER) == ("Done.", [("put", "a"), ("pay", 3)])
    assert Trace.objects.get().status == "finished"
    assert [m["tool_call_id"] for m in done.messages if m["role"] == "tool"] == ["c00", "c01"]
