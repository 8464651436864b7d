"""What a run leaves in the database."""

import asyncio
import gc
import time
import weakref
from decimal import Decimal

import pytest
from django.contrib.auth import get_user_model

from mlango.agents.providers.scripted import call
from mlango.core.context import Context
from mlango.core.events import TextChunk, ToolCalled
from mlango.core.memory import History
from mlango.core.options import Bounds
from mlango.core.provider import Completion, Provider
from mlango.core.tools import ToolResult, tool
from mlango.core.usage import Usage
from mlango.exceptions import ProviderUnavailable, ToolError
from mlango.models import Span, Trace
from mlango.runtime.writer import writer
from tests.helpers import afinish, astream, finish, new_run, stream

# Inside a test's transaction rows are written on the test's connection, else by the thread.
INLINE = pytest.param("inline", marks=pytest.mark.django_db)
WRITER = pytest.param("writer", marks=pytest.mark.django_db(transaction=True))
everywhere = pytest.mark.parametrize("where", [INLINE, WRITER])


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def broken() -> str:
    """Fail."""
    raise ZeroDivisionError("secret 42")


@tool
def refuse() -> str:
    """Refuse without a word."""
    raise ToolError("")


def trace_of(run):
    return Trace.objects.get(uuid=run.uuid)


def assert_folds(run):
    trace = trace_of(run)
    assert trace.messages == run.messages
    assert trace.status == run.status
    assert trace.stop_reason == run.stop_reason
    assert trace.ended_at is not None


@everywhere
def test_a_trace_tells_how_a_run_ended(where):
    usage = Usage(1000, 100, 30, 20, 10)
    turns = [Completion("One.", usage=usage)]

    run = finish(new_run(turns, metadata={"ticket": 7}, price=lambda *given: Decimal("0.0000015")))

    trace = trace_of(run)
    assert trace.agent == "shop.Support"
    assert trace.status == Trace.Status.FINISHED
    assert trace.stop_reason == "end_turn"
    assert trace.input == "hi"
    assert trace.output == "One."
    assert trace.error == ""
    assert trace.model == "scripted/one"
    assert trace.provider == "scripted"
    assert trace.steps == 1
    assert trace.span_count == 1
    assert trace.error_count == 0
    assert trace.usage == usage
    assert trace.cost == Decimal("0.0000015")
    assert trace.metadata == {"ticket": 7}
    assert trace.user is None
    assert trace.parent is None


@everywhere
def test_an_unknown_price_is_no_cost_and_not_zero(where):
    run = finish(new_run(price=lambda *given: None))

    assert trace_of(run).cost is None
    assert trace_of(run).spans.get().cost is None


@everywhere
def test_a_trace_knows_its_user(where):
    user = get_user_model().objects.create_user("ada")

    run = finish(new_run(user=user))

    assert trace_of(run).user == user
    assert list(Trace.objects.for_user(user)) == [trace_of(run)]


@everywhere
def test_a_trace_is_there_while_the_run_goes_on(where):
    seen = []

    @tool
    def look(ctx: Context) -> str:
        """Look at the trace."""
        deadline = time.monotonic() + 10
        while not seen and time.monotonic() < deadline:
            seen.extend(Trace.objects.filter(uuid=ctx.trace_uuid).values_list("status", flat=True))
        return "done"

    finish(new_run([call("look"), "Done."], [look]))

    assert seen == ["running"]


@everywhere
def test_spans_have_order_parents_and_what_went_in_and_out(where):
    run = finish(new_run([[call("add", a=1, b=2), call("broken")], "Three."], [add, broken]))

    spans = list(trace_of(run).spans.all())
    assert [(span.kind, span.name, span.step) for span in spans] == [
        ("llm", "scripted/one", 1),
        ("tool", "add", 1),
        ("tool", "broken", 1),
        ("llm", "scripted/one", 2),
    ]
    asked, added, failed, answered = spans
    assert asked.parent is None
    assert added.parent == failed.parent == asked
    assert added.input == {"a": 1, "b": 2}
    assert added.output == "3"
    assert added.error == ""
    assert added.usage is None
    assert failed.error == "ZeroDivisionError: secret 42"
    assert failed.error_type == "ZeroDivisionError"
    assert "Traceback" in failed.attributes["traceback"]
    assert asked.input["messages"] == 1
    assert answered.output == {"role": "assistant", "content": "Three."}
    assert answered.usage.input_tokens > 0
    assert answered.attributes["provider"] == "scripted"
    assert trace_of(run).error_count == 1


