"""Cassettes: what a provider said, recorded once and played back without it."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
from contextlib import aclosing
from decimal import Decimal

import pytest

from mlango.agents import Agent, tool
from mlango.agents.providers import (
    Cassette,
    Completion,
    LiteLLMProvider,
    OpenAICompatibleProvider,
    Provider,
    ReasoningDelta,
    RecordingProvider,
    ReplayProvider,
    ScriptedProvider,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from mlango.agents.providers.fingerprint import canonical, difference
from mlango.agents.providers.scripted import call
from mlango.exceptions import (
    CassetteError,
    MalformedResponse,
    Misconfigured,
    ProviderError,
    RateLimited,
    RunError,
)
from tests.fake_model import RESET, Answer, calls, chunk, fails, says, tail, texts

KEY = "sk-canary-0123456789abcdef"


def user(text):
    return {"role": "user", "content": text}


def ask(provider, said="hello", **request):
    messages = said if isinstance(said, list) else [user(said)]

    async def collect():
        async with aclosing(provider.astream(messages=messages, **request)) as stream:
            return [delta async for delta in stream]

    return asyncio.run(collect())


def answer(provider, said="hello", **request):
    return ask(provider, said, **request)[-1].text


@pytest.fixture
def path(tmp_path):
    return tmp_path / "cassettes" / "one.jsonl"


def record(path, *turns, mode="new"):
    return RecordingProvider(ScriptedProvider(turns), path, mode)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Adder(Agent):
    """Adds."""

    class Meta:
        app_label = "tests"
        system = "You add."
        tools = [add]
        tracing = False
        model = "any"


# -- what is played -----------------------------------------------------------------------------


class TestReplay:
    def test_an_answer_is_played_as_it_was_streamed(self, path):
        turn = Completion(
            "Hello big world",
            [ToolCall("c", "add", '{"a": 1}')],
            usage=Usage(7, 3, 2, 1, 1, estimated=True),
            raw_content={"model": "m", "message": {"x": [1]}, "tool_calls": [{}]},
            model="m-1",
            reasoning="Let me think",
            images=[{"type": "image_url", "image_url": {"url": "https://x/y.png"}}],
        )
        live = ask(record(path, turn))

        assert ask(ReplayProvider(path)) == live
        assert live[:3] == [ReasoningDelta("Let "), ReasoningDelta("me "), ReasoningDelta("think")]
        assert live[6] == ToolCallDelta(0, "c", "add", '{"a": 1}')

    def test_a_refusal_is_played(self, path):
        turn = {"text": "", "stop_reason": "refusal", "refusal": "No."}
        live = ask(record(path, turn))

        assert ask(ReplayProvider(path)) == live

    def test_calls_are_matched_by_content_and_not_by_order(self, path):
        recorder = record(path, "A", "B")
        ask(recorder, "a")
        ask(recorder, "b")

        replay = ReplayProvider(path)

        assert [answer(replay, "b"), answer(replay, "a")] == ["B", "A"]

    def test_equal_requests_are_played_in_the_order_of_their_recording(self, path):
        recorder = record(path, "first", "second")
        ask(recorder)
        ask(recorder)

        replay = ReplayProvider(path)

        assert [answer(replay), answer(replay)] == ["first", "second"]

    def test_a_replay_bears_the_name_of_what_was_recorded(self, path):
        ask(record(path, "A"))

        assert ReplayProvider(path).name == "scripted"
        assert ReplayProvider(path).offline
        assert not ReplayProvider(path).needs_model

    def test_an_error_is_played_with_all_it_told(self, path):
        error = RateLimited("Slow down.", provider="here", status=429, retry_after=3, text="ha")
        recorder = record(path, {"text": "half a", "error": error}, "then")

        async def read(provider):
            seen = []
            try:
                async for delta in provider.astream(messages=[user("hello")]):
                    seen.append(delta)  # noqa: PERF401 - kept when the stream breaks
            except ProviderError as caught:
                return seen, type(caught), caught.describe()
            return seen

        live = asyncio.run(read(recorder))
        asyncio.run(read(recorder))
        replay = ReplayProvider(path)

        assert asyncio.run(read(replay)) == live
        assert live[0] == ["half ", "a"]
        assert live[1] is RateLimited
        assert answer(replay) == "then"

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            (
                "run 0f8fad5b-d9cb-469f-a165-70867728950e",
                "run 7c9e6679-7425-40de-944b-e07fc1f90ae7",
            ),
            ("run 0f8fad5bd9cb469fa16570867728950e", "run 7c9e6679742540de944be07fc1f90ae7"),
            ("It is 2026-12-01T10:00:00Z", "It is 2027-01-31 23:59:01.5+02:00"),
            ("Today is 2026-12-01.", "Today is 2027-01-02."),
        ],
    )
    def test_what_changes_each_time_does_not_count(self, path, one, other):
        ask(record(path, "A", mode="new"), one, system=one)

        assert answer(ReplayProvider(path, strict=True), other, system=other) == "A"

    def test_ids_of_calls_count_by_their_order(self, path):
        def conversation(*ids):
            made = [
                {"id": each, "type": "function", "function": {"name": "add", "arguments": "{}"}}
                for each in ids
            ]
            results = [{"role": "tool", "tool_call_id": each, "content": each[-1]} for each in ids]
            return [user("hi"), {"role": "assistant", "content": "", "tool_calls": made}, *results]

        ask(record(path, "A"), conversation("id_1", "id_2"))

        with pytest.raises(CassetteError):
            ask(ReplayProvider(path, strict=True), conversation("id_2", "id_1"))
        assert answer(ReplayProvider(path, strict=True), conversation("x1", "x2")) == "A"

    def test_options_of_another_type_are_another_request(self, path):
        assert canonical({1: "a"}) != canonical({"1": "a"})
        assert len({canonical(value) for value in (1, 1.0, "1", True, None, [1], "True")}) == 7
        assert canonical({"a": 1, "b": 2}) == canonical({"b": 2, "a": 1})
        ask(record(path, "A"), seed=1)

        with pytest.raises(CassetteError, match=r"options.seed is 1.0, not 1"):
            ask(ReplayProvider(path, strict=True), seed=1.0)


class TestUnrecordedCalls:
    def test_strict_tells_the_first_difference(self, path):
        ask(record(path, "A"), "refund order 7 please", system="Be kind.", model="m")

        with pytest.raises(CassetteError) as caught:
            ask(
                ReplayProvider(path, strict=True),
                "refund order 8 please",
                system="Be kind.",
                model="m",
            )

        assert str(caught.value) == (
            f"Call 1 was not recorded in {str(path)!r}. Compared with line 2, "
            f"messages[0].content is 'refund order 8 please', not 'refund order 7 please'. "
            f"Delete the file and record it anew if that is right."
        )

    @pytest.mark.parametrize(
        ("changed", "told"),
        [
            ({"model": "n"}, "model is 'n', not 'm'"),
            ({"system": "Be rude."}, "system is 'Be rude.', not 'Be kind.'"),
            ({"temperature": 0.5}, "options.temperature was only asked"),
            ({"max_tokens": 5}, "options.max_tokens is 5, not 9"),
            ({"tools": [{"name": "x"}]}, "tools is [{'name': 'x'}], not None"),
        ],
    )
    def test_any_part_of_a_request_may_differ(self, path, changed, told):
        asked = {"system": "Be kind.", "model": "m", "max_tokens": 9}
        ask(record(path, "A"), **asked)

        with pytest.raises(CassetteError) as caught:
            ask(ReplayProvider(path, strict=True), **{**asked, **changed})

        assert told in str(caught.value)

    def test_a_long_text_is_shown_around_its_difference(self):
        one, other = "x" * 100 + "left" + "y" * 100, "x" * 100 + "right" + "y" * 100

        told = difference({"a": one}, {"a": other})

        assert told.startswith("a is …'xxxxxxxxxxxxxxxxxxxxright")
        assert len(told) < 160

    def test_one_message_more_is_told(self, path):
        ask(record(path, "A"))

        with pytest.raises(CassetteError, match=r"messages has 2 items, not 1"):
            ask(ReplayProvider(path, strict=True), [user("hello"), user("hello?")])

    def test_a_recording_is_played_once(self, path):
        ask(record(path, "A"))
        replay = ReplayProvider(path)
        ask(replay)

        with pytest.raises(CassetteError, match="so often: it was recorded and played 1 times"):
            ask(replay)

    def test_when_all_were_played_that_is_told(self, path):
        ask(record(path, "A"))
        replay = ReplayProvider(path, strict=True)
        ask(replay)

        with pytest.raises(CassetteError, match="all 1 recordings have been played"):
            ask(replay, "other")

    def test_a_changed_prompt_is_played_with_a_warning(self, path, caplog):
        ask(record(path, "A"), system="Be kind.")

        with caplog.at_level(logging.WARNING, "mlango.providers"):
            text = answer(ReplayProvider(path), system="Be very kind.")

        assert text == "A"
        assert caplog.records[0].getMessage() == (
            f"Call 1 was not recorded in {str(path)!r}: line 2 is used, though "
            f"system is 'Be very kind.', not 'Be kind.'."
        )

    def test_an_edited_request_does_not_take_the_recording_of_another(self, path):
        recorder = record(path, "answer A", "answer B")
        ask(recorder, "list the users")
        ask(recorder, "refund the order")
        replay = ReplayProvider(path)

        assert answer(replay, "refund the order, please") == "answer B"
        assert answer(replay, "list the users") == "answer A"

    def test_another_step_is_never_played(self, path):
        ask(record(path, "A"))
        later = [user("hello"), {"role": "assistant", "content": "x"}, user("and then?")]

        with pytest.raises(CassetteError, match="was not recorded"):
            ask(ReplayProvider(path), later)

    def test_another_agent_is_never_played(self, path):
        class Deleter(Agent):
            class Meta:
                app_label = "tests"
                system = "You delete."
                tracing = False

        Adder().run("hello", provider=record(path, "A"))

        with pytest.raises(RunError, match="CassetteError: Call 1 was not recorded"):
            Deleter().run("delete all users?", provider=ReplayProvider(path))

    def test_unused_recordings_are_told(self, path):
        recorder = record(path, "A", "B")
        ask(recorder, "one")
        ask(recorder, "two")
        replay = ReplayProvider(path)
        ask(replay, "one")

        with pytest.raises(AssertionError) as caught:
            replay.assert_all_used()

        assert str(caught.value) == (
            f"1 of 2 recordings in {str(path)!r} were not used: line 3 (no agent, 'two')."
        )
        assert [each.line for each in replay.unused] == [3]
        ask(replay, "two")
        replay.assert_all_used()


# -- what is written ----------------------------------------------------------------------------


class TestFile:
    def test_each_call_is_one_line_after_the_first(self, path):
        recorder = record(path, "A", "B")
        ask(recorder, "one", model="m", system="s", max_tokens=5)
        ask(recorder, "two", model="m", system="s", max_tokens=5)

        header, first, second = lines(path)

        assert header == {"mlango_cassette": 1, "provider": "scripted"}
        assert first["messages"] == [user("one")]
        assert first["request"] == {
            "model": "m",
            "system": "s",
            "tools": None,
            "options": {"max_tokens": 5},
        }
        assert first["pieces"] == ["A"]
        assert first["response"] == {
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 10, "output_tokens": 5},
        }
        assert second["after"] is None

    def test_a_conversation_is_written_once(self, path):
        turns = [call("add", a=1, b=1)] * 40 + ["done"]

        Adder().run("Add.", provider=record(path, *turns), max_steps=50)
        _, *entries = lines(path)
        sizes = [len(json.dumps(entry)) for entry in entries]

        assert [len(entry["messages"]) for entry in entries] == [1] + [2] * 40
        assert entries[1]["after"] == 2
        assert entries[1]["request"] == {}
        assert max(sizes[1:]) < 2 * min(sizes[1:])
        replayed = Adder().run("Add.", provider=ReplayProvider(path, strict=True), max_steps=50)
        assert replayed.text == "done"

    def test_what_changes_in_a_conversation_is_written(self, path):
        recorder = record(path, "A", "B", "C")
        messages = [user("hello")]
        asked = {"system": "Be kind.", "model": "m"}

        ask(recorder, messages, tools=[{"name": "x"}], **asked)
        messages.append({"role": "assistant", "content": "A"})
        ask(recorder, messages, tools=[{"name": "y"}], **asked | {"system": "Be brief."})
        messages.append({"role": "assistant", "content": "B"})
        ask(recorder, messages, tools=[{"name": "y"}], **asked | {"system": "Be brief."})

        requests = [entry["request"] for entry in lines(path)[1:]]
        assert requests[1:] == [{"system": "Be brief.", "tools": [{"name": "y"}]}, {}]
        last = Cassette(path).read().recordings[2]
        assert last.request["tools"] == [{"name": "y"}]
        assert last.request["model"] == "m"
        assert [message["content"] for message in last.messages] == ["hello", "A", "B"]

    def test_two_runs_may_be_recorded_side_by_side(self, path):
        recorder = record(path, *[call("add", a=1, b=1)] * 2, *["done"] * 2)

        async def both(provider):
            runs = (Adder().arun(said, provider=provider) for said in ("one", "two"))
            return [run.text for run in await asyncio.gather(*runs)]

        assert asyncio.run(both(recorder)) == ["done", "done"]
        replay = ReplayProvider(path, strict=True)
        assert asyncio.run(both(replay)) == ["done", "done"]
        replay.assert_all_used()

    def test_a_step_that_fails_leaves_those_before(self, path):
        recorder = record(path, call("add", a=1, b=2), RuntimeError("boom"))

        with pytest.raises(RunError):
            Adder().run("Add.", provider=recorder)

        assert len(lines(path)) == 2

    def test_the_label_of_the_agent_is_written(self, path):
        Adder().run("Add.", provider=record(path, "A"))

        assert lines(path)[1]["agent"] == "tests.Adder"

    def test_a_file_that_is_there_is_not_touched(self, path):
        ask(record(path, "A"))
        before = path.read_bytes()

        with pytest.raises(
            CassetteError, match=r"is already there. Delete it, or pass mode='overwr"
        ):
            record(path, "B")
        assert path.read_bytes() == before

    def test_append_adds(self, path):
        ask(record(path, "A"), "one")
        ask(record(path, "B", mode="append"), "two")

        replay = ReplayProvider(path)

        assert [answer(replay, "one"), answer(replay, "two")] == ["A", "B"]

    def test_append_to_nothing_begins(self, path):
        ask(record(path, "A", mode="append"))

        assert answer(ReplayProvider(path)) == "A"

    def test_overwrite_replaces_once_there_is_something_new(self, path):
        ask(record(path, "A"), "one")
        recorder = record(path, "B", mode="overwrite")

        assert answer(ReplayProvider(path), "one") == "A"
        ask(recorder, "two")
        assert [each.messages for each in ReplayProvider(path).unused] == [[user("two")]]
        assert [each.name for each in path.parent.iterdir()] == [path.name]

    def test_an_unknown_mode_is_refused(self, path):
        with pytest.raises(Misconfigured, match=r"no mode 'apend'. Did you mean 'append'"):
            record(path, mode="apend")

    def test_an_alias_may_be_recorded(self, path):
        ask(RecordingProvider("echo", path), "hi")

        assert answer(ReplayProvider(path), "hi") == "echo: hi"

    def test_secrets_are_not_written(self, path, monkeypatch):
        monkeypatch.setenv("SHOP_API_KEY", "a-long-value-of-no-known-form")
        hidden = f"{KEY} and a-long-value-of-no-known-form"
        turn = Completion(f"It is {hidden}", [ToolCall("1", "add", json.dumps({"k": hidden}))])
        recorder = record(path, turn, RateLimited(f"bad {KEY}"))
        asked = {"system": hidden, "tools": [{"description": hidden}], "api_key": "short"}

        ask(recorder, hidden, **asked)
        with pytest.raises(RateLimited):
            ask(recorder, hidden)

        written = path.read_text()
        assert KEY not in written
        assert "no-known-form" not in written
        assert "short" not in written
        replay = ReplayProvider(path, strict=True)
        assert answer(replay, hidden, **asked) == "It is [REDACTED] and [REDACTED]"

    def test_a_secret_across_two_pieces_is_not_written(self, path):
        class Pieces(Provider):
            async def astream(self, **request):
                yield "key sk-canary-01234"
                yield "56789abcdef end"
                yield ToolCallDelta(0, "1", "f", '{"k": "sk-canary-01234')
                yield ToolCallDelta(0, "1", "f", '56789abcdef"}')
                call = ToolCall("1", "f", json.dumps({"k": KEY}))
                yield Completion(f"key {KEY} end", [call])

        ask(RecordingProvider(Pieces(), path))

        assert "56789abcdef" not in path.read_text()
        assert answer(ReplayProvider(path)) == "key [REDACTED] end"

    def test_a_full_disk_is_told_and_what_was_written_stays(self, path, monkeypatch):
        recorder = record(path, "A", "B", "C")
        ask(recorder, "one")
        before = path.read_bytes()
        write = os.write

        def full(file, data):
            if len(data) < 20:
                raise OSError(errno.ENOSPC, "No space left on device")
            return write(file, data[:20])

        monkeypatch.setattr(os, "write", full)
        with pytest.raises(CassetteError) as caught:
            ask(recorder, "two")
        monkeypatch.undo()

        assert str(caught.value) == (
            f"The cassette {str(path)!r} cannot be written: No space left on device. "
            f"What was recorded before is kept."
        )
        assert path.read_bytes() == before
        ask(recorder, "three")
        assert answer(ReplayProvider(path), "three") == "C"

    def test_a_folder_that_cannot_be_made_is_told(self, tmp_path):
        (tmp_path / "file").write_text("")

        with pytest.raises(CassetteError, match="cannot be written: File exists"):
            ask(record(tmp_path / "file" / "one.jsonl", "A"))


class TestBrokenFiles:
    def broken(self, path, text):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        with pytest.raises(CassetteError) as caught:
            ReplayProvider(path)
        assert repr(str(path)) in str(caught.value)
        return str(caught.value)

    def test_a_missing_file(self, path):
        with pytest.raises(CassetteError, match=r"is not there. Record it: .*RecordingProvider"):
            ReplayProvider(path)

    def test_a_folder(self, tmp_path):
        with pytest.raises(CassetteError, match="cannot be read: Is a directory"):
            ReplayProvider(tmp_path)

    def test_an_empty_file(self, path):
        assert "is empty. Delete it and record it anew." in self.broken(path, "")

    def test_other_json(self, path):
        assert "is no cassette: its first line" in self.broken(path, '{"version": 1}\n')
        assert "has no object in line 1" in self.broken(path, "[]\n")

    def test_another_version(self, path):
        told = self.broken(path, '{"mlango_cassette": 2}\n')

        assert "has version 2, but this mlango reads version 1. Record it anew." in told

    def test_a_line_that_was_cut_off(self, path):
        ask(record(path, "A"))
        text = path.read_text()

        told = self.broken(path, text + text.splitlines()[1][:40])

        assert "is cut off in line 3. Delete that line to go on without it." in told

    def test_a_line_without_json(self, path):
        assert "has no JSON in line 2" in self.broken(path, '{"mlango_cassette": 1}\nx\n')

    @pytest.mark.parametrize("field", ["key", "pieces", "response", "messages", "request"])
    def test_a_call_that_is_not_whole(self, path, field):
        ask(record(path, "A"))
        header, entry = lines(path)
        del entry[field]

        told = self.broken(path, f"{json.dumps(header)}\n{json.dumps(entry)}\n")

        assert f"has no whole call in line 2 (KeyError: '{field}')" in told

    def test_a_call_with_another_shape(self, path):
        ask(record(path, "A"))
        header, entry = lines(path)
        entry["response"]["usage"] = {"tokens": 4}

        told = self.broken(path, f"{json.dumps(header)}\n{json.dumps(entry)}\n")

        assert "has no whole call in line 2 (TypeError:" in told

    def test_a_cassette_can_be_looked_at(self, path):
        ask(record(path, "A"), model="m")

        (recording,) = Cassette(path).read().recordings

        assert recording.request["model"] == "m"
        assert recording.completion.text == "A"


# -- through the loop ---------------------------------------------------------------------------


def told(events, trace):
    """Return events as data, without what is another at each run."""
    described = [event.describe() for event in events]
    for each in described:
        for name in ("at", "run", "trace", "elapsed", "duration_s"):
            each.pop(name, None)
        for result in each.get("tool_results", ()):
            result.pop("duration_s")
        assert trace not in json.dumps(each)
    return described


async def run(provider, **options):
    async with Adder().astream("What is 1 + 2 and 3 + 4?", provider=provider, **options) as stream:
        events = [event async for event in stream]
    return told(events, stream.run.trace_uuid), stream.run


def make(kind, url):
    if kind == "litellm":
        return LiteLLMProvider(prefix="openai/", api_base=url, api_key=KEY)
    return OpenAICompatibleProvider(url, api_key=KEY)


SCRIPT = (
    calls(("call_1", "add", {"a": 1, "b": 2}), ("call_2", "add", {"a": 3, "b": 4})),
    Answer(
        [
            chunk({"reasoning_content": "Now I know."}),
            *texts("3 and 7, which is"),
            chunk({"content": " all."}, "stop"),
            *tail(),
        ]
    ),
)


@pytest.mark.parametrize(
    "kind",
    [
        "http",
        pytest.param("litellm", marks=pytest.mark.filterwarnings("ignore")),
    ],
)
class TestRuns:
    async def test_a_replay_has_the_events_of_the_live_run(self, kind, model, path):
        provider = make(kind, model.url)
        model.script(*SCRIPT)

        live, live_run = await run(RecordingProvider(provider, path))
        await provider.aclose()
        model.clear()
        replay = ReplayProvider(path, strict=True)
        played, played_run = await run(replay)

        assert played == live
        assert played_run.text == "3 and 7, which is all."
        assert played_run.usage == live_run.usage
        assert live_run.usage.total_tokens == 30
        assert [event["kind"] for event in live].count("text_chunk") == 6
        assert [event["kind"] for event in live].count("tool_call_chunk") == 6
        assert KEY not in path.read_text()
        assert model.requests == []
        replay.assert_all_used()

    async def test_errors_and_retries_are_played_too(self, kind, model, path):
        provider = make(kind, model.url)
        model.script(fails(503, Retry_After="0"), Answer([*texts("half an"), RESET]))

        live, live_run = await run(RecordingProvider(provider, path))
        await provider.aclose()
        model.clear()
        played, played_run = await run(ReplayProvider(path, strict=True))

        assert played == live
        assert [event["kind"] for event in live].count("retrying") == 1
        assert live[-1]["kind"] == "failed"
        assert live[-1]["exception_type"] == MalformedResponse.__name__
        assert played_run.error == live_run.error
        assert model.requests == []

    async def test_what_is_recorded_is_streamed(self, kind, model, path):
        provider = RecordingProvider(make(kind, model.url), path)
        model.script(Answer([*texts("first "), "stall"]))

        async with aclosing(provider.astream(model="m", messages=[user("hi")])) as stream:
            assert await anext(stream) == "first "
        await provider.aclose()

        assert not path.exists()


def test_a_replayed_run_costs_what_the_recorded_one_did(path, settings):
    settings.MLANGO = {"PRICES": {"scripted/*": {"input": 2, "output": 4}}}

    class Paid(ScriptedProvider):
        offline = False

    live = Adder().run("hi", provider=RecordingProvider(Paid(["A"]), path))
    played = Adder().run("hi", provider=ReplayProvider(path))

    assert played.cost == live.cost == Decimal("0.00004")


def test_the_documented_example_runs(tmp_path, settings, model):
    settings.MLANGO = {
        "PROVIDERS": {"anthropic": {"BACKEND": f"{__name__}.Fake", "OPTIONS": {"url": model.url}}}
    }
    from mlango.agents.providers import get_provider

    path = tmp_path / "refund.json"
    model.script(says("Refunded."))

    live = Adder().run(
        "refund please", provider=RecordingProvider(get_provider("anthropic"), path)
    )
    played = Adder().run("refund please", provider=ReplayProvider(path))

    assert played.output == live.output == "Refunded."
    assert len(model.requests) == 1


class Fake(OpenAICompatibleProvider):
    def __init__(self, url):
        super().__init__(url)
