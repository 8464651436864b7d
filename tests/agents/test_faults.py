"""Faults that users of other frameworks met, as they must go here."""

import asyncio
import contextvars
import threading

import pytest
from django.contrib.auth import get_user_model
from django.utils import translation

from mlango.agents import Agent, tool
from mlango.agents.providers import ScriptedProvider, ToolCall
from mlango.exceptions import ProviderUnavailable
from mlango.models import Approval

charged = []
who = contextvars.ContextVar("who", default="nobody")


@tool
def charge(amount: int) -> str:
    """Charge."""
    charged.append(amount)
    return "charged"


@pytest.fixture(autouse=True)
def _no_charges():
    charged.clear()


class Desk(Agent):
    class Meta:
        tools = [charge]
        tracing = False


def call(name, id, **arguments):
    return ToolCall(id, name, arguments)


def test_a_retry_repeats_the_model_call_and_no_tool_call(settings):
    settings.MLANGO = {**settings.MLANGO, "LLM_RETRY_BASE_DELAY": 0}
    down = ProviderUnavailable("down")
    model = ScriptedProvider([[call("charge", "a", amount=5)], down, down, "ok"])
    run = Desk().run("hi", provider=model)
    assert (run.text, charged) == ("ok", [5])
    assert len(model.calls) == 4
    assert model.calls[1].messages == model.calls[2].messages == model.calls[3].messages


class TestContext:
    """Tools see who calls and in which language, alone or side by side."""

    seen: list = []

    @pytest.fixture
    def agent(self):
        self.seen.clear()

        def note(order):
            self.seen.append((order, who.get(), translation.get_language()))
            who.set(f"tool {order}")

        @tool
        def plain(order: int) -> str:
            """Look."""
            note(order)
            return "ok"

        @tool(thread_sensitive=False)
        def pooled(order: int) -> str:
            """Look."""
            note(order)
            return "ok"

        @tool
        async def later(order: int) -> str:
            """Look."""
            note(order)
            return "ok"

        class Looking(Agent):
            class Meta:
                tools = [plain, pooled, later]
                tracing = False

        return Looking()

    turns = ([call(name, name, order=1) for name in ("plain", "pooled", "later")], "ok")

    def check(self):
        assert sorted(self.seen) == [(1, "ann", "de")] * 3
        assert who.get() == "ann"

    def test_in_plain_code(self, agent):
        who.set("ann")
        with translation.override("de"):
            agent.run("hi", provider=ScriptedProvider(list(self.turns)))
        self.check()

    async def test_in_async_code(self, agent):
        who.set("ann")
        with translation.override("de"):
            await agent.arun("hi", provider=ScriptedProvider(list(self.turns)))
        self.check()


async def test_a_blocking_tool_does_not_stop_the_loop():
    released = threading.Event()

    @tool
    def wait() -> bool:
        """Wait."""
        return released.wait(30)

    class Waiting(Agent):
        class Meta:
            tools = [wait]
            tracing = False

    model = ScriptedProvider([[call("wait", "a")], "ok"])
    events = Waiting().astream("hi", provider=model)
    async for event in events:
        if event.kind == "tool_called":
            asyncio.get_running_loop().call_soon(released.set)
    assert events.run.tool_results[0].content == "true"


async def test_a_tool_that_swallows_the_cancellation_does_not_keep_the_run_alive():
    @tool
    async def stubborn() -> str:
        """Stay."""
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "stopped"

    class Stubborn(Agent):
        class Meta:
            tools = [stubborn]
            tracing = False

    model = ScriptedProvider([[call("stubborn", "a")], "and on"])
    stream = Stubborn().astream("hi", provider=model)
    async for event in stream:
        if event.kind == "tool_called":
            asyncio.get_running_loop().call_soon(stream.abort)
    assert stream.run.status == "cancelled"
    assert len(model.calls) == 1


@pytest.mark.django_db(transaction=True)
def test_an_approval_serves_one_call_whatever_is_said_later():
    @tool(approval=True)
    def pay(amount: int) -> str:
        """Pay."""
        charged.append(amount)
        return "paid"

    class Payer(Agent):
        class Meta:
            app_label = "faults"
            tools = [pay]

    ann = get_user_model().objects.create_user("ann")
    options = {"user": ann, "session_id": "s"}
    turns = ScriptedProvider([[call("pay", "a", amount=1)]])
    waiting = Payer().run("hi", provider=turns, **options)
    Approval.objects.get().approve(by=ann)
    done = Payer().resume(waiting, provider=ScriptedProvider(["Paid."]))
    for _ in range(3):
        Payer().run("more", provider=ScriptedProvider(["Yes."]), **options)
    again = ScriptedProvider([[call("pay", "a", amount=1)]])
    history = done.messages
    repeated = Payer().run("again", provider=again, history=history, user=ann)
    assert charged == [1]
    assert repeated.status == "waiting"
