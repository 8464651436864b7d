"""Guardrails on every path: what they refuse is neither said, done, nor kept."""

import asyncio
from contextlib import aclosing

import pytest
from django.apps import apps
from django.contrib.auth.models import User

from mlango.agents import (
    Agent,
    Block,
    BufferMemory,
    Guardrail,
    GuardrailRewrote,
    GuardrailTripped,
    MaxLength,
    Rewrite,
    TextChunk,
    ToolCallChunk,
    tool,
)
from mlango.agents.providers import Completion, ScriptedProvider, ToolCall
from mlango.core.provider import Provider
from mlango.core.signals import agent_started
from mlango.exceptions import Misconfigured
from mlango.models import Session, Trace

pytestmark = pytest.mark.django_db(transaction=True)

NEVER_TOLD = "swordfish"
sent = []


@tool
def send(to: str, copies: int = 1) -> str:
    """Send a letter."""
    sent.append((to, copies))
    return f"sent to {to}"


@pytest.fixture(autouse=True)
def _nothing_sent():
    sent.clear()


def call(**arguments):
    return [ToolCall("", "send", arguments)]


def agent(*guardrails, **options):
    """Return an agent of a new class with these guardrails."""
    meta = {"app_label": "guarded", "tools": [send], "guardrails": guardrails, **options}
    name = f"Clerk{next(numbers)}"
    return type(name, (Agent,), {"Meta": type("Meta", (), meta), "__module__": __name__})()


numbers = iter(range(1000))


class Says(Guardrail):
    """Gives the verdict that it is made with, on one thing."""

    def __init__(self, verdict, on):
        self.verdict = verdict
        self.on = (on,)

    def check_input(self, text, ctx):
        return self.verdict

    async def check_output(self, text, ctx):
        return self.verdict

    def check_tool_call(self, name, arguments, ctx):
        return self.verdict


class First(Says):
    """Is done before the model is asked."""

    parallel = False


NO = Block("Not here.")


def streamed(agent, message, provider, **options):
    """Return the run and its events, as plain code reads them."""
    stream = agent.stream(message, provider=provider, **options)
    events = list(stream)
    return stream.run, events


async def streamed_async(agent, message, provider, **options):
    async with aclosing(agent.astream(message, provider=provider, **options)) as stream:
        events = [event async for event in stream]
    return stream.run, events


def run_sync(*arguments, **options):
    return numbered(*streamed(*arguments, **options))


def run_async(*arguments, **options):
    return numbered(*asyncio.run(streamed_async(*arguments, **options)))


def numbered(run, events):
    """Return what is given, if the events come in the order of their numbers."""
    assert [event.seq for event in events] == list(range(len(events)))
    return run, events


both = pytest.mark.parametrize("play", [run_sync, run_async])


def texts(events):
    return "".join(event.text for event in events if isinstance(event, TextChunk))


def tripped(events):
    return [event for event in events if isinstance(event, GuardrailTripped)]


def spans(run):
    return list(run.trace.spans.filter(kind="guardrail"))


def assert_stored_as_it_was(run):
    assert run.trace.messages == run.messages


# -- input -------------------------------------------------------------------------------


@both
def test_a_blocked_message_stops_the_run_before_the_model_is_asked(play):
    provider = ScriptedProvider(["hello"])
    run, events = play(agent(First(NO, "input")), NEVER_TOLD, provider)

    assert (run.status, run.stop_reason, run.text) == ("stopped", "guardrail", "")
    assert run.error == "Stopped by the guardrail 'First': Not here."
    assert provider.calls == []
    [event] = tripped(events)
    assert (event.name, event.on, event.reason, event.tool) == ("First", "input", "Not here.", "")
    [span] = spans(run)
    assert (span.name, span.error_type, span.error) == ("First", "guardrail", "Not here.")
    assert span.attributes["on"] == "input"
    assert_stored_as_it_was(run)


