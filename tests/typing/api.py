"""What a type checker knows of the public names. Never run: `make check` reads it."""

from collections.abc import AsyncIterator, Iterator
from decimal import Decimal
from typing import assert_type

from mlango import Agent, AgentRun, Context, tool
from mlango.agents import BufferMemory, Event, Tool
from mlango.models import Trace


@tool
def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


@tool(name="look_up", timeout=5)
def lookup(order: str, ctx: Context) -> str:
    """Look an order up."""
    return f"{order} {ctx.session_id}"


class Support(Agent):
    """Answers questions."""

    class Meta:
        model = "openai/gpt-5"
        system = "Help."
        tools = [add, lookup]
        memory = BufferMemory(k=20)

    @tool
    def close(self, order: str) -> str:
        """Close an order."""
        return order


def of_sync_code() -> None:
    run = Support().run("hi", session_id="s1", max_steps=3)
    assert_type(run, AgentRun)
    assert_type(run.text, str)
    assert_type(run.ok, bool)
    assert_type(run.cost, Decimal | None)
    assert_type(run.usage.input_tokens, int)
    assert_type(Support.chat("hi"), AgentRun)
    events: Iterator[Event] = iter(Support().stream("hi"))
    for event in events:
        assert_type(event.seq, int)


async def of_async_code() -> None:
    assert_type(await Support().arun("hi"), AgentRun)
    events: AsyncIterator[Event] = aiter(Support().astream("hi"))
    async for event in events:
        assert_type(event.step, int)


def of_rows(trace: Trace) -> None:
    assert_type(trace.agent, str)
    assert_type(trace.span_count, int)


plain: Tool = add
