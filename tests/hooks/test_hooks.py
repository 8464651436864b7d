"""Hooks: what code of the project may do before and after model calls and tool calls."""

import threading
from dataclasses import replace
from functools import partial
from itertools import chain, repeat

import pytest

from mlango.agents import (
    Agent,
    Halt,
    Hooks,
    TextChunk,
    ToolError,
    ToolFinished,
    allow,
    tool,
)
from mlango.agents.providers import ScriptedProvider
from mlango.agents.providers.scripted import call
from mlango.core.run import ToolOutcome
from mlango.exceptions import Misconfigured, RunError

called = []


@pytest.fixture(autouse=True)
def _no_calls():
    called.clear()


@tool
def order(number: int) -> str:
    """Look an order up."""
    called.append(number)
    return f"order {number}"


@tool
async def stock(sku: str) -> str:
    """Count what is there."""
    called.append(sku)
    return f"4 of {sku}"


def desk(hooks, **meta):
    options = {"hooks": hooks, "tools": [order, stock], "tracing": False, "abstract": True}
    return type("Desk", (Agent,), {"Meta": type("Meta", (), options | meta)})()


def run(hooks, *turns, **options):
    provider = ScriptedProvider(turns or ["ok"])
    return desk(hooks).run("hi", provider=provider, **options), provider


