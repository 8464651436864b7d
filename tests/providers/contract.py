"""What every provider that speaks HTTP must do, tested against the fake model server."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from contextlib import aclosing

import pytest

from mlango.agents.providers import (
    Completion,
    ReasoningDelta,
    RecordingProvider,
    ReplayProvider,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from mlango.core.loop import iterate
from mlango.core.messages import assistant_message, tool_message
from mlango.core.options import Bounds
from mlango.core.run import Run
from mlango.core.tools import Toolbox, tool
from mlango.core.values import dumps
from mlango.exceptions import (
    AuthenticationFailed,
    ContentFiltered,
    ContextLengthExceeded,
    EmptyResponse,
    InvalidRequest,
    MalformedResponse,
    ProviderError,
    ProviderTimeout,
    ProviderUnavailable,
    RateLimited,
)
from tests.fake_model import (
    RESET,
    STALL,
    USAGE,
    Answer,
    calls,
    chunk,
    deltas,
    document,
    event,
    fails,
    says,
    tail,
    texts,
    tool_delta,
)

CANARY = "sk-canary-0123456789abcdef"
PROMPT = "a secret prompt"
HELLO = [{"role": "user", "content": PROMPT}]
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}


async def collect(provider, messages=HELLO, **request):
    request.setdefault("model", "fake")
    async with aclosing(provider.astream(messages=messages, **request)) as stream:
        return [delta async for delta in stream]


async def failure(provider, **request):
    """Return the error of a call, and the deltas that came before it."""
    seen = []

    async def read():
        async with aclosing(provider.astream(model="fake", messages=HELLO, **request)) as stream:
            async for delta in stream:
                seen.append(delta)  # noqa: PERF401 - kept when the stream breaks

    with pytest.raises(ProviderError) as caught:
        await read()
    assert PROMPT not in str(caught.value)
    assert CANARY not in str(caught.value)
    assert repr(provider.name) in str(caught.value)
    return caught.value, seen


class ProviderContract:
    """Subclasses have a fixture ``provider`` whose requests go to the fixture ``model``."""

    patience = 0.05  # seconds in which a request has surely been sent

    # -- answers ------------------------------------------------------------------------------

    async def test_an_answer_that_was_not_streamed_is_taken(self, provider, model):
        message = {
            "content": "Two calls.",
            "tool_calls": [
                {"function": {"name": "today", "arguments": {}}},
                {"id": "b", "function": {"name": "add", "arguments": '{"a": 1}'}},
            ],
        }
        model.script(
            document(
                {
                    "model": "m1",
                    "choices": [{"message": message, "finish_reason": "tool_calls"}],
                    "usage": USAGE,
                }
            )
        )

        answer = await collect(provider)

        assert answer[0] == "Two calls."
        assert answer[-1].tool_calls == [
            ToolCall("", "today", "{}"),
            ToolCall("b", "add", '{"a": 1}'),
        ]
        assert answer[-1].usage.input_tokens == 10
        assert answer[-1].model == "m1"

    async def test_an_error_with_status_200_is_an_error(self, provider, model):
        model.script(document({"error": {"message": "slow down", "code": 429}}))

        caught, _ = await failure(provider)

        assert isinstance(caught, RateLimited)

    async def test_text_is_streamed_as_it_comes(self, provider, model):
        model.script(says("Hello big world"))

        answer = await collect(provider)

        assert answer[:-1] == ["Hello ", "big ", "world"]
        assert answer[-1].text == "Hello big world"
        assert answer[-1].stop_reason == Completion.END_TURN
        assert answer[-1].raw_content is None

    async def test_the_first_piece_does_not_wait_for_the_last(self, provider, model):
        model.script(Answer([*texts("Hello "), STALL]))

        async with aclosing(provider.astream(model="fake", messages=HELLO)) as stream:
            assert await anext(stream) == "Hello "

    async def test_a_tool_call_is_put_together(self, provider, model):
        model.script(calls(("call_1", "add", {"a": 1})))

        *pieces, answer = await collect(provider, tools=[ADD])

        assert answer.tool_calls == [ToolCall("call_1", "add", '{"a": 1}')]
        assert answer.stop_reason == Completion.TOOL_USE
        assert pieces[0] == ToolCallDelta(0, "call_1", "add", "")
        assert "".join(piece.arguments for piece in pieces) == '{"a": 1}'

    async def test_parallel_calls_keep_their_order(self, provider, model):
        model.script(calls(("x", "add", {"a": 1}), ("y", "add", {"a": 2}), ("z", "sub", {})))

        answer = (await collect(provider, tools=[ADD]))[-1]

        assert [(c.id, c.name, json.loads(c.arguments)) for c in answer.tool_calls] == [
            ("x", "add", {"a": 1}),
            ("y", "add", {"a": 2}),
            ("z", "sub", {}),
        ]

    async def test_calls_with_one_index_and_two_ids_are_two(self, provider, model):
        model.script(deltas((0, "a", "add", '{"a": 1}'), (0, "b", "add", '{"a": 2}')))

        answer = (await collect(provider, tools=[ADD]))[-1]

        assert [call.arguments for call in answer.tool_calls] == ['{"a": 1}', '{"a": 2}']

    async def test_a_call_without_arguments_gets_an_empty_object(self, provider, model):
        model.script(deltas((0, "a", "today", "")))

        assert (await collect(provider))[-1].tool_calls == [ToolCall("a", "today", "{}")]

    async def test_text_and_calls_come_together(self, provider, model):
        pieces = [*texts("Let me see"), chunk({"tool_calls": [tool_delta(0, "a", "add", "{}")]})]
        model.script(Answer([*pieces, chunk({}, "tool_calls"), *tail()]))

        answer = (await collect(provider))[-1]

        assert (answer.text, len(answer.tool_calls)) == ("Let me see", 1)

    async def test_reasoning_is_told_apart_and_sent_back(self, provider, model):
        thought = [chunk({"reasoning_content": "Let me "}), chunk({"reasoning_content": "think."})]
        model.script(Answer([*thought, *texts("Yes"), chunk({}, "stop"), *tail()]), says("ok"))

        answer = await collect(provider)
        turn = assistant_message(answer[-1], provider.name)
        await collect(provider, [*HELLO, turn, *HELLO])

        assert answer[:2] == [ReasoningDelta("Let me "), ReasoningDelta("think.")]
        assert answer[-1].reasoning == "Let me think."
        assert model.requests[1]["messages"][1]["reasoning_content"] == "Let me think."

    async def test_what_another_model_thought_is_not_sent(self, provider, model):
        turn = {
            "role": "assistant",
            "content": "Yes",
            "provider": provider.name,
            "raw_content": {
                "model": "other",
                "message": {"reasoning_content": "Hm."},
                "tool_calls": [],
            },
        }
        model.script(says("ok"))

        await collect(provider, [*HELLO, turn, *HELLO])

        assert model.requests[0]["messages"][1] == {"role": "assistant", "content": "Yes"}

    @pytest.mark.parametrize(
        ("finish", "reason"),
        [
            ("stop", Completion.END_TURN),
            ("length", Completion.MAX_TOKENS),
            ("content_filter", Completion.CONTENT_FILTER),
        ],
    )
    async def test_the_reason_to_stop_is_mapped(self, provider, model, finish, reason):
        model.script(says("half", finish=finish))

        assert (await collect(provider))[-1].stop_reason == reason

    async def test_a_length_limit_wins_over_a_cut_call(self, provider, model):
        model.script(deltas((0, "a", "add", '{"x":"abc'), finish="length"))

        answer = (await collect(provider))[-1]

        assert answer.stop_reason == Completion.MAX_TOKENS
        assert answer.tool_calls == [ToolCall("a", "add", '{"x":"abc')]

    # -- usage --------------------------------------------------------------------------------

    async def test_usage_in_a_tail_without_choices_is_read(self, provider, model):
        model.script(says("Hello"))

        assert (await collect(provider))[-1].usage == Usage(10, 5)
        assert model.requests[0]["stream_options"] == {"include_usage": True}

    async def test_usage_beside_the_finish_is_read(self, provider, model):
        counted = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}
        model.script(Answer([*texts("Hi"), chunk({}, "stop", usage=counted), event("[DONE]")]))

        assert (await collect(provider))[-1].usage == Usage(1000, 100)

    async def test_growing_usage_is_taken_once(self, provider, model):
        growing = [
            chunk({"content": f"{n} "}, usage={"prompt_tokens": 100, "completion_tokens": n})
            for n in (1, 2)
        ]
        model.script(Answer([*growing, chunk({}, "stop"), event("[DONE]")]))

        usage = (await collect(provider))[-1].usage

        assert (usage.input_tokens, usage.output_tokens) == (100, 2)

    async def test_cached_tokens_are_counted_once(self, provider, model):
        counted = {
            "prompt_tokens": 1000,
            "completion_tokens": 100,
            "total_tokens": 1100,
            "prompt_tokens_details": {"cached_tokens": 600},
        }
        model.script(says("Hi", usage=counted))

        assert (await collect(provider))[-1].usage == Usage(1000, 100, 600)

    async def test_usage_that_was_not_told_is_estimated_and_marked(self, provider, model):
        model.script(says("Hello big world", usage=None))

        usage = (await collect(provider))[-1].usage

        assert usage.estimated
        assert usage.input_tokens > 0
        assert usage.output_tokens > 0

    # -- requests -----------------------------------------------------------------------------

    async def test_the_request_holds_what_was_asked(self, provider, model):
        model.script(says("ok"))

        await collect(
            provider,
            system="Be brief.",
            tools=[ADD],
            max_tokens=50,
            temperature=0.5,
            stop_sequences=["END"],
            seed=7,
        )
        request = model.requests[0]

        assert request["messages"] == [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": PROMPT},
        ]
        assert request["tools"] == [ADD]
        assert request["max_tokens"] == 50
        assert request["temperature"] == 0.5
        assert request["stop"] == ["END"]
        assert request["seed"] == 7
        assert request["stream"] is True

    async def test_our_own_marks_are_not_sent_and_the_messages_not_changed(self, provider, model):
        call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
        messages = [
            *HELLO,
            {"role": "assistant", "content": "", "tool_calls": [call]},
            tool_message("1", "It failed.", is_error=True),
        ]
        before = json.dumps(messages)
        model.script(says("ok"))

        await collect(provider, messages)
        sent = model.requests[0]["messages"]

        assert json.dumps(messages) == before
        assert sent[2] == {"role": "tool", "tool_call_id": "1", "content": "It failed."}
        assert not sent[1].get("content")
        assert sent[1]["tool_calls"] == [call]

    async def test_images_of_tools_follow_all_results(self, provider, model):
        made = [
            {"id": n, "type": "function", "function": {"name": "draw", "arguments": "{}"}}
            for n in "12"
        ]
        messages = [
            *HELLO,
            {"role": "assistant", "content": "", "tool_calls": made},
            tool_message("1", [{"type": "text", "text": "A cat."}, IMAGE]),
            tool_message("2", "done"),
        ]
        model.script(says("ok"))

        await collect(provider, messages)
        sent = model.requests[0]["messages"]

        assert [message["role"] for message in sent] == [
            "user",
            "assistant",
            "tool",
            "tool",
            "user",
        ]
        assert sent[2]["content"] == "A cat."
        assert sent[4]["content"][0] == {"type": "text", "text": "Image from tool result:"}
        assert sent[4]["content"][1]["image_url"]["url"] == IMAGE["image_url"]["url"]

    async def test_images_of_the_user_are_sent(self, provider, model):
        model.script(says("ok"))
        content = [{"type": "text", "text": "What is it?"}, IMAGE]

        await collect(provider, [{"role": "user", "content": content}])

        assert model.requests[0]["messages"][0]["content"] == content

    async def test_one_request_is_made_for_one_call(self, provider, model):
        model.script(fails(500), fails(500), fails(500), fails(500))

        await failure(provider)

        assert len(model.requests) == 1

    async def test_an_option_the_model_refuses_is_left_out_with_one_warning(
        self, provider, model, caplog
    ):
        error = {
            "message": "Unsupported parameter: 'temperature' is not supported with this model.",
            "code": "unsupported_parameter",
            "param": "temperature",
        }
        model.script(fails(400, error), says("one"), says("two"))

        with caplog.at_level(logging.WARNING, "mlango.providers"):
            first = await collect(provider, temperature=0.1)
            second = await collect(provider, temperature=0.1)

        assert [first[-1].text, second[-1].text] == ["one", "two"]
        assert ["temperature" in request for request in model.requests] == [True, False, False]
        (warning,) = (record.getMessage() for record in caplog.records)
        assert warning == (
            f"The model {self.model_name!r} of the provider {provider.name!r} does not take "
            f"'temperature': it is left out."
        )

    # -- through the loop ---------------------------------------------------------------------

    def run(self, provider, **limits):
        return Run(
            label="shop.Support",
            provider=provider,
            model="fake",
            said=HELLO,
            toolbox=Toolbox([]),
            bounds=Bounds(max_retries=0, **limits),
        )

    async def told(self, provider):
        """Return the events of a run with a tool as they go over the wire, less the clock."""

        @tool
        async def add(a: int) -> int:
            """Add one."""
            return a + 1

        run = self.run(provider)
        run.uuid, run.toolbox = "0" * 32, Toolbox([add])
        return [self.timeless(event.describe()).encode() async for event in iterate(run)]

    @staticmethod
    def timeless(described):
        return re.sub(
            r'"(at|elapsed|duration_s)": ?("[^"]*"|[0-9.e-]+)', r'"\1": 0', dumps(described)
        )

    async def test_a_recorded_run_tells_the_same_without_the_server(
        self, provider, model, tmp_path
    ):
        both = calls(("id_1", "add", {"a": 1}), ("id_2", "add", {"a": 2}))
        model.script(both, says("two and three"))
        path = tmp_path / "cassette.jsonl"
        live = await self.told(RecordingProvider(provider, path))
        asked = len(model.requests)

        replayed = await self.told(ReplayProvider(path, strict=True))

        assert replayed == live
        assert len(model.requests) == asked == 2
        assert b'"text_chunk"' in b"".join(live)

    @pytest.mark.parametrize("pieces", [[STALL], [*texts("Hello "), STALL]])
    async def test_a_silent_server_is_given_up(self, provider, model, pieces):
        model.script(Answer(pieces))

        *_, last = [
            event async for event in iterate(self.run(provider, chunk_timeout=self.patience))
        ]

        assert last.kind == "failed"
        assert last.exception_type == ProviderTimeout.__name__
        assert f"did not send anything for {self.patience:g} seconds" in last.error

    async def test_an_answer_without_end_is_given_up(self, provider, model):
        drip = [piece for word in range(100) for piece in (chunk({"content": f"{word} "}), 0.02)]
        model.script(Answer(drip))

        run = self.run(provider, model_timeout=2 * self.patience, chunk_timeout=10)
        *_, last = [event async for event in iterate(run)]

        assert last.exception_type == ProviderTimeout.__name__
        assert "did not end its answer" in last.error

    async def test_a_slow_stream_that_moves_goes_on(self, provider, model):
        drip = [piece for word in texts("a b c d e f g h i j k l") for piece in (0.05, word)]
        model.script(Answer([*drip, chunk({}, "stop"), *tail()]))

        *_, last = [event async for event in iterate(self.run(provider, chunk_timeout=0.5))]

        assert last.kind == "finished"
        assert last.output == "a b c d e f g h i j k l"

    # -- errors -------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("status", "error", "kind", "retryable"),
        [
            (401, {"message": f"Incorrect key {CANARY}"}, AuthenticationFailed, False),
            (403, {"message": "no"}, AuthenticationFailed, False),
            (429, {"message": "slow", "code": "rate_limit_exceeded"}, RateLimited, True),
            (429, {"message": "You exceeded", "code": "insufficient_quota"}, RateLimited, False),
            (400, {"message": PROMPT}, InvalidRequest, False),
            (404, {"message": "no", "code": "model_not_found"}, InvalidRequest, False),
            (422, {"message": "no"}, InvalidRequest, False),
            (
                400,
                {"message": f"maximum context length is 10: {PROMPT}"},
                ContextLengthExceeded,
                False,
            ),
            (400, {"message": "no", "code": "content_filter"}, ContentFiltered, False),
            (408, {"message": "late"}, ProviderTimeout, True),
            (500, {"message": f"boom {CANARY}"}, ProviderUnavailable, True),
            (503, {"message": "overloaded"}, ProviderUnavailable, True),
            (529, {"message": "overloaded"}, ProviderUnavailable, True),
        ],
    )
    async def test_a_refusal_has_its_type(self, provider, model, status, error, kind, retryable):
        model.script(fails(status, error))

        caught, seen = await failure(provider)

        assert type(caught) is kind
        assert caught.retryable is retryable
        assert caught.provider == provider.name
        assert caught.status == status
        assert f"HTTP {status}" in str(caught)
        assert seen == []

    @pytest.mark.parametrize("status", [429, 503])
    async def test_the_wait_that_is_asked_for_is_kept(self, provider, model, status):
        model.script(fails(status, {"message": "slow"}, Retry_After="7"))

        caught, _ = await failure(provider)

        assert caught.retry_after == 7

    @pytest.mark.parametrize(
        "pieces",
        [
            pytest.param([RESET], id="reset"),
            pytest.param([b'data: {"choices": [{"del\n\n'], id="half JSON"),
            pytest.param([], id="no finish"),
            pytest.param([event("[DONE]")], id="done without finish"),
        ],
    )
    async def test_a_broken_stream_keeps_what_came(self, provider, model, pieces):
        model.script(Answer([*texts("Hello big"), *pieces]))

        caught, seen = await failure(provider)

        assert isinstance(caught, MalformedResponse)
        assert caught.retryable
        assert caught.text == "Hello big"
        assert seen == ["Hello ", "big"]

    async def test_an_error_in_the_stream_ends_it(self, provider, model):
        model.script(
            Answer([*texts("Hello "), event({"error": {"message": CANARY, "code": 503}})])
        )

        caught, seen = await failure(provider)

        assert isinstance(caught, ProviderUnavailable | MalformedResponse)
        assert caught.retryable
        assert caught.text == "Hello "
        assert seen == ["Hello "]

    async def test_a_half_call_is_never_an_answer(self, provider, model):
        piece = chunk({"tool_calls": [tool_delta(0, "a", "add", '{"a": 1}')]})
        model.script(Answer([piece, RESET]))

        caught, seen = await failure(provider)

        assert isinstance(caught, MalformedResponse)
        assert not any(isinstance(delta, Completion) for delta in seen)

    @pytest.mark.parametrize(
        "answer",
        [
            pytest.param(Answer([]), id="nothing"),
            pytest.param(Answer([chunk({}, "stop"), *tail()]), id="only a finish"),
            pytest.param(Answer([chunk({"content": ""}, "stop"), *tail()]), id="empty text"),
        ],
    )
    async def test_an_empty_answer_is_an_error(self, provider, model, answer):
        model.script(answer)

        caught, _ = await failure(provider)

        assert isinstance(caught, EmptyResponse)
        assert caught.retryable

    async def test_a_page_of_html_is_an_error(self, provider, model):
        model.script(Answer([b"<html><body>Hello</body></html>"], content_type="text/html"))

        caught, _ = await failure(provider)

        assert isinstance(caught, MalformedResponse)

    async def test_a_server_that_is_not_there_is_unavailable(self, lost_provider):
        caught, _ = await failure(lost_provider)

        assert isinstance(caught, ProviderUnavailable)
        assert "cannot be reached" in str(caught)
        assert "127.0.0.1" not in str(caught)

    @pytest.mark.parametrize("pieces", [[STALL], [*texts("Hello "), STALL]])
    async def test_a_reader_that_leaves_closes_the_connection(self, provider, model, pieces):
        model.script(Answer(pieces))

        reading = asyncio.create_task(collect(provider))
        assert await asyncio.to_thread(model.asked.wait, 30)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading

        assert await asyncio.to_thread(model.hung_up.wait, 30)

    async def test_no_fault_leaks_the_key(self, provider, model, caplog):
        caplog.set_level(logging.DEBUG)
        error = {"message": f"bad key {CANARY}", "code": CANARY, "type": CANARY, "param": CANARY}
        for status in (400, 401, 429, 500):
            model.script(fails(status, error))
            await failure(provider)
        model.script(Answer([*texts("Hi"), event({"error": error})]))
        await failure(provider)

        logged = "\n".join(
            record.getMessage() for record in caplog.records if record.name != "asyncio"
        )
        assert CANARY not in logged
