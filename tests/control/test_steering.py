"""Steering and follow-ups: how many are read at once, and what a skipped call shows."""

import pytest

from mlango.agents import Agent, FollowedUp, Steered, ToolFinished, tool
from mlango.agents.execution import execute_now
from mlango.agents.providers import ScriptedProvider, ToolCall
from mlango.agents.resolve import run_for
from mlango.core.messages import repaired
from mlango.exceptions import Misused
from mlango.models.approval import Operator
from tests.durable.agents import Clerk, plan
from tests.helpers import stream as streamed

MODES = {"one-at-a-time": [["a"], ["b"]], "all": [["a", "b"]]}
QUEUES = {"steer": Steered, "follow_up": FollowedUp}


@tool
def look(page: int) -> str:
    """Look."""
    return f"page {page}"


def desk(mode="one-at-a-time", **options):
    meta = {"tools": [look], "tracing": False, "abstract": True, "max_parallel_tools": 1}
    modes = {"steering_mode": mode, "follow_up_mode": mode}
    return type("Desk", (Agent,), {"Meta": type("Meta", (), meta | modes | options)})()


def looks(*pages):
    return [ToolCall(f"call_{page}", "look", {"page": page}) for page in pages]


def said(request):
    """Return what the user said since the model last spoke."""
    fresh = []
    for message in reversed(request.messages):
        if message["role"] == "assistant":
            break
        if message["role"] == "user":
            fresh.insert(0, message["content"])
    return fresh


@pytest.mark.parametrize("way", QUEUES)
@pytest.mark.parametrize("mode", MODES)
def test_messages_are_read_as_the_mode_says(mode, way):
    model = ScriptedProvider([looks(1), "one", "two", "three"])
    stream, told = desk(mode).stream("hi", provider=model), []
    for event in stream:
        if event.kind == "tool_called":
            getattr(stream, way)("a")
            getattr(stream, way)("b")
        told += [event.message] if isinstance(event, QUEUES[way]) else []

    assert [said(call) for call in model.calls if set(said(call)) & {"a", "b"}] == MODES[mode]
    assert told == ["\n".join(group) for group in MODES[mode]]
    assert stream.run.ok


@pytest.mark.parametrize("mode", MODES)
async def test_it_holds_for_async_runs(mode):
    model = ScriptedProvider([looks(1), "one", "two"])
    stream = desk(mode).astream("hi", provider=model)
    async for event in stream:
        if event.kind == "tool_called":
            stream.steer("a")
            stream.steer("b")

    assert [said(call) for call in model.calls[1:] if said(call)] == MODES[mode]


def test_steering_goes_before_what_follows():
    model = ScriptedProvider([looks(1), "one", "two"])
    stream = desk().stream("hi", provider=model)
    for event in stream:
        if event.kind == "tool_called":
            stream.follow_up("later")
            stream.steer("now")

    assert [said(call) for call in model.calls[1:]] == [["now"], ["later"]]


def test_the_rest_of_an_interrupted_batch_is_skipped_and_answered():
    model = ScriptedProvider([looks(1, 2, 3), "done"])
    stream = desk().stream("hi", provider=model)
    events = []
    for event in stream:
        events.append(event)
        if event.kind == "tool_called":
            stream.steer("stop that")

    finished = [event for event in events if isinstance(event, ToolFinished)]
    assert [(event.tool_call_id, event.error_type) for event in finished] == [
        ("call_1", ""),
        ("call_2", "skipped"),
        ("call_3", "skipped"),
    ]
    assert [event.is_error for event in finished] == [False, True, True]
    results = [m for m in model.last_call.messages if m["role"] == "tool"]
    assert [m["tool_call_id"] for m in results] == ["call_1", "call_2", "call_3"]
    assert results[1]["content"].startswith("Skipped")
    assert said(model.last_call) == ["stop that"]
    assert repaired(model.last_call.messages) == model.last_call.messages


@pytest.mark.parametrize("way", QUEUES)
def test_a_run_that_has_ended_takes_no_more(way):
    stream = desk().stream("hi", provider=ScriptedProvider(["done"]))
    list(stream)
    with pytest.raises(Misused, match="has ended"):
        getattr(stream, way)("too late")


@tool(approval=True)
def pay(amount: int) -> str:
    """Pay."""
    return "paid"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("way", QUEUES)
def test_a_run_that_waits_for_a_person_says_so(way):
    model = ScriptedProvider([[ToolCall("a", "pay", {"amount": 1})], "done"])
    stream = desk(tools=[pay], tracing=True).stream("hi", provider=model)
    list(stream)
    assert stream.run.status == "waiting"
    with pytest.raises(Misused, match=r"waits for a person. Decide about its approvals"):
        getattr(stream, way)("never mind")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", QUEUES)
def test_what_nobody_has_read_when_a_run_is_parked_is_read_when_it_goes_on(way, mode):
    model = ScriptedProvider([[ToolCall("a", "pay", {"amount": 1}), *looks(1)], "Paid.", "Well."])
    payer = desk(mode, tools=[pay, look], tracing=True)
    stream = payer.stream("hi", provider=model)
    told = []
    for event in stream:
        told.append(event)
        if event.kind == "approval_requested":
            getattr(stream, way)("never mind")
            getattr(stream, way)("or do")

    assert stream.run.status == "waiting"
    heard = [event.message for event in told if isinstance(event, QUEUES[way])]
    assert heard == ["never mind\nor do"]
    assert [event.seq for event in told] == list(range(len(told)))
    trace = stream.run.trace
    assert trace.messages == stream.run.messages

    trace.approvals.get().approve(by=Operator())
    ended = payer.resume(trace, provider=model)
    assert said(model.last_call) == ["never mind", "or do"]
    assert ended.text == "Paid."
    assert repaired(ended.messages) == ended.messages
    assert ended.trace.messages == ended.messages


@pytest.mark.django_db(transaction=True)
def test_what_a_process_that_leaves_has_not_read_is_read_in_the_next():
    stream = streamed(run_for(Clerk(), plan([["look", {"at": "sky"}]], "Done."), {}))
    for event in stream:
        if event.kind == "tool_called":
            stream.follow_up(plan("Heard."))
            stream._run.leave()
    assert stream.run.status == "queued"
    with pytest.raises(Misused, match="goes on in another process"):
        stream.steer("too late")

    assert execute_now(stream.uuid).text == "Heard."
