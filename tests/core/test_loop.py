"""The loop: what happens in a run, in which order, however it ends."""

import asyncio
import gc
import sys
import threading
import weakref

import pytest
from asgiref.sync import sync_to_async

from mlango.agents import (
    Agent,
    BufferMemory,
    Context,
    Failed,
    Finished,
    ProviderError,
    RunError,
    TextChunk,
    ToolCalled,
    ToolError,
    ToolFinished,
    tool,
)
from mlango.agents.providers import Completion, Provider, ScriptedProvider, ToolCall, Usage
from mlango.core.messages import open_calls
from mlango.exceptions import Misused, ProviderUnavailable, RateLimited


def call(name, id="", **arguments):
    return ToolCall(id, name, arguments)


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
async def add_async(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def broken() -> str:
    """Fail."""
    raise ValueError("the password is hunter2")


class Adder(Agent):
    """Adds numbers."""

    class Meta:
        model = "test"
        system = "Add."
        tools = [add, add_async, broken]
        tracing = False


def run(turns, message="hi", agent=Adder, **options):
    return agent().run(message, provider=ScriptedProvider(turns), **options)


def roles(result):
    return [message["role"] for message in result.messages]


def test_an_answer_ends_the_run():
    result = run(["hello"])

    assert (result.output, result.status, result.stop_reason) == ("hello", "finished", "end_turn")
    assert result.ok
    assert result.steps == 1
    assert str(result) == "hello"
    assert roles(result) == ["user", "assistant"]


@pytest.mark.parametrize("name", ["add", "add_async"])
def test_a_tool_call_is_answered_and_the_model_asked_again(name):
    provider = ScriptedProvider([[call(name, a=1, b=2)], "three"])

    result = Adder().run("1 + 2?", provider=provider)

    assert result.output == "three"
    assert result.tools_used == [name]
    assert result.tool_results[0].content == "3"
    assert roles(result) == ["user", "assistant", "tool", "assistant"]
    assert provider.calls[1].messages[-1]["content"] == "3"


def test_arguments_are_coerced_and_a_wrong_one_is_told_to_the_model():
    result = run([[call("add", a="1", b=2), call("add", a="x", b=2)], "ok"])

    good, bad = result.tool_results
    assert good.content == "3"
    assert bad.is_error
    assert bad.error_type == "validation"
    assert "a:" in bad.content


@pytest.mark.parametrize("nothing", ["", None, " ", "null", "{}"])
def test_a_call_of_a_tool_without_parameters_may_say_nothing(nothing):
    @tool
    def today() -> str:
        """Tell the day."""
        return "Monday"

    class Calendar(Adder):
        class Meta:
            tools = [today]

    provider = ScriptedProvider([[ToolCall("a", "today", nothing)], "ok"])
    result = Calendar().run("hi", provider=provider)

    assert result.tool_results[0].content == "Monday"
    (sent,) = provider.last_call.messages[1]["tool_calls"]
    assert sent["function"]["arguments"] == "{}"


def test_a_tool_that_raises_tells_its_class_and_a_reference_only():
    result = run([[call("broken")], "ok"])

    outcome = result.tool_results[0]
    assert outcome.is_error
    assert "ValueError" in outcome.content
    assert "hunter2" not in outcome.content
    assert result.ok


def test_an_agent_may_disclose_errors():
    class Open(Adder):
        class Meta:
            disclose_errors = True

    result = run([[call("broken")], "ok"], agent=Open)

    assert result.tool_results[0].content == "ValueError: the password is hunter2"


def test_a_tool_error_reaches_the_model_word_for_word():
    @tool
    def refuse() -> str:
        """Refuse."""
        raise ToolError("Ticket ids start with T-.")

    class Refuser(Adder):
        class Meta:
            tools = [refuse]

    result = run([[call("refuse")], "ok"], agent=Refuser)

    assert result.tool_results[0].content == "Ticket ids start with T-."


def test_an_unknown_tool_is_answered_with_those_that_exist():
    result = run([[call("ad")], "ok"])

    assert result.tool_results[0].error_type == "unknown"
    assert "Did you mean 'add'?" in result.tool_results[0].content


@pytest.mark.parametrize(
    "error",
    [
        SystemExit,
        KeyboardInterrupt,
        GeneratorExit,
        StopIteration,
        StopAsyncIteration,
        asyncio.CancelledError,
        RecursionError,
        MemoryError,
    ],
)
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("calls", [1, 3])
def test_no_exception_of_a_tool_gets_past_its_call(error, asynchronous, calls):
    if asynchronous:

        @tool
        async def bad() -> str:
            """Fail."""
            raise error("x")
    else:

        @tool
        def bad() -> str:
            """Fail."""
            raise error("x")

    class Bad(Adder):
        class Meta:
            tools = [bad]

    result = run([[call("bad")] * calls, "ok"], agent=Bad)

    assert result.ok
    told = [(each.is_error, each.error_type) for each in result.tool_results]
    assert told == [(True, error.__name__)] * calls


def test_results_are_in_call_order_whatever_ends_first():
    first, second = threading.Event(), threading.Event()

    @tool(thread_sensitive=False)
    def slow() -> str:
        """Wait for the others."""
        first.wait(10)
        return "slow"

    @tool(thread_sensitive=False)
    def middle() -> str:
        """Wait for one."""
        second.wait(10)
        first.set()
        return "middle"

    @tool
    async def fast() -> str:
        """Wait for nobody."""
        second.set()
        return "fast"

    class Three(Adder):
        class Meta:
            tools = [slow, middle, fast]

    stream = Three().stream(
        "go", provider=ScriptedProvider([[call("slow"), call("middle"), call("fast")], "ok"])
    )
    ended = [event.name for event in stream if isinstance(event, ToolFinished)]

    assert ended[0] == "fast"
    assert [outcome.content for outcome in stream.run.tool_results] == ["slow", "middle", "fast"]


def test_run_and_the_last_event_of_stream_agree():
    turns = [[call("add", a=1, b=2)], "three"]
    stream = Adder().stream("hi", provider=ScriptedProvider(turns))
    events = list(stream)
    result = run(turns)

    last = events[-1]
    assert isinstance(last, Finished)
    assert [event.seq for event in events] == list(range(len(events)))
    ours, theirs = result.describe(), last.result.describe()
    for varying in ("trace", "elapsed", "tool_results"):
        del ours[varying], theirs[varying]
    assert ours == theirs


def test_text_comes_as_it_is_said():
    events = list(Adder().stream("hi", provider=ScriptedProvider(["one two three"])))

    chunks = [event.text for event in events if isinstance(event, TextChunk)]
    assert len(chunks) > 1
    assert "".join(chunks) == "one two three"


def test_the_number_of_steps_is_limited():
    result = run([[call("add", a=1, b=2)]] * 3, max_steps=2)

    assert (result.status, result.stop_reason, result.steps) == ("stopped", "max_steps", 2)
    assert not result.ok
    assert not open_calls(result.messages)


@pytest.mark.parametrize("reason", ["refusal", "content_filter"])
def test_a_refusal_is_no_success_and_runs_no_tool(reason):
    turn = Completion("no", [call("add", a=1, b=2)], stop_reason=reason)
    result = run([turn])

    assert (result.status, result.stop_reason) == ("stopped", reason)
    assert [outcome.error_type for outcome in result.tool_results] == ["cancelled"]


def test_a_cut_tool_call_never_runs_and_three_in_a_row_stop_the_run():
    cut = Completion("", [ToolCall("", "add", '{"a": 1')], stop_reason="max_tokens")
    result = run([cut, cut, cut])

    assert (result.status, result.stop_reason) == ("stopped", "max_tokens")
    assert "cut" in result.tool_results[0].content
    assert not open_calls(result.messages)


def test_a_paused_turn_is_sent_again_as_it_is():
    provider = ScriptedProvider([Completion("", stop_reason="pause_turn"), "done"])
    result = Adder().run("hi", provider=provider)

    assert result.output == "done"
    assert len(provider.calls) == 2


def test_an_error_that_may_pass_is_tried_again(settings):
    settings.MLANGO = {**settings.MLANGO, "LLM_RETRY_BASE_DELAY": 0}
    provider = ScriptedProvider([ProviderUnavailable("down"), RateLimited("slow"), "ok"])

    events = list(Adder().stream("hi", provider=provider))

    kinds = [event.kind for event in events]
    assert kinds.count("retrying") == 2
    assert events[-1].output == "ok"


def test_a_failed_run_raises_with_its_work(settings):
    settings.MLANGO = {**settings.MLANGO, "LLM_MAX_RETRIES": 0}
    turns = [[call("add", a=1, b=2)], ProviderUnavailable("down")]

    with pytest.raises(ProviderError, match="down") as caught:
        run(turns)

    assert caught.value.run.status == "failed"
    assert caught.value.run.tools_used == ["add"]
    assert run(turns, raise_on_error=False).status == "failed"


def test_a_fault_in_a_provider_is_a_run_error_without_details_in_the_event():
    class Faulty(Provider):
        name = "faulty"

        def complete(self, **request):
            raise RuntimeError("secret")

    events = list(Adder().stream("hi", provider=Faulty()))
    assert isinstance(events[-1], Failed)
    assert "secret" not in events[-1].error
    with pytest.raises(RunError, match="secret"):
        Adder().run("hi", provider=Faulty())


def test_a_provider_written_for_complete_works():
    class Plain(Provider):
        name = "plain"

        def complete(self, *, model, messages, system="", tools=None, max_tokens=4096, **kw):
            return Completion(f"{model}: {messages[-1]['content']} {system}", usage=Usage(3, 4))

    result = Adder().run("hi", provider=Plain())

    assert result.output == "test: hi Add."
    assert result.usage.total_tokens == 7


async def test_a_run_that_has_ended_is_not_left_to_the_garbage_collector():
    turns = [[call("add_async", a=1, b=2)], "3"]
    gc.disable()
    try:
        stream = Adder().astream("hi", provider=ScriptedProvider(turns))
        ended = weakref.ref(stream._run)
        async for _ in stream:
            pass
        del stream

        assert ended() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ('{"a": 1, "b": 2}', {"a": 1, "b": 2}),
        ({"a": 1, "b": 2}, {"a": 1, "b": 2}),
        ('{"a": 1', '{"a": 1'),
        ("[1, 2]", "[1, 2]"),
        ('{"a": NaN}', '{"a": NaN}'),
    ],
)
def test_readers_are_told_the_arguments_that_a_model_wrote_as_text(written, told):
    turns = [[ToolCall("", "add", written)], "done"]
    events = list(Adder().stream("hi", provider=ScriptedProvider(turns)))
    assert [event.arguments for event in events if isinstance(event, ToolCalled)] == [told]


