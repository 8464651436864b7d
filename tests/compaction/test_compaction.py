"""Compaction: the model reads less, and nothing is lost."""

import pytest
from django.test import override_settings

from mlango.agents import Agent, Compacted, Compaction, Hooks, tool
from mlango.agents.prices import context_window
from mlango.agents.providers import Completion, ScriptedProvider, Usage
from mlango.agents.providers.scripted import call
from mlango.core.messages import repaired
from mlango.exceptions import ContextLengthExceeded, Misconfigured, RateLimited
from mlango.models import Trace

LONG = "x" * 1000


@tool
def look(page: int) -> str:
    """Read a page."""
    return f"page {page} {LONG}"


def reader(compaction, **meta):
    options = {
        "compaction": compaction,
        "tools": [look],
        "abstract": True,
        "tracing": False,
        "max_steps": 40,
    }
    return type("Reader", (Agent,), {"Meta": type("Meta", (), options | meta)})()


def asks(pages):
    return [Completion(tool_calls=[call("look", page=page)]) for page in range(pages)]


def read(compaction, pages=10, last="done", **options):
    provider = ScriptedProvider([*asks(pages), last])
    stream = reader(compaction).stream("Read them all.", provider=provider, **options)
    events = list(stream)
    return events[-1].result, provider, [e for e in events if isinstance(e, Compacted)]


def is_valid(messages):
    return repaired(messages) == messages and messages[0]["role"] == "user"


def contents(request):
    return [m["content"] for m in request.messages if m["role"] == "tool"]


# 3,960 characters, at the first guess of four to a token: the fourth page is too much.
SMALL = {"window": 1100, "keep": 300}


def test_a_short_conversation_is_left_alone():
    result, provider, compacted = read(True)
    assert result.ok
    assert compacted == []
    assert LONG in provider.last_call.last_text


def test_old_results_are_pruned_and_the_newest_stay():
    result, provider, compacted = read(Compaction(**SMALL))
    kept = contents(provider.last_call)

    assert result.ok
    assert kept[0] == "[pruned: look result, 1007 chars]"
    assert kept[-1] == f"page 9 {LONG}"
    assert compacted[0].tokens_after < compacted[0].tokens_before
    assert compacted[0].strategy == "prune"
    assert compacted[0].pruned[0] == "call_1"
    assert all(is_valid(request.messages) for request in provider.calls)


def test_what_was_pruned_stays_in_the_conversation():
    result, _, _ = read(Compaction(**SMALL))
    assert [m["content"][:7].strip() for m in result.messages if m["role"] == "tool"] == [
        f"page {page}" for page in range(10)
    ]
    assert result.tool_results[0].content == f"page 0 {LONG}"


async def test_an_async_run_is_shortened_too():
    provider = ScriptedProvider([*asks(10), "done"])
    result = await reader(Compaction(**SMALL)).arun("hi", provider=provider)
    assert result.ok
    assert contents(provider.last_call)[0].startswith("[pruned")


def test_the_results_of_the_latest_turn_are_never_pruned():
    turn = Completion(tool_calls=[call("look", page=page) for page in range(8)])
    provider = ScriptedProvider([turn, "done"])
    reader(Compaction(**SMALL)).run("hi", provider=provider)
    assert all(LONG in content for content in contents(provider.last_call))


def summarise(**options):
    return Compaction(strategy="summarise", **SMALL, **options)


def test_a_summary_stands_for_what_was_said_before():
    told = []

    def summarizer(messages, ctx):
        told.append(messages)
        return f"Summary {len(told)}."

    result, provider, compacted = read(summarise(summarizer=summarizer))
    first, second, *rest = provider.last_call.messages

    assert first["content"] == f"[Conversation summary]\nSummary {len(told)}."
    assert second == {"role": "user", "content": "Read them all."}
    assert rest[0]["role"] == "assistant"
    assert told[1][0]["content"] == "[Conversation summary]\nSummary 1."
    assert len(compacted) == len(told) > 1
    assert compacted[0].covered < compacted[1].covered
    assert len(result.messages) == 22
    assert all(is_valid(request.messages) for request in provider.calls)


def test_the_agents_own_model_summarises_and_is_paid_for():
    used = Usage(input_tokens=0, output_tokens=7)
    provider = ScriptedProvider([*asks(4), Completion("All read so far.", usage=used), "done"])
    result = reader(summarise()).run("hi", provider=provider)

    asking = provider.calls[4]
    assert asking.tools is None
    assert "page 0" in asking.last_text
    assert "All read so far." in provider.last_call.messages[0]["content"]
    assert result.text == "done"
    assert result.usage.output_tokens == 7 + 5  # the summary and the answer
    assert result.steps == 5


@pytest.mark.parametrize("answer", [RateLimited("no", retry_after=0), "", ValueError("broken")])
@override_settings(MLANGO={"LLM_MAX_RETRIES": 0})
def test_without_a_summary_old_results_are_pruned(answer):
    provider = ScriptedProvider([*asks(4), answer, "done"])
    stream = reader(summarise()).stream("hi", provider=provider)
    events = list(stream)
    compacted = next(event for event in events if isinstance(event, Compacted))

    assert events[-1].result.text == "done"
    assert compacted.strategy == "prune"
    assert compacted.error
    assert contents(provider.last_call)[0].startswith("[pruned")


def test_a_function_that_fails_is_no_reason_to_fail():
    async def broken(messages, ctx):
        raise KeyError("secret")

    result, _, compacted = read(summarise(summarizer=broken))
    assert result.ok
    assert compacted[0].error == "There is no summary (KeyError)."