@both
def test_a_rewritten_message_is_what_the_model_reads_and_what_is_stored(play):
    provider = ScriptedProvider(["hello"])
    rewrite = First(Rewrite("[gone]", "A word."), "input")
    run, events = play(agent(rewrite), NEVER_TOLD, provider)

    assert provider.last_call.last_text == "[gone]"
    assert run.messages[0]["content"] == run.trace.input == "[gone]"
    [event] = [event for event in events if isinstance(event, GuardrailRewrote)]
    assert (event.name, event.on, event.reason) == ("First", "input", "A word.")
    assert_stored_as_it_was(run)


def test_a_rewritten_message_keeps_its_images():
    image = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    provider = ScriptedProvider(["hello"])
    said = [{"type": "text", "text": "a"}, image, {"type": "text", "text": "b"}]
    agent(First(Rewrite("c"), "input")).run(said, provider=provider)

    content = provider.last_call.messages[-1]["content"]
    assert content == [{"type": "text", "text": "c"}, image]


def test_what_one_guardrail_rewrote_stays_so_when_the_next_blocks():
    run = agent(First(Rewrite("[gone]"), "input"), First(NO, "input")).run(
        NEVER_TOLD, provider=ScriptedProvider([])
    )

    assert run.stop_reason == "guardrail"
    assert NEVER_TOLD not in str(run.trace.opening)
    assert_stored_as_it_was(run)


def test_a_rewritten_message_is_what_is_remembered():
    clerk = agent(First(Rewrite("[gone]"), "input"), memory=BufferMemory())
    provider = ScriptedProvider(["one", "two"])
    clerk.run(NEVER_TOLD, provider=provider, session_id="s")
    clerk.run(NEVER_TOLD, provider=provider, session_id="s")

    assert [m["content"] for m in provider.last_call.messages] == ["[gone]", "one", "[gone]"]


def test_a_blocked_turn_is_not_remembered():
    memory = BufferMemory()
    provider = ScriptedProvider(["hello"])
    agent(First(NO, "input"), memory=memory).run("a", provider=provider, session_id="s")
    other = agent(memory=memory)
    other.run("b", provider=provider, session_id="s")

    assert [m["content"] for m in provider.last_call.messages] == ["b"]


@both
@pytest.mark.parametrize("way", ["steer", "follow_up"])
def test_a_message_on_the_way_is_checked_like_the_first(play, way):
    class NoFish(Guardrail):
        def check_input(self, text):
            return Block("No fish.") if NEVER_TOLD in text else None

    provider = ScriptedProvider([told := [], "second"])

    def turn(request):
        getattr(stream._run, way)(NEVER_TOLD)
        told.append(True)
        return "first"

    provider.turns[0] = turn
    clerk = agent(NoFish())
    if play is run_sync:
        stream = clerk.stream("hi", provider=provider)
        list(stream)
    else:

        async def read():
            nonlocal stream
            stream = clerk.astream("hi", provider=provider)
            async for _ in stream:
                pass

        stream = None
        asyncio.run(read())

    run = stream.run
    assert told
    assert (run.status, run.stop_reason) == ("stopped", "guardrail")
    assert len(provider.calls) == 1
    assert NEVER_TOLD not in str(run.messages)
    assert_stored_as_it_was(run)


# -- beside the first model call ------------------------------------------------------------


class Slow(Guardrail):
    """Gives its verdict only when the model has answered, and said all that it wants to say."""

    def __init__(self, verdict):
        self.verdict = verdict
        self._answered = asyncio.Event()

    async def check_input(self, text, ctx):
        await self._answered.wait()
        return self.verdict


class Finishing(Provider):
    """Streams an answer and lets ``check`` go on only when the last piece was taken."""

    name = "scripted"
    offline = True

    def __init__(self, check, deltas):
        self.check = check
        self.deltas = deltas

    async def astream(self, **request):
        *first, last = self.deltas
        for delta in first:
            yield delta
        asyncio.get_running_loop().call_soon(self.check._answered.set)
        yield last