def test_leaving_a_stream_stops_the_run_and_pairs_its_calls():
    stream = Adder().stream("hi", provider=ScriptedProvider([[call("add", a=1, b=2)], "no"]))
    for event in stream:
        if isinstance(event, ToolCalled):
            break
    stream.close()

    assert stream.run.status == "cancelled"
    assert not open_calls(stream.run.messages)
    assert stream.run.tool_results[0].error_type == "cancelled"


def test_abort_keeps_the_text_that_was_said():
    stream = Adder().stream("hi", provider=ScriptedProvider(["one two three"]))
    events = []
    for event in stream:
        events.append(event)
        if isinstance(event, TextChunk):
            stream.abort()

    assert stream.run.status == "cancelled"
    assert stream.run.messages[-1]["role"] == "assistant"
    assert isinstance(events[-1], Finished)


def test_steering_skips_the_calls_that_have_not_started():
    ran = []

    @tool(parallel=False)
    def note(n: int) -> str:
        """Note."""
        ran.append(n)
        return "ok"

    class Noter(Adder):
        class Meta:
            tools = [note]

    provider = ScriptedProvider([[call("note", n=1), call("note", n=2), call("note", n=3)], "ok"])
    stream = Noter().stream("go", provider=provider)
    for event in stream:
        if isinstance(event, ToolFinished) and not event.is_error:
            stream.steer("stop that")

    assert ran == [1]
    assert [outcome.error_type for outcome in stream.run.tool_results] == [
        "",
        "skipped",
        "skipped",
    ]
    assert roles(stream.run) == [
        "user", "assistant", "tool", "tool", "tool", "user", "assistant",
    ]  # fmt: skip
    assert provider.calls[1].messages[-1]["content"] == "stop that"


