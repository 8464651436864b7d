"""Code of a project inside a run: whatever it raises or waits for, others go on."""

import asyncio
import gc
import re
import signal
import threading

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.test import override_settings
from django.urls import path

from mlango.agents import Agent, Approval, BufferMemory, Guardrail, Hooks, Limits, Memory, tool
from mlango.agents.execution import execute_now
from mlango.agents.providers import Completion, Provider, ScriptedProvider, ToolCall, Usage
from mlango.exceptions import RunError
from mlango.models import Trace
from tests.http import over_asgi, over_wsgi
from tests.wires import assert_sendable


@tool
def look() -> str:
    """Look."""
    return "seen"


def guardrail(name, function):
    """Return a guardrail whose one method calls ``function``."""
    return type("Check", (Guardrail,), {name: lambda self, *args: function()})()


def asker(function):
    """Return a tool that needs an approval if ``function`` says so."""

    @tool(approval=Approval(when=lambda arguments: function()))
    def look() -> str:
        """Look."""
        return "seen"

    return look


@tool(approval=True)
def pay() -> str:
    """Pay."""
    return "paid"


# How a function becomes part of an agent: what its class has, its Meta, and options of its run.
PLACES = {
    "get_system": lambda f: ({"get_system": lambda self: f() or "x"}, {}, {}),
    "get_tools": lambda f: ({"get_tools": lambda self: f() or [look]}, {}, {}),
    "get_model": lambda f: ({"get_model": lambda self: f() or ""}, {}, {}),
    "transform_context": lambda f: (
        {"transform_context": lambda self, messages, ctx: f() or messages},
        {},
        {},
    ),
    "before_model": lambda f: ({}, {"hooks": [Hooks(before_model=lambda *args: f())]}, {}),
    "after_model": lambda f: ({}, {"hooks": [Hooks(after_model=lambda *args: f())]}, {}),
    "before_tool": lambda f: ({}, {"hooks": [Hooks(before_tool=lambda *args: f())]}, {}),
    "after_tool": lambda f: ({}, {"hooks": [Hooks(after_tool=lambda *args: f())]}, {}),
    "check_input": lambda f: ({}, {"guardrails": [guardrail("check_input", f)]}, {}),
    "check_output": lambda f: ({}, {"guardrails": [guardrail("check_output", f)]}, {}),
    "check_tool_call": lambda f: ({}, {"guardrails": [guardrail("check_tool_call", f)]}, {}),
    "when": lambda f: ({}, {"tools": [asker(f)]}, {}),
    "approve": lambda f: ({}, {"tools": [pay]}, {"approve": lambda request: f() or True}),
    "provider": lambda f: ({}, {}, {"provider": Calling(f)}),
    "memory.load": lambda f: ({}, {"memory": Remembering(load=f)}, {"session_id": "s"}),
}


def later(function):
    """Return an async function that calls ``function``."""

    async def call(*args):
        function()

    return call


# The same for a function that async code calls.
ASYNC_PLACES = {
    "async get_system": lambda f: ({"get_system": later(f)}, {}, {}),
    "async before_model": lambda f: ({}, {"hooks": [Hooks(before_model=later(f))]}, {}),
    "async after_model": lambda f: ({}, {"hooks": [Hooks(after_model=later(f))]}, {}),
    "async before_tool": lambda f: ({}, {"hooks": [Hooks(before_tool=later(f))]}, {}),
    "async after_tool": lambda f: ({}, {"hooks": [Hooks(after_tool=later(f))]}, {}),
    "async provider": lambda f: ({}, {}, {"provider": CallingLater(f)}),
    "async stream": lambda f: ({}, {}, {"provider": Streaming(f)}),
}


class Calling(Provider):
    """Calls a function before each answer."""

    name = "calling"
    offline = True

    def __init__(self, function):
        self.function = function

    def complete(self, **request):
        self.function()
        return Completion("done")


class CallingLater(Calling):
    async def acomplete(self, **request):
        self.function()
        return Completion("done")


class Streaming(Calling):
    async def astream(self, **request):
        yield "done"
        self.function()
        yield Completion("done")


class Remembering(Memory):
    """Calls a function before it recalls, or before it remembers."""

    def __init__(self, **functions):
        self._functions = functions

    def load(self, key):
        self._functions.get("load", list)()
        return []

    def append(self, key, messages):
        self._functions.get("append", list)()


def placed(place, function):
    """Return an agent that calls ``function`` somewhere, and the options of its run."""
    attributes, meta, options = (PLACES | ASYNC_PLACES)[place](function)
    base = {"app_label": "others", "tracing": False, "tools": [look]} | meta
    name = base["tools"][0].name
    turns = ScriptedProvider([[ToolCall("a", name, {})], "done"])
    agent = type("Placed", (Agent,), {"Meta": type("Meta", (), base), **attributes})
    return agent(), {"provider": turns, "raise_on_error": False} | options


