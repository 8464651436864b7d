"""Agents whose work is seen from other processes: in a file, and by who talks with them."""

import asyncio
import os
import time
from itertools import count
from pathlib import Path

from mlango.agents import Agent, tool
from mlango.agents.providers import Completion, Provider, ToolCall


class Carry(Provider):
    """Has the thing carried that it is told of, then says so."""

    name = "carry"
    offline = True

    def complete(self, *, messages, **options):
        if messages[-1]["role"] == "tool":
            return Completion(text=messages[-1]["content"])
        call = ToolCall("c1", "carry", {"what": messages[-1]["content"]})
        return Completion(tool_calls=[call], stop_reason=Completion.TOOL_USE)


@tool(effect="idempotent")
def carry(what: str) -> str:
    """Carry something, as soon as the way is free."""
    ledger = Path(os.environ["SITE_LEDGER"])
    with ledger.open("a") as lines:
        lines.write(f"{what} by {os.getpid()}\n")
    while what == "piano" and not ledger.with_name("free").exists():
        time.sleep(0.01)
    return f"carried the {what}"


class Porter(Agent):
    """Carries things."""

    class Meta:
        app_label = "services"
        provider = Carry()
        model = "carry/one"
        tools = [carry]
        durable = True


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Speaker(Agent):
    """Says what it is told, and adds."""

    class Meta:
        app_label = "services"
        tools = [add]


class Counting(Provider):
    """Counts aloud, and never comes to an end."""

    name = "counting"
    offline = True

    async def astream(self, **options):
        for number in count():
            yield f"{number} "
            await asyncio.sleep(0.005)


class Counter(Agent):
    """Counts."""

    class Meta:
        app_label = "services"
        provider = Counting()


class Shouting(Provider):
    """Says more than any buffer on the way holds."""

    name = "shouting"
    offline = True

    async def astream(self, **options):
        while True:
            yield "A" * 10_000


class Shouter(Agent):
    """Shouts."""

    class Meta:
        app_label = "services"
        provider = Shouting()
        capture_content = False  # megabytes


class Reciting(Provider):
    """Has two numbers added, then counts aloud until the file is there that it is told of."""

    name = "reciting"
    offline = True

    async def astream(self, *, messages, **options):
        if messages[-1]["role"] != "tool":
            call = ToolCall("c1", "add", {"a": 1, "b": 2})
            yield Completion(tool_calls=[call], stop_reason=Completion.TOOL_USE)
            return
        end = Path(next(each["content"] for each in messages if each["role"] == "user"))
        text = ""
        for number in count():
            text += f"{number} "
            yield f"{number} "
            if end.exists():  # noqa: ASYNC240
                break
            await asyncio.sleep(0.005)
        yield Completion(text=text)


class Reciter(Agent):
    """Adds, and counts to an end."""

    class Meta:
        app_label = "services"
        provider = Reciting()
        model = "reciting/one"
        tools = [add]
        durable = True