def test_follow_ups_are_read_one_at_a_time_when_the_answer_is_there():
    provider = ScriptedProvider(["a", "b", "c"])
    stream = Adder().stream("1", provider=provider)
    for event in stream:
        if event.kind == "started":
            stream.follow_up("2")
            stream.follow_up("3")

    assert stream.run.output == "c"
    assert [message["content"] for message in stream.run.messages] == [
        "1",
        "a",
        "2",
        "b",
        "3",
        "c",
    ]


def test_progress_and_artifacts_of_a_tool_are_events():
    @tool
    def report(ctx: Context) -> str:
        """Report."""
        ctx.progress("half")
        ctx.artifact(b"x", "text/plain", "a.txt")
        return "done"

    class Reporter(Adder):
        class Meta:
            tools = [report]

    stream = Reporter().stream("go", provider=ScriptedProvider([[call("report")], "ok"]))
    kinds = [event.kind for event in stream]

    assert "tool_progress" in kinds
    assert "artifact_added" in kinds
    assert stream.run.artifacts[0].data == b"x"


def test_a_slow_tool_is_told_to_the_model_as_a_timeout():
    @tool(timeout=0.02)
    async def stuck() -> str:
        """Never end."""
        await asyncio.Event().wait()
        return ""

    class Stuck(Adder):
        class Meta:
            tools = [stuck]

    result = run([[call("stuck")], "ok"], agent=Stuck)

    assert result.ok
    assert result.tool_results[0].error_type == "timeout"