class Odd(BaseException):
    """Is no Exception, as those are that nobody is to catch by accident."""


EXITS = [
    SystemExit,
    KeyboardInterrupt,
    asyncio.CancelledError,
    StopIteration,
    StopAsyncIteration,
    GeneratorExit,
    RecursionError,
    Odd,
]


@pytest.mark.parametrize("error", EXITS)
@pytest.mark.parametrize("place", PLACES | ASYNC_PLACES)
def test_an_exception_ends_the_run_at_most(place, error):
    def fail():
        raise error("out")

    agent, options = placed(place, fail)
    run = agent.run("hi", **options)
    assert run.status in ("failed", "stopped", "finished")
    assert run.status != "finished" or run.tool_results[0].is_error

    agent, options = placed(place, fail)
    assert asyncio.run(agent.arun("hi", **options)).status == run.status
    # And whoever comes next is served.
    agent, options = placed(place, lambda: None)
    assert agent.run("hi", **options).ok


@pytest.mark.parametrize("error", EXITS)
def test_a_memory_that_fails_takes_no_answer_away(error, caplog):
    def fail():
        raise error("what was said")

    agent = placed("before_model", lambda: None)[0]
    run = agent.run(
        "hi",
        provider=ScriptedProvider(["done"]),
        session_id="s",
        memory=Remembering(append=fail),
    )
    assert (run.status, run.text) == ("finished", "done")
    (told,) = [record for record in caplog.records if record.name == "mlango.sessions"]
    assert "did not keep the run" in told.getMessage()
    assert "what was said" not in caplog.text


