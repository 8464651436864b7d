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


def plain(number, way):
    told = 0
    with office().stream("hi") as stream:
        for event in stream:
            if told == number:
                if way == "leave":
                    break
                stream.abort()
            told += 1
            last = event
    return last if told > number else None


async def read(number, way):
    told = 0
    async with aclosing(office().astream("hi")) as stream:
        async for event in stream:
            if told == number:
                if way == "leave":
                    break
                stream.abort()
            told += 1
            last = event
    return last if told > number else None


def assert_all_ended():
    for trace in Trace.objects.all():
        assert trace.status in ("finished", "cancelled")
        assert trace.ended_at is not None
        assert not open_calls(trace.messages)
    assert slots.taken == 0


def test_the_whole_run_is_one_tree():
    async def whole():
        async with aclosing(office().astream("hi")) as stream:
            return [event async for event in stream]

    events = asyncio.run(whole())
    result = events[-1].result
    assert (result.text, result.handoffs) == ("Closed.", ["main.Closer"])
