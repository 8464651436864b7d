"""Agents with durable runs, told what to do by their messages."""

import asyncio
import json
import os
from pathlib import Path

from django.contrib.auth.models import Group

from mlango.agents import Agent, tool
from mlango.agents.providers import Provider, ToolCall
from mlango.agents.queues import Queue
from mlango.core.durability import Durable
from mlango.core.provider import Completion

LEDGER = []  # what tools have done, in this process


class Planned(Provider):
    """Answers by the plan that its first message holds: a list of steps.

    A step is a text, or a list of calls, each a name with arguments. What was said so far
    tells which one comes next, so that any process can go on.
    """

    name = "planned"
    offline = True

    def complete(self, *, messages, **options):
        said = [each for each in messages if each["role"] == "user" and _is_plan(each["content"])]
        plan = json.loads(said[-1]["content"])
        begun = max(n for n, message in enumerate(messages) if message is said[-1])
        done = sum(message["role"] == "assistant" for message in messages[begun:])
        step = plan[done] if done < len(plan) else "done"
        if isinstance(step, str):
            return Completion(text=step)
        calls = [ToolCall(f"c{done}{n}", name, args) for n, (name, args) in enumerate(step)]
        return Completion(tool_calls=calls, stop_reason=Completion.TOOL_USE)


def _is_plan(said):
    """Return whether this is a plan, and not what a control says to an answer."""
    return str(said).startswith("[")


def is_free():
    """Return whether a process has freed the way."""
    return Path(os.environ["WAY"]).exists()


class Halting(Provider):
    """Says two words, and the third once the way is free; then has something put away."""

    name = "halting"
    offline = True

    async def astream(self, *, messages, **options):
        if messages[-1]["role"] == "tool":
            yield "All done."
            yield Completion(text="All done.")
            return
        yield "one "
        yield "two "
        while not is_free():  # noqa: ASYNC110 - another process frees it
            await asyncio.sleep(0.01)
        yield "three"
        call = ToolCall("c1", "put", {"what": "a"})
        yield Completion(text="one two three", tool_calls=[call], stop_reason=Completion.TOOL_USE)


@tool(effect="read")
def look(at: str) -> str:
    """Look at something."""
    LEDGER.append(("look", at))
    return f"saw {at}"


@tool(effect="once")
def send(to: str) -> str:
    """Send something."""
    LEDGER.append(("send", to))
    return f"sent to {to}"


@tool(effect="idempotent")
def put(what: str) -> str:
    """Put something somewhere."""
    LEDGER.append(("put", what))
    return f"put {what}"


@tool(effect="transactional")
def found(group: str) -> str:
    """Found a group."""
    Group.objects.create(name=group)
    return f"founded {group}"


@tool(approval=True)
def pay(amount: int) -> str:
    """Pay."""
    LEDGER.append(("pay", amount))
    return f"paid {amount}"


@tool(effect="read")
async def linger(seconds: float = 60) -> str:
    """Take some time."""
    LEDGER.append(("linger", seconds))
    await asyncio.sleep(seconds)
    return "here still"


class Refusing(Queue):
    """Is a broker that is down."""

    def ring(self, run):
        raise OSError("Connection refused")


class Clerk(Agent):
    """Does as it is told."""

    class Meta:
        app_label = "durable"
        provider = Planned()
        model = "planned/one"
        tools = [look, send, put, found, pay, linger]
        durable = True


class Speaker(Clerk):
    """Says something, and does not get far."""

    class Meta(Clerk.Meta):
        provider = Halting()


class Trusting(Clerk):
    """Lets its model know what is not known."""

    class Meta(Clerk.Meta):
        durable = Durable(unknown="tell_model")


class Lead(Clerk):
    """Has a clerk."""

    class Meta(Clerk.Meta):
        subagents = [Clerk]


def plan(*steps):
    return json.dumps(steps)