@pytest.mark.parametrize("place", ["before_model", "get_system", "check_input", "before_tool"])
def test_a_ctrl_c_is_still_one(place, caplog):
    agent, options = placed(place, lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        agent.run("hi", **options)
    agent, options = placed(place, lambda: None)
    assert agent.run("hi", **options).ok
    gc.collect()
    assert not caplog.records  # asyncio tells of failures that nobody looked at


def test_a_provider_whose_own_task_was_cancelled_has_failed():
    class Cancelling(Provider):
        name = "cancelling"
        offline = True

        async def acomplete(self, **request):
            task = asyncio.ensure_future(asyncio.Event().wait())
            task.cancel()
            await task

    agent = placed("before_model", lambda: None)[0]
    with pytest.raises(RunError, match="CancelledError") as caught:
        agent.run("hi", provider=Cancelling())
    assert caught.value.run.status == "failed"


@pytest.mark.parametrize("place", PLACES)
def test_what_blocks_does_not_stop_the_event_loop(place):
    blocked, released = threading.Event(), threading.Event()

    def block():
        blocked.set()
        assert released.wait(30)

    async def main():
        agent, options = placed(place, block)
        running = asyncio.ensure_future(agent.arun("hi", **options))
        await asyncio.to_thread(blocked.wait, 30)
        released.set()  # which nobody would if the loop stood still
        return await running

    run = asyncio.run(main())
    assert (run.status, run.error) == ("finished", "")


# -- tools that cross between plain and async code ------------------------------------------------


async def make_group(name):
    await Group.objects.acreate(name=name)
    return f"made {name}"


@tool
def make_in_plain_code(name: str) -> str:
    """Make a group."""
    return async_to_sync(make_group)(name)


@tool
async def make_in_async_code(name: str) -> str:
    """Make a group."""
    return await make_group(name)


@tool(thread_sensitive=False)
def make_in_a_pool(name: str) -> str:
    """Make a group."""
    return async_to_sync(make_group)(name)


TOOLS = [make_in_plain_code, make_in_async_code, make_in_a_pool]


class MakingProvider(ScriptedProvider):
    def __init__(self):
        calls = [ToolCall(each.name, each.name, {"name": each.name}) for each in TOOLS]
        super().__init__([calls, "done"])


class Maker(Agent):
    class Meta:
        app_label = "others"
        tools = TOOLS
        provider = "making"
        max_parallel_tools = 1  # SQLite has one writer


class Lasting(Maker):
    class Meta:
        durable = True


urlpatterns = [path("json/", Maker.as_endpoint()), path("stream/", Maker.as_stream_endpoint())]
WAYS = {
    "run": lambda user: Maker().run("hi"),
    "arun": lambda user: asyncio.run(Maker().arun("hi")),
    "async_to_sync": lambda user: async_to_sync(Maker().arun)("hi"),
    "stream": lambda user: list(Maker().stream("hi")),
    "durable": lambda user: Lasting().run("hi"),
    "queued": lambda user: execute_now(Lasting().enqueue("hi").pk),
    "wsgi": lambda user: over_wsgi("/json/", user),
    "wsgi stream": lambda user: over_wsgi("/stream/", user),
    "asgi": lambda user: over_asgi("/json/", user),
    "asgi stream": lambda user: over_asgi("/stream/", user),
}


@pytest.mark.django_db(transaction=True)
@override_settings(
    ROOT_URLCONF=__name__, MLANGO={"PROVIDERS": {"making": f"{__name__}.MakingProvider"}}
)
@pytest.mark.parametrize("way", WAYS)
def test_a_tool_may_cross_between_plain_and_async_code(way):
    WAYS[way](get_user_model().objects.create_user("ann"))
    names = set(Group.objects.values_list("name", flat=True))
    assert names == {each.name for each in TOOLS}


# -- what a run leaves behind --------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_a_run_that_is_stopped_between_two_calls_keeps_the_one_that_ended():
    @tool
    async def hang() -> str:
        """Hang."""
        await asyncio.Event().wait()

    class Two(Agent):
        class Meta:
            app_label = "others"
            tools = [look, hang]
            memory = BufferMemory()

    calls = [ToolCall("a", "look", {}), ToolCall("b", "hang", {}), ToolCall("c", "look", {})]
    stream = Two().stream("hi", provider=ScriptedProvider([calls]), session_id="s")
    for event in stream:
        if event.kind == "tool_finished" and event.tool_call_id == "c":
            stream.abort()
    assert [each.error_type for each in stream.run.tool_results] == ["", "cancelled", ""]
    assert stream.run.trace.messages == stream.run.messages

    model = ScriptedProvider(["Hello."])
    assert Two().run("again", provider=model, session_id="s").text == "Hello."
    assert_sendable(model.last_call.messages)
    assert "Cancelled" in str(model.last_call.messages)


@pytest.mark.django_db(transaction=True)
def test_a_model_that_only_calls_what_is_not_there_is_stopped_and_its_session_goes_on():
    class Kept(Agent):
        class Meta:
            app_label = "others"
            tools = [look]
            memory = BufferMemory()
            max_steps = 5

    names = ["nope", "invalid tool", "", "look ", "LOOK", "x" * 500, "näme", "a\0b"]
    turns = [[ToolCall("", name, {}) for name in names]] * 10
    run = Kept().run("hi", provider=ScriptedProvider(turns), session_id="s")
    assert (run.status, run.stop_reason, run.steps) == ("stopped", "max_steps", 5)
    assert {each.error_type for each in run.tool_results} == {"unknown"}
    assert all("look" in each.content for each in run.tool_results)
    assert run.trace.messages == run.messages

    model = ScriptedProvider([[ToolCall("", "look", {})], "Seen."])
    assert Kept().run("again", provider=model, session_id="s").text == "Seen."
    assert_sendable(model.last_call.messages)


def test_a_guess_of_what_was_used_counts_for_the_limit():
    step = Completion(tool_calls=[ToolCall("", "look", {})], usage=Usage(60, 10, estimated=True))
    agent = placed("before_model", lambda: None)[0]
    run = agent.run("hi", provider=ScriptedProvider([step] * 9), limits=Limits(max_tokens=100))
    assert (run.budget.limit, run.budget.value) == ("max_tokens", 140)
    assert run.usage.estimated


class Answering(Provider):
    """Answers with what a function returns, in one piece."""

    def __init__(self, answer):
        self.answer = answer

    async def acomplete(self, **request):
        return self.answer()


class AnsweringInPieces(Answering):
    """Streams what a function returns."""

    async def astream(self, **request):
        yield self.answer()


def odd_answer(**fields):
    """Return what makes an answer that cannot be."""
    return lambda: Completion(**{"text": "hi", **fields})


NONSENSE = {
    "nothing": (lambda: None, "gave a NoneType"),
    "bytes": (lambda: b"hi", "gave a bytes"),
    "a dict": (lambda: {"text": "hi"}, "gave a dict"),
    "no usage": (odd_answer(usage=None), "usage of Completion() must be Usage(...), not None"),
    "no text": (odd_answer(text=None), "text of Completion() must be text, not None"),
    "calls that are none": (
        odd_answer(tool_calls=[{"name": "look"}]),
        "tool_calls of Completion() must be a list of ToolCall(...)",
    ),
}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("base", [Answering, AnsweringInPieces])
@pytest.mark.parametrize(("answer", "told"), NONSENSE.values(), ids=NONSENSE)
def test_a_provider_that_answers_nonsense_is_told_what_is_right(base, answer, told):
    with pytest.raises(RunError, match=re.escape(told)) as caught:
        Maker().run("hi", provider=base(answer), session_id="s")

    trace = Trace.objects.get()
    assert trace.status == caught.value.run.status == "failed"
    assert caught.value.run.describe()["status"] == "failed"
    assert Maker().run("hi", provider=ScriptedProvider(["Back."]), session_id="s").text == "Back."