@both
def test_nothing_is_said_or_done_before_a_late_verdict(play):
    check = Slow(NO)
    answer = Completion("I send it.", call(to="b"))
    provider = Finishing(check, ["I ", "send it.", answer])
    run, events = play(agent(check), "hi", provider)

    assert sent == []
    assert texts(events) == ""
    assert not any(isinstance(event, ToolCallChunk) for event in events)
    assert (run.status, run.stop_reason) == ("stopped", "guardrail")
    assert [message["role"] for message in run.messages] == ["user"]
    assert run.usage == answer.usage
    assert_stored_as_it_was(run)


@both
def test_all_of_it_is_said_and_done_after_a_late_verdict(play):
    class Twice(Finishing):
        async def astream(self, **request):
            if len(request["messages"]) > 1:
                yield Completion("done")
            else:
                async for delta in super().astream(**request):
                    yield delta

    check = Slow(None)
    provider = Twice(check, ["I ", "send it.", Completion("I send it.", call(to="b"))])
    run, events = play(agent(check), "hi", provider)

    assert sent == [("b", 1)]
    assert texts(events).startswith("I send it.")
    assert run.text == "done"
    assert_stored_as_it_was(run)


@both
def test_the_model_call_is_cancelled_when_a_check_beside_it_blocks(play):
    closed = []

    class Endless(Provider):
        name = "scripted"
        offline = True

        async def astream(self, **request):
            try:
                yield "I think "
                check._answered.set()
                await asyncio.Event().wait()
                yield Completion("never")
            finally:
                closed.append(True)

    check = Slow(NO)
    run, events = play(agent(check), "hi", Endless())

    assert closed
    assert texts(events) == ""
    assert run.stop_reason == "guardrail"
    assert_stored_as_it_was(run)


async def test_what_comes_after_the_verdict_is_said_as_it_comes():
    seen = asyncio.Event()

    class Patient(Provider):
        name = "scripted"
        offline = True

        async def astream(self, **request):
            yield "one "
            check._answered.set()
            await asyncio.wait({stream._run.controls.all[0].late})
            yield "two "
            await seen.wait()
            yield Completion("one two three")

    check = Slow(None)
    stream = agent(check).astream("hi", provider=Patient())
    told = []
    async for event in stream:
        if isinstance(event, TextChunk):
            told.append(event.text)
            if len(told) == 2:
                seen.set()

    assert told == ["one ", "two "]
    assert stream.run.text == "one two three"


def test_a_check_beside_the_model_blocks_what_it_would_rewrite():
    run = agent(Says(Rewrite("x"), "input")).run("hi", provider=ScriptedProvider(["hello"]))

    assert run.stop_reason == "guardrail"
    assert "after the model has read it" in run.error


async def test_a_run_that_is_left_ends_the_checks_beside_it():
    ended, begun = [], asyncio.Event()

    class Waiting(Guardrail):
        async def check_input(self, text, ctx):
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(True)

    stream = agent(Waiting()).astream("hi", provider=ScriptedProvider(["hello"]))
    async with aclosing(stream):
        reading = asyncio.ensure_future(anext(stream))
        while (await reading).kind != "thinking":
            reading = asyncio.ensure_future(anext(stream))
        reading = asyncio.ensure_future(anext(stream))
        await begun.wait()
        reading.cancel()
        await asyncio.wait({reading})

    assert stream.run.status == "cancelled"
    assert ended


# -- output ---------------------------------------------------------------------------------


@both
def test_a_blocked_answer_is_neither_said_nor_kept_but_paid_for(play):
    run, events = play(agent(Says(NO, "output")), "hi", ScriptedProvider([NEVER_TOLD]))

    assert (run.status, run.stop_reason, run.text) == ("stopped", "guardrail", "")
    assert texts(events) == ""
    assert NEVER_TOLD not in str([event.describe() for event in events])
    assert NEVER_TOLD not in str(list(run.trace.spans.values()))
    assert run.usage.output_tokens > 0
    assert [message["role"] for message in run.messages] == ["user"]
    assert tripped(events)[0].on == "output"
    assert_stored_as_it_was(run)