@everywhere
def test_spans_have_the_times_at_which_things_happened(where):
    @tool
    async def nap() -> str:
        """Sleep a little."""
        await asyncio.sleep(0.02)
        return "rested"

    run = finish(new_run([[call("nap"), call("nap")], "Done."], [nap]))

    trace = trace_of(run)
    asked, first, second, _ = trace.spans.all()
    assert trace.started_at <= asked.started_at <= asked.ended_at
    assert first.duration_s >= 0.02
    assert second.started_at < first.ended_at  # they ran side by side
    assert second.ended_at <= trace.ended_at
    assert trace.duration_s >= first.duration_s


@everywhere
@pytest.mark.parametrize("runner", [finish, lambda run: asyncio.run(afinish(run))])
class TestTheMessagesAreTheFoldOfTheSpans:
    def test_when_a_run_finished(self, where, runner):
        turns = [[call("add", a=1, b=2), call("broken"), call("refuse")], "Three."]
        history = [{"role": "user", "content": "before"}, {"role": "assistant", "content": "yes"}]

        run = runner(new_run(turns, [add, broken, refuse], history=history))

        assert run.status == "finished"
        assert len(run.messages) == 2 + 1 + 1 + 3 + 1
        assert_folds(run)

    def test_when_a_model_asked_for_nonsense(self, where, runner):
        turns = [[call("nothing"), call("add", a="x", b=2)], "Sorry."]

        run = runner(new_run(turns, [add]))

        assert_folds(run)

    def test_when_a_tool_returned_parts(self, where, runner):
        @tool
        def draw() -> ToolResult:
            """Draw."""
            image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
            return ToolResult(["a picture", image])

        run = runner(new_run([call("draw"), "Seen."], [draw]))

        assert isinstance(run.messages[2]["content"], list)
        assert_folds(run)

    def test_when_a_run_was_stopped_by_its_limit(self, where, runner):
        turns = [call("add", a=1, b=2), call("add", a=1, b=3), "Never."]

        run = runner(new_run(turns, [add], bounds=Bounds(max_steps=2)))

        assert (run.status, run.stop_reason) == ("stopped", "max_steps")
        assert_folds(run)

    def test_when_a_run_failed(self, where, runner):
        error = ProviderUnavailable("down", retryable=False)

        run = runner(new_run([call("add", a=1, b=2), error], [add]))

        assert run.status == "failed"
        assert trace_of(run).error == "down"
        assert trace_of(run).spans.last().error_type == "ProviderUnavailable"
        assert_folds(run)

    def test_when_a_run_was_retried(self, where, runner):
        bounds = Bounds(retry_base_delay=0)

        run = runner(new_run([ProviderUnavailable("down"), "Up."], bounds=bounds))

        assert run.status == "finished"
        assert trace_of(run).span_count == 2
        assert trace_of(run).error_count == 1
        assert_folds(run)

    def test_when_a_run_was_stopped_inside_a_tool(self, where, runner):
        @tool(parallel=False)
        def stop() -> str:
            """Stop the run."""
            run.abort()
            return "stopping"

        run = new_run([[call("stop"), call("add", a=1, b=2)], "Never."], [stop, add])
        runner(run)

        assert run.status == "cancelled"
        assert [result.is_error for result in run.tool_results][-1]
        assert_folds(run)

    def test_when_someone_spoke_on_the_way(self, where, runner):
        @tool(parallel=False)
        def listen() -> str:
            """Hear more."""
            run.steer("turn left")
            run.steer("turn right")
            run.follow_up("and then?")
            return "heard"

        turns = [[call("listen"), call("add", a=1, b=2)], "Left.", "Right.", "Then home."]
        run = new_run(turns, [listen, add])
        runner(run)

        said = [message["content"] for message in run.messages if message["role"] == "user"]
        assert said[0] == "hi"
        assert sorted(said[1:]) == ["and then?", "turn left", "turn right"]
        assert_folds(run)


@everywhere
class TestAReaderWhoLeaves:
    def test_leaves_a_cancelled_trace_of_a_stream(self, where):
        run = new_run(["A long answer."])
        events = stream(run)

        for event in events:
            if isinstance(event, TextChunk):
                break
        events.close()

        assert run.status == "cancelled"
        assert run.messages[-1]["role"] == "assistant"
        assert_folds(run)

    def test_leaves_one_when_he_only_lets_go(self, where):
        run = new_run(["A long answer."])

        for event in stream(run):
            if isinstance(event, TextChunk):
                break
        gc.collect()

        assert_folds(run)

    def test_leaves_one_of_an_async_stream(self, where):
        async def leave():
            async with astream(run) as events:
                async for event in events:
                    if isinstance(event, ToolCalled):
                        break

        run = new_run([[call("add", a=1, b=2), call("add", a=2, b=2)], "Never."], [add])
        asyncio.run(leave())

        assert run.status == "cancelled"
        assert_folds(run)

    def test_leaves_one_when_his_task_is_cancelled(self, where):
        @tool
        async def hang() -> str:
            """Wait for ever."""
            started.set()
            await asyncio.sleep(3600)
            return "never"

        async def cancel():
            task = asyncio.create_task(afinish(run))
            await started.wait()
            task.cancel()
            await asyncio.wait([task])

        started = asyncio.Event()
        run = new_run([[call("hang"), call("hang")], "Never."], [hang])
        asyncio.run(cancel())

        assert run.status == "cancelled"
        assert [message["role"] for message in run.messages[-2:]] == ["tool", "tool"]
        assert_folds(run)

    def test_leaves_one_when_the_run_is_stopped_while_the_model_speaks(self, where):
        async def stop():
            async for event in astream(run):
                if isinstance(event, TextChunk):
                    run.abort()

        run = new_run(Endless())
        asyncio.run(stop())

        assert run.status == "cancelled"
        assert_folds(run)