class Audit(Hooks):
    """Notes what passes, half of it in async methods."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def before_model(self, messages, ctx):
        self.seen.append(("before_model", ctx.step, len(messages)))

    async def after_model(self, completion, ctx):
        self.seen.append(("after_model", completion.stop_reason))

    async def before_tool(self, name, arguments, ctx):
        self.seen.append(("before_tool", name, arguments, ctx.tool_call_id))

    def after_tool(self, name, outcome, ctx):
        self.seen.append(("after_tool", name, outcome.content))


PASSED = [
    ("before_model", 0, 1),
    ("after_model", "tool_use"),
    ("before_tool", "order", {"number": 1}, "call_1"),
    ("after_tool", "order", "order 1"),
    ("before_model", 1, 3),
    ("after_model", "end_turn"),
]


def test_hooks_are_called_around_model_and_tool_calls():
    audit = Audit()
    result, _ = run(audit, call("order", number="1"), "ok")
    assert (result.text, audit.seen) == ("ok", PASSED)


async def test_hooks_are_called_in_async_runs_too():
    audit = Audit()
    provider = ScriptedProvider([call("order", number=1), "ok"])
    await desk([audit]).arun("hi", provider=provider)
    assert audit.seen == PASSED


def test_a_plain_hook_runs_in_the_callers_thread():
    threads = []
    hooks = Hooks(
        before_model=lambda messages, ctx: threads.append(threading.current_thread()),
        after_model=lambda completion, ctx: threads.append(threading.current_thread()),
        before_tool=lambda name, arguments, ctx: threads.append(threading.current_thread()),
        after_tool=lambda name, outcome, ctx: threads.append(threading.current_thread()),
    )
    run(hooks, call("stock", sku="a"), "ok")
    assert set(threads) == {threading.current_thread()}
    assert len(threads) == 6


def test_a_hook_changes_what_the_model_reads_and_not_the_conversation():
    def shorten(messages, ctx):
        messages[0]["content"] = "changed in place"
        return [*messages, {"role": "user", "content": "Be brief."}]

    result, provider = run(Hooks(before_model=shorten))
    assert provider.last_call.last_text == "Be brief."
    assert provider.last_call.messages[0]["content"] == "changed in place"
    assert [message["content"] for message in result.messages] == ["hi", "ok"]


def test_a_hook_that_drops_a_result_leaves_a_request_that_can_be_sent():
    def drop(messages, ctx):
        return [message for message in messages if message["role"] != "tool"]

    _, provider = run(Hooks(before_model=drop), call("order", number=1), "ok")
    assert [message["role"] for message in provider.last_call.messages] == [
        "user",
        "assistant",
        "tool",
    ]


def test_each_model_call_is_hooked_anew():
    count = chain(["first"], repeat("later"))

    def say(messages, ctx):
        return [*messages, {"role": "user", "content": next(count)}]

    _, provider = run(Hooks(before_model=say), call("order", number=1), "ok")
    assert [len(each.messages) for each in provider.calls] == [2, 4]


def test_a_hook_changes_what_the_model_said():
    result, _ = run(Hooks(after_model=lambda completion, ctx: completion.text.upper()), "fine")
    assert result.text == result.messages[-1]["content"] == "FINE"


def test_a_hook_may_take_the_tool_calls_out_of_an_answer():
    def forbid(completion, ctx):
        return replace(completion, text="No tools.", tool_calls=[], stop_reason="end_turn")

    result, _ = run(Hooks(after_model=forbid), call("order", number=1))
    assert (result.text, called) == ("No tools.", [])


def test_a_hook_changes_the_arguments_of_a_call():
    def other(name, arguments, ctx):
        return {**arguments, "number": 7}

    result, _ = run(Hooks(before_tool=other), call("order", number=1), "ok")
    assert called == [7]
    assert result.tool_results[0].content == "order 7"


def test_a_hook_refuses_a_call_with_a_tool_error():
    async def refuse(name, arguments, ctx):
        if name == "order":
            raise ToolError("Orders are closed.")

    result, _ = run(
        Hooks(before_tool=refuse), [call("order", number=1), call("stock", sku="a")], "ok"
    )
    assert called == ["a"]
    assert [each.content for each in result.tool_results] == ["Orders are closed.", "4 of a"]


@pytest.mark.parametrize("name", ["before_model", "after_model", "before_tool", "after_tool"])
def test_a_hook_ends_the_run_with_a_halt(name):
    def halt(*args):
        raise Halt("closed", "The shop is closed.")

    result, _ = run(Hooks(**{name: halt}), call("order", number=1), "ok")
    assert (result.status, result.stop_reason) == ("stopped", "closed")
    assert result.error == "The shop is closed."
    roles = [message["role"] for message in result.messages]
    assert roles.count("tool") == (1 if "tool" in name else 0)


def test_a_hook_changes_what_the_model_reads_of_a_result():
    def mask(name, outcome, ctx):
        return replace(outcome, content=outcome.content.replace("1", "*"))

    _, provider = run(Hooks(after_tool=mask), call("order", number=1), "ok")
    assert provider.last_call.last_text == "order *"


def test_a_hook_may_return_any_value_for_a_result():
    _, provider = run(
        Hooks(after_tool=lambda name, outcome, ctx: {"was": outcome.content}),
        call("order", number=1),
        "ok",
    )
    assert provider.last_call.last_text == '{"was": "order 1"}'


async def test_nobody_hears_of_a_result_before_it_was_hooked():
    async def slow_mask(name, outcome, ctx):
        ctx.progress("wakes the loop")
        return "masked"

    provider = ScriptedProvider([[call("order", number=1), call("stock", sku="a")], "ok"])
    stream = desk(Hooks(after_tool=slow_mask)).astream("hi", provider=provider)
    told = [event.content async for event in stream if isinstance(event, ToolFinished)]
    assert told == ["masked", "masked"]


@pytest.mark.parametrize("name", ["before_tool", "after_tool"])
def test_a_broken_tool_hook_is_a_failed_call(name):
    def broken(*args):
        raise KeyError("secret")

    result, _ = run(Hooks(**{name: broken}), call("order", number=1), "ok")
    outcome = result.tool_results[0]
    assert result.ok
    assert (outcome.is_error, outcome.error_type) == (True, "KeyError")
    assert "secret" not in outcome.content
    assert called == ([] if name == "before_tool" else [1])


@pytest.mark.parametrize("name", ["before_model", "after_model"])
def test_a_broken_model_hook_fails_the_run(name):
    def broken(*args):
        raise KeyError("secret")

    with pytest.raises(RunError) as caught:
        run(Hooks(**{name: broken}))
    assert caught.value.run.status == "failed"
    assert "secret" not in caught.value.run.error


@pytest.mark.parametrize(
    ("name", "value"),
    [("before_model", "text"), ("after_model", 7), ("before_tool", "text")],
)
def test_a_hook_that_returns_what_nobody_can_use_is_a_broken_one(name, value):
    result, _ = run(
        Hooks(**{name: lambda *args: value}),
        call("order", number=1),
        "ok",
        raise_on_error=False,
    )
    failed = result.tool_results[0].is_error if name == "before_tool" else not result.ok
    assert failed
    assert called == []


async def test_a_stopped_run_does_not_wait_for_its_hook():
    entered, leave = threading.Event(), threading.Event()

    def stuck(messages, ctx):
        entered.set()
        leave.wait()

    stream = desk(Hooks(before_model=stuck)).astream("hi", provider=ScriptedProvider(["ok"]))

    def stop():
        entered.wait()
        stream.abort()

    stopper = threading.Thread(target=stop)
    stopper.start()
    try:
        events = [event async for event in stream]
    finally:
        leave.set()
        stopper.join()
    assert events[-1].result.status == "cancelled"


async def test_a_stream_goes_on_word_by_word_under_hooks():
    provider = ScriptedProvider(["one two three"])
    stream = desk(Hooks(after_model=lambda completion, ctx: None)).astream("hi", provider=provider)
    texts = [event.text async for event in stream if isinstance(event, TextChunk)]
    assert texts == ["one ", "two ", "three"]


class Noting:
    """A hook that is an object, and does its work in an async method."""

    async def __call__(self, name, arguments, ctx):
        called.append(name)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "hook", [partial(lambda to, name, arguments, ctx: to.append(name), called), Noting()]
)
def test_a_hook_may_be_any_callable_and_the_run_keeps_its_trace(hook):
    agent = desk(Hooks(before_tool=hook), tracing=True)

    ran = agent.run("hi", provider=ScriptedProvider([call("order", number=1), "ok"]))

    assert called == ["order", 1]
    assert ran.trace.fingerprint == agent._meta.fingerprint()


@pytest.mark.parametrize("name", ["before_tol", "before_call", "after_run", "beforetool"])
def test_a_misspelt_hook_is_refused_when_it_is_declared(name):
    hint = r"(has no hook|overrides nothing).* Did you mean '(before|after)_(tool|run)'\?"
    with pytest.raises(Misconfigured, match=hint):
        type("Watch", (Hooks,), {name: lambda self, name, arguments, ctx: None})
    with pytest.raises(Misconfigured, match=r"Hooks\(\) has no hook .* Hooks are: before_model"):
        Hooks(**{name: lambda *args: None})


def test_hooks_may_have_other_methods():
    class Watch(Hooks):
        def before_tool(self, name, arguments, ctx):
            self.note(name)

        def note(self, name):
            called.append(name)

    run(Watch(), call("order", number=1), "ok")
    assert called == ["order", 1]


@pytest.mark.parametrize(
    ("hook", "words"),
    [
        ("log", "before_tool must be a function, not 'log'"),
        (lambda name, arguments: None, r"before_tool must take \(name, arguments, ctx\)"),
    ],
)
def test_a_hook_that_cannot_be_called_is_refused_when_it_is_declared(hook, words):
    with pytest.raises(Misconfigured, match=words):
        Hooks(before_tool=hook)

    def method(self, name, arguments):
        """Take one argument too few."""

    with pytest.raises(Misconfigured, match=r"Short: before_tool must take"):
        desk(type("Short", (Hooks,), {"before_tool": method}))


def test_what_hooks_changed_is_what_a_rule_looks_at():
    asked = []

    def note(arguments, ctx):
        asked.append(arguments)
        return True

    hooks = Hooks(before_tool=lambda name, arguments, ctx: {"number": 9})
    agent = desk(hooks, permissions=[allow("order", when=note)])
    agent.run("hi", provider=ScriptedProvider([call("order", number=1), "ok"]))
    assert asked == [{"number": 9}]


def test_hooks_are_called_in_their_order():
    seen = []
    hooks = [
        Hooks(after_tool=lambda name, outcome, ctx: f"{outcome.content}, first"),
        Hooks(after_tool=lambda name, outcome, ctx: seen.append(outcome.content)),
    ]
    run(hooks, call("order", number=1), "ok")
    assert seen == ["order 1, first"]


def test_what_is_no_hooks_is_refused_when_the_class_is_made():
    with pytest.raises(Misconfigured, match="Subclass Hooks"):
        desk([print])
    assert isinstance(desk(Audit)._meta.hooks[0], Audit)


def test_an_outcome_says_what_a_call_came_to():
    kept = []
    run(
        Hooks(after_tool=lambda name, outcome, ctx: kept.append(outcome)),
        call("order", number=1),
        "ok",
    )
    assert isinstance(kept[0], ToolOutcome)