@both
def test_a_rewritten_answer_is_what_is_said_stored_and_returned(play):
    answer = Completion(NEVER_TOLD, raw_content=[{"type": "text", "text": NEVER_TOLD}])
    run, events = play(agent(Says(Rewrite("[gone]"), "output")), "hi", ScriptedProvider([answer]))

    assert texts(events) == run.text == run.output == "[gone]"
    assert run.messages[-1] == {"role": "assistant", "content": "[gone]"}
    assert NEVER_TOLD not in str(run.describe()) + str(list(run.trace.spans.values()))
    assert_stored_as_it_was(run)


def test_a_blocked_answer_takes_back_no_earlier_step_and_leaves_no_text():
    class Second(Guardrail):
        def check_output(self, text):
            return NO if text == "second" else None

    first = Completion("first", call(to="b"))
    run, events = run_sync(agent(Second()), "hi", ScriptedProvider([first, "second"]))

    assert texts(events) == "first"
    assert sent == [("b", 1)]
    assert (run.text, run.stop_reason) == ("", "guardrail")
    assert_stored_as_it_was(run)


def test_thoughts_that_nobody_checked_are_not_told():
    answer = Completion("fine", reasoning=NEVER_TOLD)
    _, events = run_sync(agent(Says(None, "output")), "hi", ScriptedProvider([answer]))

    assert texts(events) == "fine"
    assert NEVER_TOLD not in str([event.describe() for event in events])


def test_a_refusal_is_checked_as_well():
    answer = Completion("", stop_reason="refusal", refusal=NEVER_TOLD)
    run = agent(Says(Rewrite("[gone]"), "output")).run("hi", provider=ScriptedProvider([answer]))

    assert (run.stop_reason, run.error) == ("refusal", "[gone]")


# -- tool calls --------------------------------------------------------------------------------


@both
def test_a_blocked_call_is_not_made_and_the_model_is_told_why(play):
    provider = ScriptedProvider([call(to=NEVER_TOLD), "I could not."])
    run, events = play(agent(Says(NO, "tools")), "hi", provider)

    assert sent == []
    assert run.ok
    assert run.tool_results[0].content == "The guardrail 'Says' refused this call: Not here."
    assert run.tool_results[0].is_error
    [event] = tripped(events)
    assert (event.on, event.tool) == ("tools", "send")
    assert_stored_as_it_was(run)


@both
def test_a_tool_is_called_with_rewritten_arguments(play):
    provider = ScriptedProvider([call(to=NEVER_TOLD), "done"])
    rewrite = Says(Rewrite({"to": "[gone]", "copies": "2"}), "tools")
    run, _ = play(agent(rewrite), "hi", provider)

    assert sent == [("[gone]", 2)]
    [span] = run.trace.spans.filter(kind="tool")
    assert span.input == {"to": "[gone]", "copies": "2"}
    assert_stored_as_it_was(run)


def test_rewritten_arguments_that_do_not_fit_are_not_used():
    provider = ScriptedProvider([call(to="b"), "sorry"])
    run = agent(Says(Rewrite({"to": "b", "copies": "many"}), "tools")).run("hi", provider=provider)

    assert sent == []
    assert run.tool_results[0].error_type == "validation"


class Everywhere(Guardrail):
    """Rewrites all that it sees."""

    parallel = False

    def check_input(self, text):
        return Rewrite(f"{text}!")

    def check_output(self, text):
        return Rewrite(f"{text}!")

    def check_tool_call(self, name, arguments):
        return Rewrite(arguments | {"copies": 3})


@both
def test_events_come_in_the_order_of_their_numbers(play):
    def first(request):
        stream.steer("and this")
        stream.follow_up("and that")
        return Completion("one", call(to="b"), reasoning="hm")

    clerk = agent(Everywhere())
    provider = ScriptedProvider([first, "two", "three"])
    if play is run_sync:
        stream = clerk.stream("hi", provider=provider)
        events = list(stream)
    else:

        async def read():
            nonlocal stream
            stream = clerk.astream("hi", provider=provider)
            return [event async for event in stream]

        stream = None
        events = asyncio.run(read())

    assert [event.seq for event in events] == list(range(len(events)))
    rewritten = [event.on for event in events if isinstance(event, GuardrailRewrote)]
    # The call is skipped, because of the message on the way.
    assert rewritten == ["input", "output", "input", "output", "input", "output"]
    assert stream.run.text == "three!"
    assert_stored_as_it_was(stream.run)