@override_settings(MLANGO={"MAX_MESSAGE_HISTORY_CHARS": 5000})
def test_a_long_conversation_goes_on_where_it_would_have_been_stopped():
    result, _, compacted = read(True)
    assert result.ok
    assert compacted

    provider = ScriptedProvider([*asks(10), "done"])
    assert reader(None).run("hi", provider=provider).stop_reason == "history_limit"


@override_settings(MLANGO={"MAX_MESSAGE_HISTORY_CHARS": 5000})
def test_what_cannot_be_shortened_is_stopped():
    history = [{"role": "user", "content": "y" * 6000}, {"role": "assistant", "content": "ok"}]
    result, _, _ = read(True, 0, history=history)
    assert result.stop_reason == "history_limit"


def test_tokens_are_counted_as_the_model_counts_them():
    # A script in which a character is a token: four times what is guessed at first.
    turns = [
        Completion(tool_calls=[call("look", page=page)], usage=Usage(input_tokens=1100 * page))
        for page in range(10)
    ]
    provider = ScriptedProvider([*turns, "done"])
    events = list(reader(Compaction(window=5000)).stream("hi", provider=provider))
    first = next(event for event in events if isinstance(event, Compacted))
    assert first.step < 7


def test_the_window_of_a_known_model_comes_from_the_table():
    assert context_window("openai", "gpt-4o") == 128_000
    assert context_window("openai", "no-such-model") is None


@pytest.mark.django_db(transaction=True)
def test_the_trace_has_a_row_that_points_at_what_it_covers():
    agent = reader(summarise(summarizer=lambda messages, ctx: "So far."), tracing=True)
    result = agent.run("hi", provider=ScriptedProvider([*asks(6), "done"]))
    trace = Trace.objects.get(uuid=result.trace_uuid)
    row = next(span for span in trace.spans if span.kind == "memory")

    assert row.output == "So far."
    assert row.input["covers"] == [0, 7]
    assert trace.messages == result.messages
    assert len([span for span in trace.spans if span.kind == "tool"]) == 6


@pytest.mark.parametrize(
    "options",
    [
        {"threshold": 0},
        {"threshold": 2},
        {"strategy": "forget"},
        {"window": -1},
        {"keep": 0},
        {"summarizer": 7},
    ],
)
def test_what_cannot_be_right_is_refused(options):
    with pytest.raises(Misconfigured, match=next(iter(options))):
        Compaction(**options)


def test_a_compaction_is_true_or_a_compaction():
    assert reader(True)._meta.compaction == Compaction()
    assert not reader(False)._meta.compaction
    with pytest.raises(Misconfigured, match="compaction must be"):
        reader("prune")


class TestWhatTheModelRefusesAsTooLong:
    """The table of models may be wrong, and tokens are only guessed."""

    too_long = ContextLengthExceeded("too long")

    def read(self, *turns, compaction=True, **meta):
        provider = ScriptedProvider([*asks(5), *turns])
        agent = reader(compaction, **meta)
        events = list(agent.stream("Read them all.", provider=provider, raise_on_error=False))
        return events, provider

    def test_it_is_shortened_and_asked_once_more(self):
        events, provider = self.read(self.too_long, "done")
        kinds = [event.kind for event in events[-6:]]
        assert kinds == [
            "thinking",
            "compacted",
            "thinking",
            "text_chunk",
            "step_finished",
            "finished",
        ]
        assert events[-1].result.text == "done"
        assert events[-1].result.steps == 6
        assert contents(provider.calls[-2])[0] == f"page 0 {LONG}"
        assert contents(provider.last_call)[0].startswith("[pruned")
        assert contents(provider.last_call)[-1] == f"page 4 {LONG}"
        assert is_valid(provider.last_call.messages)

    def test_it_is_not_asked_a_third_time(self):
        events, provider = self.read(self.too_long, self.too_long, "never asked")
        assert events[-1].exception_type == "ContextLengthExceeded"
        assert len(provider.calls) == 7

    def test_what_cannot_be_shorter_is_not_asked_again(self):
        provider = ScriptedProvider([self.too_long, "never asked"])
        with pytest.raises(ContextLengthExceeded):
            reader(True).run("hi", provider=provider)
        assert len(provider.calls) == 1

    def test_the_next_step_knows_how_much_is_too_much(self):
        more = Completion(tool_calls=[call("look", page=page) for page in range(5, 8)])
        events, provider = self.read(self.too_long, more, "done")
        assert [event.kind for event in events].count("compacted") == 2
        assert events[-1].result.text == "done"
        assert len(provider.calls) == 8

    def test_other_errors_are_not_mended(self):
        events, _ = self.read(ValueError("broken"))
        assert events[-1].kind == "failed"
        assert "compacted" not in [event.kind for event in events]

    def test_without_compaction_it_fails(self):
        events, provider = self.read(self.too_long, compaction=False)
        assert events[-1].exception_type == "ContextLengthExceeded"
        assert len(provider.calls) == 6

    def test_a_summary_does_it_too(self):
        compaction = Compaction(strategy="summarise", summarizer=lambda messages, ctx: "Short.")
        events, provider = self.read(self.too_long, "done", compaction=compaction)
        assert events[-1].result.text == "done"
        assert provider.last_call.messages[0]["content"].endswith("Short.")

    def test_the_hooks_read_what_is_shorter(self):
        seen = []

        def look_at(messages, ctx):
            seen.append(len([m for m in messages if str(m["content"]).startswith("[pruned")]))

        self.read(self.too_long, "done", hooks=[Hooks(before_model=look_at)])
        assert seen[-2] == 0
        assert seen[-1] > 0

    async def test_it_holds_for_async_runs(self):
        provider = ScriptedProvider([*asks(5), self.too_long, "done"])
        run = await reader(True).arun("Read them all.", provider=provider)
        assert run.text == "done"
