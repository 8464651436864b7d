"""A run of several agents may be stopped at any of its events."""

import asyncio
from contextlib import aclosing

import pytest

from mlango.agents import tool
from mlango.agents.providers.scripted import call
from mlango.core.messages import open_calls
from mlango.core.slots import slots
from mlango.models import Trace
from tests.subagents.test_subagents import _agent


@tool
def look() -> str:
    """Look."""
    return "nothing"


@tool
async def listen() -> str:
    """Listen."""
    await asyncio.sleep(0)
    return "silence"


def office():
    """Return an agent with sub-agents side by side, nested ones, and handoffs in both."""
    reader = _agent("Reader", "", [call("look"), "Read."], {}, [look])
    boss = _agent("Boss", "", [[call("look"), call("listen")], "Decided."], {}, [look, listen])
    clerk = _agent("Clerk", "", [call("reader", message="r"), call("transfer_to_boss")],
                   {"subagents": [reader], "handoffs": [boss]})  # fmt: skip
    scout = _agent("Scout", "", [call("listen"), "Scouted."], {}, [listen])
    closer = _agent("Closer", "", ["Closed."], {})
    turns = [[call("clerk", message="c"), call("scout", message="s")], call("transfer_to_closer")]
    options = {"subagents": [clerk, scout], "handoffs": [closer], "max_subagent_depth": 2}
    return _agent("Lead", "", turns, options)()


def stops(way, stream):
    """Return whether to leave at this event; the way ``abort`` stops the run instead."""
    if way == "abort":
        stream.abort()
    return way == "leave"


def plain(way, number):
    events = []
    with office().stream("hi") as stream:
        for event in stream:
            events.append(event)
            if len(events) == number and stops(way, stream):
                break
    return events, stream.run


async def read(way, number):
    events = []
    async with aclosing(office().astream("hi")) as stream:
        async for event in stream:
            events.append(event)
            if len(events) == number and stops(way, stream):
                break
    return events, stream.run


WAYS = {
    "plain": plain,
    "async": lambda way, number: asyncio.run(read(way, number)),
}


@pytest.mark.parametrize("caller", WAYS)
def test_the_whole_run_is_one_tree(caller, transactional_db):
    events, result = WAYS[caller]("read", None)
    assert events[-1].result.text == result.text
    assert (result.text, result.handoffs) == ("Closed.", ["shop.Closer"])
    tree = Trace.objects.values_list("agent", "parent__agent")
    assert set(tree) == {
        ("shop.Lead", None),
        ("shop.Clerk", "shop.Lead"),
        ("shop.Scout", "shop.Lead"),
        ("shop.Reader", "shop.Clerk"),
    }
    assert result.usage.total_tokens == result.trace.usage.total_tokens
    assert_all_ended()


@pytest.mark.parametrize("caller", WAYS)
@pytest.mark.parametrize("way", ["abort", "leave"])
def test_it_may_be_stopped_at_any_event(caller, way, transactional_db):
    events, _ = WAYS[caller]("read", None)
    for number in range(1, len(events)):
        Trace.objects.all().delete()
        events, run = WAYS[caller](way, number)
        assert_all_ended()
        if way == "abort":
            assert_told_in_full(events)
            assert run.trace.messages == run.messages


def assert_all_ended():
    for trace in Trace.objects.all():
        assert trace.status in ("finished", "cancelled"), trace.status
        assert trace.ended_at is not None
        assert not open_calls(trace.messages)
    assert slots.taken == 0


def assert_told_in_full(events):
    """Assert that each run told its events in order, from its first to its one last."""
    for run in {event.run for event in events}:
        own = [event for event in events if event.run == run]
        assert [event.seq for event in own] == list(range(len(own)))
        ends = [event for event in own if event.kind in ("finished", "failed")]
        assert ends == own[-1:]
    assert events[-1].parent is None