# -- checks that fail ----------------------------------------------------------------------------


class Failing(Guardrail):
    """Fails with what it was told."""

    def check_input(self, text, ctx):
        raise ValueError(text)

    async def check_output(self, text, ctx):
        raise ValueError(text)

    def check_tool_call(self, name, arguments, ctx):
        raise SystemExit(str(arguments))


@both
@pytest.mark.parametrize("on", ["input", "output"])
def test_a_check_that_fails_blocks_and_quotes_nothing(play, on, caplog):
    only = type("Only", (Failing,), {"on": on})
    turns = ["hello" if on == "input" else NEVER_TOLD]
    said = NEVER_TOLD if on == "input" else "hi"
    run, events = play(agent(only()), said, ScriptedProvider(turns))

    assert run.stop_reason == "guardrail"
    assert run.error == "Stopped by the guardrail 'Only': The check failed with ValueError."
    assert texts(events) == ""
    [span] = spans(run)
    assert span.error_type == "ValueError"
    assert "check_" in span.attributes["traceback"]
    assert NEVER_TOLD not in f"{span.error} {span.attributes} {caplog.text}"


@both
def test_a_check_of_a_call_that_exits_refuses_the_call(play):
    class Only(Failing):
        on = "tools"

    run, _ = play(agent(Only()), "hi", ScriptedProvider([call(to="b"), "sorry"]))

    assert sent == []
    assert run.ok
    assert run.tool_results[0].content.endswith("The check failed with SystemExit.")


@pytest.mark.parametrize("verdict", [True, False, "no", Rewrite(3), Rewrite({"a": 1})])
def test_what_is_no_verdict_blocks(verdict):
    run = agent(First(verdict, "input")).run("hi", provider=ScriptedProvider(["hello"]))

    assert run.stop_reason == "guardrail"
    assert "is no verdict" in run.error


def test_a_check_that_takes_too_long_blocks():
    class Endless(Guardrail):
        parallel = False
        timeout = 0.01

        async def check_input(self, text, ctx):
            await asyncio.Event().wait()

    run = agent(Endless()).run("hi", provider=ScriptedProvider(["hello"]))

    assert "The check failed with TimeoutError." in run.error


async def test_a_check_that_hangs_does_not_outlive_an_abort():
    begun = asyncio.Event()

    class Endless(Guardrail):
        async def check_output(self, text, ctx):
            begun.set()
            await asyncio.Event().wait()

    stream = agent(Endless()).astream("hi", provider=ScriptedProvider([NEVER_TOLD]))

    async def abort():
        await begun.wait()
        stream.abort()

    aborting = asyncio.create_task(abort())
    events = [event async for event in stream]
    await aborting

    assert stream.run.status == "cancelled"
    assert texts(events) == ""


# -- what a check sees, and what is declared ---------------------------------------------------


def test_a_check_sees_the_run():
    seen = []

    class Looking(Guardrail):
        def check_output(self, text, ctx):
            seen.append((ctx.kind, ctx.user, ctx.state, len(ctx.messages), text))

    ann = User(pk=1, username="ann")
    agent(Looking()).run("hi", provider=ScriptedProvider(["hello"]), user=ann, state={"a": 1})

    assert seen == [("output", ann, {"a": 1}, 1, "hello")]


def test_a_check_that_blocks_its_thread_may_use_the_database():
    class Counting(Guardrail):
        def check_output(self, text, ctx):
            return Block(f"{Trace.objects.filter(pk='x').count()} traces")

    run = agent(Counting()).run("hi", provider=ScriptedProvider(["hello"]))

    assert run.error.endswith("0 traces")