class Endless(Provider):
    """Says a word and then nothing more."""

    name = "endless"

    async def astream(self, **request):
        yield "One"
        await asyncio.sleep(3600)


@everywhere
def test_a_run_that_fails_before_it_begins_leaves_a_failed_trace(where):
    async def resolve(run):
        raise LookupError("no such model")

    run = finish(new_run(resolve=resolve))

    trace = trace_of(run)
    assert trace.status == "failed"
    assert trace.error == f"The run failed with LookupError (reference {run.uuid[:8]})."
    assert trace.turn == [{"role": "user", "content": "hi"}]


@everywhere
def test_a_history_recalled_from_traces_is_not_stored_again(where):
    first = finish(new_run(["First."], said="one"))
    second = finish(new_run(["Second."], said="two"))
    history = History(first.messages + second.messages)
    history.traces = (first.uuid, second.uuid)

    third = finish(new_run(["Third."], said="three", history=history))

    trace = trace_of(third)
    assert trace.opening["traces"] == [first.uuid, second.uuid]
    assert "messages" not in trace.opening
    assert trace.turn == third.messages[-2:]
    assert_folds(third)


@everywhere
def test_without_capture_only_the_shape_is_kept(where):
    @tool
    def tell(word: str) -> str:
        """Fail with the word."""
        raise ValueError(word)

    turns = [call("tell", word="canary"), "The canary sings."]
    history = [{"role": "user", "content": "canary"}]

    run = finish(new_run(turns, [tell], "canary?", history=history, capture_content=False))

    trace = trace_of(run)
    assert "canary" not in str(Trace.objects.filter(pk=trace.pk).values().get())
    assert "canary" not in str(list(trace.spans.values()))
    assert [span.kind for span in trace.spans.all()] == ["llm", "tool", "llm"]
    assert trace.spans.all()[1].error_type == "ValueError"
    assert trace.messages == []
    assert trace.usage == run.usage


@everywhere
def test_keys_among_the_options_of_a_request_are_hidden(where):
    options = {"max_tokens": 5, "api_key": "sk-canary", "extra_headers": {"x": "canary"}}

    run = finish(new_run(request_options=options))

    span = trace_of(run).spans.get()
    assert span.input["max_tokens"] == 5
    assert span.input["api_key"] == "[hidden]"
    assert "canary" not in span.input_json


@everywhere
def test_a_name_or_an_id_of_any_length_fits(where):
    turns = [[call("x" * 5000)], "Sorry."]

    run = finish(new_run(turns, label="app." + "A" * 500))

    assert trace_of(run).spans.all()[1].name == "x" * 200
    assert_folds(run)


@everywhere
@pytest.mark.parametrize("mode", ["behind", "step"])
def test_each_step_can_be_made_safe_before_the_next(where, mode, settings):
    settings.MLANGO = {"TRACE_WRITES": mode}
    seen = []

    @tool
    def counted(a: int, b: int) -> int:
        """Count the spans, then add."""
        seen.append(Span.objects.count())
        return a + b

    run = new_run([call("add", a=1, b=2), call("counted", a=1, b=2), "Done."], [add, counted])
    finish(run)

    if mode == "step":
        assert seen == [2]
    assert trace_of(run).spans.count() == 5


def test_no_content_shows_in_the_name_of_a_row():
    trace = Trace(uuid="ab" * 16, agent="shop.Support", input="canary")
    span = Span(trace=trace, ordering=3, kind="tool", name="add", input={"a": "canary"})

    assert str(trace) == "shop.Support abababab"
    assert str(span) == "3 tool add"


@everywhere
async def test_a_traced_run_is_not_left_to_the_garbage_collector(where):
    gc.disable()
    try:
        run = new_run(["One."])
        run.journal.keep_log(run)
        ended = weakref.ref(run)
        await afinish(run)
        del run
        await asyncio.to_thread(writer.flush)  # what it wrote last, it has let go then

        assert ended() is None
    finally:
        gc.enable()
