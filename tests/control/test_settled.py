"""What was settled where systems differ: steering now, order, barriers, outcomes, steps."""

import asyncio
import math
import threading
from decimal import Decimal

import pytest

from mlango.agents import Agent, Limits, Retry, Steered, tool
from mlango.agents.defaults import defaults_of
from mlango.agents.providers import Completion, ScriptedProvider, ToolCall
from mlango.exceptions import (
    Misconfigured,
    Misused,
    ProviderUnavailable,
    RunError,
    ToolDefinitionError,
)


class Talker(Agent):
    class Meta:
        app_label = "settled"
        tracing = False
        retry = Retry(max_retries=1, base_delay=0)


def kinds(events):
    return [event.kind for event in events]


def said_by_user(request):
    return [m["content"] for m in request.messages if m["role"] == "user"]


class Hanging(ScriptedProvider):
    """Says nothing at its first call, until that is ended; tells when it was asked and ended."""

    def __init__(self, turns, *, first=()):
        super().__init__(turns)
        self.first = first
        self.asked = threading.Event()
        self.ended = 0

    async def astream(self, **request):
        if self.calls:
            async for delta in super().astream(**request):
                yield delta
            return
        self.calls.append(None)
        self.turns.insert(0, None)
        try:
            for delta in self.first:
                yield delta
            self.asked.set()
            await asyncio.Event().wait()
        finally:
            self.ended += 1


class TestSteeringNow:
    """steer(now=True) ends a model call that has said nothing; else the message waits."""

    def test_a_model_call_is_ended_from_another_thread(self):
        model = Hanging(["Hello."])
        stream = Talker().stream("hi", provider=model)

        def steer():
            model.asked.wait()
            stream.steer("quick!", now=True)

        thread = threading.Thread(target=steer)
        thread.start()
        events = list(stream)
        thread.join()

        assert model.ended == 1
        assert said_by_user(model.last_call) == ["hi", "quick!"]
        assert [event.message for event in events if isinstance(event, Steered)] == ["quick!"]
        assert (stream.run.status, stream.run.text) == ("finished", "Hello.")

    async def test_and_in_async_code(self):
        model = Hanging(["Hello."])
        stream = Talker().astream("hi", provider=model)

        async def steer():
            await asyncio.to_thread(model.asked.wait)
            stream.steer("quick!", now=True)

        steering = asyncio.create_task(steer())
        events = [event async for event in stream]
        await steering
        assert model.ended == 1
        assert stream.run.text == "Hello."
        assert kinds(events).count("steered") == 1

    @pytest.mark.parametrize("at", ["started", "thinking"])
    def test_by_the_reader_of_an_event_before_the_model_is_asked(self, at):
        model = ScriptedProvider(["one", "two"])
        stream = Talker().stream("hi", provider=model)
        for event in stream:
            if event.kind == at and len(stream.run.messages) == 1:
                stream.steer("quick!", now=True)

        assert stream.run.text == "one"
        assert [said_by_user(request) for request in model.calls] == [["hi", "quick!"]]

    def test_while_a_failed_call_waits_to_be_tried_again(self):
        model = ScriptedProvider([ProviderUnavailable("busy", retry_after=3600), "one"])
        stream = Talker().stream("hi", provider=model)
        told = []
        for event in stream:
            told.append(event.kind)
            if event.kind == "retrying":
                stream.steer("quick!", now=True)

        assert stream.run.status == "finished"
        assert said_by_user(model.last_call) == ["hi", "quick!"]

    async def test_and_while_that_goes_on(self):
        model = ScriptedProvider([ProviderUnavailable("busy", retry_after=3600), "one"])
        stream = Talker().astream("hi", provider=model)

        async def steer():
            stream.steer("quick!", now=True)

        async for event in stream:
            if event.kind == "retrying":
                steering = asyncio.create_task(steer())
        await steering
        assert (stream.run.status, stream.run.text) == ("finished", "one")

    def test_a_call_that_has_said_something_goes_on(self):
        model = ScriptedProvider(["one two", "three"])
        stream = Talker().stream("hi", provider=model)
        for event in stream:
            if event.kind == "text_chunk" and event.text.startswith("one"):
                stream.steer("quick!", now=True)

        assert [m["content"] for m in stream.run.messages] == ["hi", "one two", "quick!", "three"]

    def test_a_call_that_has_only_begun_a_thought_goes_on(self):
        model = ScriptedProvider([Completion("one", reasoning="Hm."), "two"])
        stream = Talker().stream("hi", provider=model)
        for event in stream:
            if event.kind == "reasoning_chunk":
                stream.steer("quick!", now=True)
        assert [m["content"] for m in stream.run.messages] == ["hi", "one", "quick!", "two"]

    def test_a_running_tool_ends_and_the_rest_is_skipped(self):
        ran = []

        @tool(parallel=False)
        def note(n: int) -> str:
            """Note."""
            stream.steer("quick!", now=True)
            ran.append(n)
            return "noted"

        class Noter(Talker):
            class Meta:
                tools = [note]

        calls = [ToolCall("a", "note", {"n": 1}), ToolCall("b", "note", {"n": 2})]
        stream = Noter().stream("hi", provider=ScriptedProvider([calls, "done"]))
        list(stream)
        assert ran == [1]
        assert [result.error_type for result in stream.run.tool_results] == ["", "skipped"]
        assert stream.run.text == "done"

    def test_a_message_that_was_read_meanwhile_ends_nothing(self):
        stream = Talker().stream("hi", provider=ScriptedProvider(["one"]))
        for event in stream:
            if event.kind == "thinking":
                stream._run._hurry()
        assert (stream.run.text, stream.run.steps) == ("one", 1)

    def test_plain_steering_waits_for_the_answer(self):
        model = ScriptedProvider(["one", "two"])
        stream = Talker().stream("hi", provider=model)
        for event in stream:
            if event.kind == "thinking" and len(model.calls) == 0:
                stream.steer("when you can")
        assert [said_by_user(request) for request in model.calls] == [
            ["hi"],
            ["hi", "when you can"],
        ]

    @pytest.mark.django_db(transaction=True)
    def test_the_ended_call_is_a_span_and_the_rows_fold_to_the_messages(self):
        class Traced(Talker):
            class Meta:
                tracing = True

        model = Hanging(["Hello."])
        stream = Traced().stream("hi", provider=model)
        thread = threading.Thread(
            target=lambda: (model.asked.wait(), stream.steer("quick!", now=True))
        )
        thread.start()
        list(stream)
        thread.join()
        trace = stream.run.trace
        assert [s.error_type for s in trace.spans.filter(kind="llm")] == ["cancelled", ""]
        assert trace.messages == stream.run.messages