def test_each_check_that_passes_is_a_span_too():
    run = agent(MaxLength(100)).run("hi", provider=ScriptedProvider(["hello"]))

    assert [span.attributes for span in spans(run)] == [
        {"on": "input", "verdict": "pass"},
        {"on": "output", "verdict": "pass"},
    ]
    assert run.trace.error_count == 0
    assert_stored_as_it_was(run)


def test_guardrails_are_inherited_and_make_another_fingerprint():
    class Base(Agent):
        class Meta:
            app_label = "guarded"
            guardrails = [MaxLength(5)]

    class Other(Base):
        class Meta:
            guardrails = [MaxLength(6)]

    class Heir(Base):
        pass

    assert Heir._meta.guardrails == Base._meta.guardrails
    assert Other._meta.fingerprint() != Base._meta.fingerprint()


def test_a_misspelt_check_is_refused_when_its_class_is_made():
    with pytest.raises(
        Misconfigured, match=r"check_outpt\(\) overrides nothing.*'check_output'\?"
    ):

        class Watch(Guardrail):
            def check_input(self, text, ctx):
                return None

            def check_outpt(self, text, ctx):
                return NO


def test_a_guardrail_that_checks_nothing_is_refused():
    class Idle(Guardrail):
        pass

    with pytest.raises(Misconfigured, match="Idle checks nothing"):
        agent(Idle)


def test_on_is_one_of_three():
    with pytest.raises(Misconfigured, match="Did you mean 'tools'"):

        class Wrong(Guardrail):
            on = "tool"


def test_a_stopped_run_that_goes_on_is_checked_again():
    clerk = agent(First(NO, "input"))
    provider = ScriptedProvider(["hello"])
    run = clerk.run("hi", provider=provider)

    again = clerk.resume(run.trace_uuid, provider=provider)

    assert again.stop_reason == "guardrail"
    assert again.text == ""


class TestTheFirstEvent:
    """It tells what was said, so nothing that is not checked."""

    def test_it_tells_the_rewritten_message_everywhere(self, caplog):
        told = []

        def listen(sender, event, **kwargs):
            told.append(event.message)

        clerk = agent(First(Rewrite("[gone]"), "input"), memory=BufferMemory())
        agent_started.connect(listen, sender=type(clerk))
        with caplog.at_level("DEBUG"):
            provider = ScriptedProvider(["hello"])
            events = list(clerk.stream(NEVER_TOLD, provider=provider, session_id="s"))

        assert [event.seq for event in events] == list(range(len(events)))
        assert events[0].message == "[gone]"
        assert told == ["[gone]"]
        assert NEVER_TOLD not in str([event.describe() for event in events])
        assert NEVER_TOLD not in caplog.text
        assert Session.objects.get().title == "[gone]"
        assert_nowhere(NEVER_TOLD)

    async def test_it_holds_for_async_runs(self):
        clerk = agent(First(Rewrite("[gone]"), "input"))
        stream = clerk.astream(NEVER_TOLD, provider=ScriptedProvider(["hello"]))
        events = [event async for event in stream]
        assert events[0].message == "[gone]"

    def test_what_is_kept_of_a_blocked_message_is_told(self):
        clerk = agent(First(Block("No.", kept="[kept]"), "input"))
        events = list(clerk.stream(NEVER_TOLD, provider=ScriptedProvider([]), session_id="s"))
        assert events[0].message == "[kept]"
        assert_nowhere(NEVER_TOLD)

    def test_it_tells_nothing_of_a_run_that_ends_before_its_checks(self):
        class Late(type(agent(First(NO, "input")))):
            def get_system(self, ctx):
                raise RuntimeError("broken")

        events = list(Late().stream(NEVER_TOLD, provider=ScriptedProvider([])))
        assert [event.kind for event in events] == ["started", "failed"]
        assert events[0].message == ""
        assert_nowhere(NEVER_TOLD)

    def test_without_guardrails_it_tells_all(self):
        events = list(agent().stream("hi", provider=ScriptedProvider(["hello"])))
        assert events[0].message == "hi"


def assert_nowhere(text):
    """Assert that no row of ours holds a text."""
    for model in apps.get_app_config("mlango").get_models():
        assert text not in str(list(model.objects.values()))