def test_a_silent_provider_is_a_timeout(settings):
    settings.MLANGO = {**settings.MLANGO, "LLM_CHUNK_TIMEOUT": 0.02, "LLM_MAX_RETRIES": 0}

    class Silent(Provider):
        name = "silent"

        async def acomplete(self, **request):
            await asyncio.Event().wait()

    with pytest.raises(ProviderError, match=r"'silent' did not send anything for 0\.02 seconds"):
        Adder().run("hi", provider=Silent())


def test_memory_recalls_whole_turns_per_session():
    class Remembering(Adder):
        class Meta:
            memory = BufferMemory(k=4)

    agent = Remembering()
    for number in range(3):
        provider = ScriptedProvider([[call("add", a=1, b=1)], f"answer {number}"])
        result = agent.run(f"question {number}", session_id="", provider=provider, history=None)
    assert roles(result) == ["user", "assistant", "tool", "assistant"]


def test_a_blocking_call_in_a_running_loop_names_the_async_one():
    async def inside():
        Adder().run("hi", provider=ScriptedProvider(["x"]))

    with pytest.raises(Misused, match=r"Adder\(\)\.arun"):
        asyncio.run(inside())


async def test_arun_gives_the_same_as_run():
    result = await Adder().arun("hi", provider=ScriptedProvider([[call("add", a=1, b=2)], "3"]))

    assert result.output == "3"
    assert result.tool_results[0].content == "3"


async def test_many_runs_side_by_side_do_not_mix():
    async def one(number):
        provider = ScriptedProvider([[call("add", a=number, b=0)], str(number)])
        return await Adder().arun("hi", provider=provider)

    results = await asyncio.gather(*(one(number) for number in range(20)))

    assert [result.tool_results[0].content for result in results] == [str(n) for n in range(20)]


async def test_a_blocking_tool_does_not_stop_the_event_loop():
    other = threading.Event()

    @tool
    def wait() -> str:
        """Wait for the other task."""
        return str(other.wait(10))

    class Waiter(Adder):
        class Meta:
            tools = [wait]

    async def set_it():
        other.set()

    provider = ScriptedProvider([[call("wait")], "ok"])
    result, _ = await asyncio.gather(Waiter().arun("hi", provider=provider), set_it())

    assert result.tool_results[0].content == "True"


async def test_cancelling_the_task_stores_the_run_as_cancelled():
    asked = asyncio.Event()

    class Silent(Provider):
        name = "silent"

        async def acomplete(self, **request):
            asked.set()
            await asyncio.Event().wait()

    stream = Adder().astream("hi", provider=Silent())

    async def read():
        async for _ in stream:
            pass

    task = asyncio.create_task(read())
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await stream.aclose()

    assert stream.run.status == "cancelled"


def test_sync_tools_run_in_the_callers_thread():
    @tool
    def where() -> int:
        """Tell the thread."""
        return threading.get_ident()

    @tool
    async def through_async() -> int:
        """Tell the thread of async ORM calls."""
        return await sync_to_async(threading.get_ident)()

    class Where(Adder):
        class Meta:
            tools = [where, through_async]

    result = run([[call("where"), call("through_async")], "ok"], agent=Where)

    here = str(threading.get_ident())
    assert [outcome.content for outcome in result.tool_results] == [here, here]


@pytest.mark.parametrize("message", ["", "  ", None, [], 3, [{"x": 1}]])
def test_a_message_that_says_nothing_is_refused(message):
    with pytest.raises(Misused):
        run(["x"], message=message)


def test_a_misspelt_option_is_refused():
    with pytest.raises(Misused, match="Did you mean 'session_id'"):
        run(["x"], sesion_id="1")


class TestCost:
    """A step's cost must not grow with the run. Calls are counted: load does not change them."""

    @staticmethod
    def calls(steps):
        script = [ToolCall(f"call_{i}", "add", f'{{"a": {i}, "b": 1}}') for i in range(steps)]
        replies = iter([*(Completion(tool_calls=[call]) for call in script), Completion("done")])

        class Answers(Provider):
            name = "answers"
            offline = True

            async def acomplete(self, **request):
                return next(replies)

        @tool
        async def add(a: int, b: int) -> int:
            """Add."""
            return a + b

        class Counted(Agent):
            class Meta:
                model = "answers"
                tools = [add]
                tracing = False
                max_steps = None

        counted = 0

        def count(frame, event, argument):
            nonlocal counted
            counted += event in ("call", "c_call")

        async def main():
            sys.setprofile(count)
            try:
                await Counted().arun("Add.", provider=Answers())
            finally:
                sys.setprofile(None)

        asyncio.run(main())
        return counted

    def test_a_step_takes_as_many_calls_late_as_early(self):
        self.calls(2)
        early = self.calls(40) - self.calls(20)
        late = self.calls(220) - self.calls(200)
        assert late <= early * 1.2

    def test_a_step_takes_few_calls(self):
        self.calls(2)
        assert (self.calls(40) - self.calls(20)) / 20 <= 150