def test_a_reader_who_stops_a_run_that_waits_to_try_again_need_not_wait():
    model = ScriptedProvider([ProviderUnavailable("busy", retry_after=3600), "one"])
    stream = Talker().stream("hi", provider=model)
    for event in stream:
        if event.kind == "retrying":
            stream.abort()
    assert stream.run.status == "cancelled"


# -- calls of one step --------------------------------------------------------------------------


class Ledger:
    """Tools that note when they begin and end; ``wait`` goes on when all of a group began."""

    def __init__(self, group):
        self.notes = []
        self.group = group
        self.began = 0
        self.all_began = asyncio.Event()

    async def work(self, name):
        self.notes.append(f"+{name}")
        self.began += 1
        if self.began >= self.group:
            self.all_began.set()
        await self.all_began.wait()
        self.notes.append(f"-{name}")
        return name


def side_by_side(ledger, **options):
    @tool
    async def free(name: str) -> str:
        """Work beside others."""
        return await ledger.work(name)

    @tool(parallel=False)
    async def alone(name: str) -> str:
        """Work alone."""
        running = [n for n in ledger.notes if n[0] == "+"]
        ended = [n for n in ledger.notes if n[0] == "-"]
        assert len(running) == len(ended), ledger.notes
        ledger.notes.append(f"+{name}")
        await asyncio.sleep(0)
        ledger.notes.append(f"-{name}")
        return name

    meta = {"app_label": "settled", "tracing": False, "tools": [free, alone], **options}
    return type("Sides", (Agent,), {"Meta": type("Meta", (), meta)})()


def calls(*names):
    return [
        ToolCall(name, "alone" if name.startswith("x") else "free", {"name": name})
        for name in names
    ]


async def test_a_tool_that_is_not_parallel_is_a_barrier():
    ledger = Ledger(2)
    turns = [calls("a", "b", "x1", "x2", "c", "d"), "done"]
    done = await side_by_side(ledger).arun("go", provider=ScriptedProvider(turns))

    assert ledger.notes[:2] == ["+a", "+b"]
    assert set(ledger.notes[2:4]) == {"-a", "-b"}
    assert ledger.notes[4:8] == ["+x1", "-x1", "+x2", "-x2"]
    assert set(ledger.notes[8:]) == {"+c", "-c", "+d", "-d"}
    assert [result.content for result in done.tool_results] == ["a", "b", "x1", "x2", "c", "d"]


async def test_no_more_calls_run_at_once_than_the_agent_allows():
    ledger = Ledger(2)
    agent = side_by_side(ledger, max_parallel_tools=2)
    await agent.arun("go", provider=ScriptedProvider([calls("a", "b", "c", "d"), "done"]))
    at_once = highest = 0
    for note in ledger.notes:
        at_once += 1 if note[0] == "+" else -1
        highest = max(highest, at_once)
    assert highest == 2


async def test_one_at_a_time_is_in_call_order():
    ledger = Ledger(1)
    agent = side_by_side(ledger, max_parallel_tools=1)
    await agent.arun("go", provider=ScriptedProvider([calls("a", "b", "c"), "done"]))
    assert ledger.notes == ["+a", "-a", "+b", "-b", "+c", "-c"]


# -- an agent holds configuration only ----------------------------------------------------------


