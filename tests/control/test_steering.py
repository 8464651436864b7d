"""Steering and follow-ups: how many are read at once, and what a skipped call shows."""

import pytest

from mlango.agents import Agent, FollowedUp, Steered, ToolFinished, tool
from mlango.agents.providers import ScriptedProvider, ToolCall
from mlango.core.messages import repaired
from mlango.exceptions import Misused

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
