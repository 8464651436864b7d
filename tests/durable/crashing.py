"""Agents whose acts are kill points, and the ledger of what they have done to the world."""

import json
import os
import signal
from pathlib import Path

from django.contrib.auth.models import Group
from pydantic import BaseModel

from mlango.agents import Agent, Context, Durable, MetastoreMemory, tool
from mlango.models import Trace
from tests.durable.agents import Planned, linger
from tests.durable.points import reach


def act(name, ctx):
    """Have an effect outside of the database."""
    reach(f"before {name}")
    line = {"tool": name, "run": ctx.trace_uuid, "key": ctx.idempotency_key, "pid": os.getpid()}
    with Path(os.environ["SITE_LEDGER"]).open("a") as ledger:
        ledger.write(json.dumps(line) + "\n")
    reach(f"after {name}")


class Mortal(Planned):
    """Answers by its plan, and may die over it."""

    name = "mortal"

    def complete(self, **request):
        reach("before the model")
        completion = super().complete(**request)
        reach("after the model")
        return completion


@tool(effect="read")
def look(at: str, ctx: Context) -> str:
    """Look at something."""
    act("look", ctx)
    return f"saw {at}"


@tool(effect="once")
def send(to: str, ctx: Context) -> str:
    """Send something."""
    act("send", ctx)
    return f"sent to {to}"


@tool(effect="idempotent")
def put(what: str, ctx: Context) -> str:
    """Put something somewhere."""
    act("put", ctx)
    return f"put {what}"


@tool(effect="transactional")
def found(what: str, ctx: Context) -> str:
    """Found a group."""
    reach("in a transaction")
    Group.objects.create(name=ctx.idempotency_key)
    reach("in a transaction")
    return f"founded {what}"


@tool(approval=True, effect="once")
def pay(amount: int, ctx: Context) -> str:
    """Pay."""
    act("pay", ctx)
    return f"paid {amount}"


@tool(effect="once")
def refuse(what: str, ctx: Context) -> str:
    """Fail after the effect."""
    act("refuse", ctx)
    raise ValueError(what)


@tool(effect="idempotent")
def withdraw(ctx: Context) -> str:
    """Have the run cancelled, as any process can."""
    Trace.objects.get(pk=ctx.trace_uuid).cancel()
    act("withdraw", ctx)
    return "withdrawn"


@tool(effect="idempotent")
def die(how: str, ctx: Context) -> str:
    """End the process."""
    act("die", ctx)
    os.kill(os.getpid(), signal.SIGKILL)


class Clerk(Agent):
    """Does as it is told, as long as it lives."""

    class Meta:
        app_label = "crashing"
        provider = Mortal()
        model = "mortal/one"
        tools = [look, send, put, found, pay, refuse, withdraw, die, linger]
        durable = True


class Passing(Clerk):
    """Has runs that do not outlive their process."""

    class Meta(Clerk.Meta):
        durable = False


class Trusting(Clerk):
    """Lets its model know what is not known."""

    class Meta(Clerk.Meta):
        durable = Durable(unknown="tell_model")


class Lead(Clerk):
    """Has a clerk."""

    class Meta(Clerk.Meta):
        subagents = [Clerk]


class Starter(Clerk):
    """Hands its runs to the clerk."""

    class Meta(Clerk.Meta):
        handoffs = [Clerk]


class Keeper(Clerk):
    """Remembers its sessions."""

    class Meta(Clerk.Meta):
        memory = MetastoreMemory()


class Sum(BaseModel):
    """What a typed answer comes to."""

    total: int


class Typed(Clerk):
    """Answers in a type."""

    class Meta(Clerk.Meta):
        output = Sum


class Doomed(Clerk):
    """Cannot even be begun."""

    def get_system(self):
        os.kill(os.getpid(), signal.SIGKILL)
