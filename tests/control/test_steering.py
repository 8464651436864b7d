"""Steering and follow-ups: how many are read at once, and what a skipped call shows."""

import asyncio
from collections import deque
from typing import ClassVar

import pytest

from mlango.agents import (
    Agent,
    BufferMemory,
    FollowedUp,
    Guardrail,
    Limits,
    Regex,
    Steered,
    ToolFinished,
    tool,
)
from mlango.agents.execution import execute_now
from mlango.agents.providers import ScriptedProvider, ToolCall
from mlango.agents.resolve import run_for
from mlango.core.messages import repaired
from mlango.exceptions import Misused, ProviderUnavailable
from mlango.models.approval import Operator
from tests.durable.agents import Clerk, plan
from tests.helpers import new_run
from tests.helpers import stream as streamed
from tests.wires import assert_sendable

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
    assert heard == ["never mind", "or do"]
    assert [event.seq for event in told] == list(range(len(told)))
    trace = stream.run.trace
    assert trace.messages == stream.run.messages

    trace.approvals.get().approve(by=Operator())
    ended = payer.resume(trace, provider=model)
    assert said(model.last_call) == ["never mind", "or do"]
    assert ended.text == "Paid."
    assert repaired(ended.messages) == ended.messages
    assert ended.trace.messages == ended.messages


down = ProviderUnavailable("down", retryable=False)
ENDS = {  # how a run ends, what its model says, and how it is begun
    "stopped": ("stopped", [looks(1), looks(2)], {"max_steps": 1}),
    "aborted": ("cancelled", [looks(1), looks(2)], {}),
    "left": ("cancelled", [looks(1), looks(2)], {}),
    "failed": ("failed", [looks(1), down], {}),
    "out of time": (
        "stopped",
        [[ToolCall("h", "hang", {})]],
        {"limits": Limits(max_duration=0.2)},
    ),
}


def told_at_its_end(agent, end, way, *, says=("one", "two"), **options):
    """Return a run that was told something right before it ended, and its events."""
    status, turns, given = ENDS[end]
    stream = agent.stream("hi", provider=ScriptedProvider(turns), **given, **options)
    events = []
    for event in stream:
        events.append(event)
        if event.kind == "tool_called" and event.step == 1:
            for message in says:
                getattr(stream, way)(message)
            says = ()
            if end == "aborted":
                stream.abort()
            if end == "left":
                break
    stream.close()
    assert stream.run.status == status
    return stream.run, events


@tool
async def hang() -> str:
    """Take for ever."""
    await asyncio.Event().wait()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", QUEUES)
@pytest.mark.parametrize("end", ENDS)
def test_what_nobody_has_read_when_a_run_ends_is_kept(end, way, mode):
    guards = [Regex(pattern="forbidden", on=["input"])]
    options = {"tracing": True, "memory": BufferMemory(), "guardrails": guards}
    clerk = desk(mode, tools=[look, hang], **options)
    run, events = told_at_its_end(clerk, end, way, session_id="s")
    assert [m["content"] for m in run.messages if m["role"] == "user"] == ["hi", "one", "two"]
    assert_sendable(run.messages)
    assert run.trace.messages == run.messages
    if end != "left":  # who left is told nothing more
        heard = [event.message for event in events if isinstance(event, QUEUES[way])]
        assert "\n".join(heard) == "one\ntwo"
        assert [event.seq for event in events] == list(range(len(events)))

    model = ScriptedProvider(["Well.", "Yes."])
    if run.status != "failed":  # of which a session knows nothing
        clerk.run("and now?", provider=model, session_id="s")
        assert said(model.last_call) == ["one", "two", "and now?"]
    ended = clerk.resume(run, provider=model, max_steps=9, limits=Limits(max_steps=9))
    assert said(model.last_call) == ["one", "two"]
    assert ended.ok


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", QUEUES)
def test_what_may_not_be_read_is_told_and_the_rest_is_kept(way, mode):
    guards = [Regex(pattern="forbidden", on=["input"])]
    clerk = desk(mode, tools=[look, hang], tracing=True, guardrails=guards)
    run, events = told_at_its_end(clerk, "aborted", way, says=("forbidden", "two"))
    assert [m["content"] for m in run.messages if m["role"] == "user"] == ["hi", "two"]
    assert [event.kind for event in events].count("guardrail_tripped") == 1
    assert run.trace.messages == run.messages


@pytest.mark.django_db(transaction=True)
def test_what_was_just_looked_at_when_a_run_is_stopped_is_kept():
    class Slow(Guardrail):
        on = ("input",)
        parallel = False
        seen: ClassVar[list[str]] = []

        async def check_input(self, text):
            self.seen.append(text)
            if self.seen == ["hi", "one"]:
                stream.abort()
                await asyncio.Event().wait()

    clerk = desk(tracing=True, guardrails=[Slow()])
    stream = clerk.stream("hi", provider=ScriptedProvider([looks(1), "done"]))
    for event in stream:
        if event.kind == "tool_called":
            stream.steer("one")
    assert (stream.run.status, Slow.seen) == ("cancelled", ["hi", "one", "one"])
    assert stream.run.messages[-1] == {"role": "user", "content": "one"}


def test_who_speaks_while_a_run_ends_is_heard_or_told_so():
    run = new_run()

    class Ending(deque):
        def append(self, said):
            super().append(said)
            run.status = "stopped"

    run.steering = Ending()
    with pytest.raises(Misused, match="has ended"):
        run.steer("too late")
    assert not run.steering

    class Ended(Ending):
        def append(self, said):
            super().append(said)
            self.clear()  # as the loop does, which keeps it

    run.status, run.follow_ups = "running", Ended()
    run.follow_up("just in time")


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