def test_one_agent_may_be_used_by_threads_at_once_and_keeps_nothing():
    agent, texts = Talker(), {}

    def use(name):
        model = ScriptedProvider([lambda request: f"{name}: {len(request.messages)}"] * 2)
        agent.run("first", provider=model)
        texts[name] = agent.run("second", provider=model).text

    threads = [threading.Thread(target=use, args=(name,)) for name in "abcdefgh"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == {name: f"{name}: 1" for name in "abcdefgh"}


def test_a_script_keeps_its_conversation_as_a_history():
    model = ScriptedProvider(["one", "two"])
    first = Talker().run("hi", provider=model)
    second = Talker().run("and?", provider=model, history=first.messages)
    assert [m["content"] for m in second.messages] == ["hi", "one", "and?", "two"]


# -- what raises and what is returned -----------------------------------------------------------

OUTCOMES = {
    "finished": (["done"], {}),
    "max_steps": ([calls("a")] * 2, {"max_steps": 1}),
    "budget_exceeded": ([calls("a")] * 2, {"limits": Limits(max_steps=1)}),
    "refusal": ([Completion("", stop_reason="refusal")], {}),
}


class Helper(Talker):
    class Meta:
        tools = [side_by_side(Ledger(1)).get_tools()[0]]


@pytest.mark.parametrize("name", OUTCOMES)
def test_every_outcome_but_failed_is_returned(name):
    turns, options = OUTCOMES[name]
    for run in (
        Helper().run("hi", provider=ScriptedProvider(turns), **options),
        asyncio.run(Helper().arun("hi", provider=ScriptedProvider(turns), **options)),
    ):
        assert name in (run.stop_reason, run.status)
        assert run.ok is (name == "finished")


def test_a_failed_run_raises_and_carries_the_run_unless_told_not_to():
    def fail(**options):
        model = ScriptedProvider([ProviderUnavailable("down", retryable=False)])
        return Talker().run("hi", provider=model, **options)

    with pytest.raises(RunError) as caught:
        fail()
    assert caught.value.run.status == "failed"
    assert fail(raise_on_error=False).error == "down"


@pytest.mark.parametrize("turn", ["done", ProviderUnavailable("down", retryable=False)])
def test_a_stream_ends_with_one_last_event_and_does_not_raise(turn):
    events = list(Talker().stream("hi", provider=ScriptedProvider([turn])))
    last = "finished" if turn == "done" else "failed"
    assert [kind for kind in kinds(events) if kind in ("finished", "failed")] == [last]
    assert kinds(events)[-1] == last


# -- steps and times ----------------------------------------------------------------------------

NO_COUNTS = [0, -1, "3", 1.5, True, math.inf]


@pytest.mark.parametrize("wrong", NO_COUNTS)
def test_a_number_of_steps_that_is_none_is_refused_when_the_class_is_made(wrong):
    with pytest.raises(Misconfigured, match="max_steps must be a whole number above 0, or None"):
        type("Wrong", (Agent,), {"Meta": type("Meta", (), {"max_steps": wrong})})


@pytest.mark.parametrize("wrong", NO_COUNTS)
def test_and_when_a_run_is_given_it(wrong):
    model = ScriptedProvider(["done"])
    with pytest.raises(Misused, match="max_steps must be a whole number above 0"):
        Talker().run("hi", max_steps=wrong, provider=model)
    assert model.calls == []


def test_steps_are_model_calls_twelve_unless_said_and_none_for_no_limit():
    class Endless(Helper):
        class Meta:
            max_steps = None

    assert defaults_of(Helper).bounds.max_steps == 12
    turns = [[ToolCall("", "free", {"name": "a"})]] * 20
    assert Helper().run("hi", provider=ScriptedProvider(turns)).steps == 12
    assert Endless().run("hi", provider=ScriptedProvider([*turns, "done"])).steps == 21


NO_TIMES = [0, -1, math.inf, math.nan, 10**400, "5", True, Decimal(5)]


@pytest.mark.parametrize("wrong", NO_TIMES)
def test_a_time_that_no_clock_counts_to_is_refused(wrong):
    with pytest.raises(Misconfigured, match="max_duration"):
        Limits(max_duration=wrong)
    if wrong == math.inf:
        return

    def call() -> str:
        """Call."""

    with pytest.raises(ToolDefinitionError, match="a number of seconds above 0"):
        tool(timeout=wrong)(call)


async def test_a_tool_may_take_as_long_as_it_wants(settings):
    settings.MLANGO = {**settings.MLANGO, "TOOL_TIMEOUT": 0.001}

    def looks(**options):
        @tool(**options)
        async def look() -> str:
            """Look."""
            await asyncio.sleep(0.02)
            return "seen"

        meta = {"app_label": "settled", "tracing": False, "tools": [look]}
        return type("Looker", (Agent,), {"Meta": type("Meta", (), meta)})()

    for options, error in (({}, "timeout"), ({"timeout": math.inf}, "")):
        model = ScriptedProvider([[ToolCall("a", "look", {})], "done"])
        run = await looks(**options).arun("hi", provider=model)
        assert [result.error_type for result in run.tool_results] == [error]
