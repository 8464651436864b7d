"""OpenAI's chat completions over HTTP: the contract, and what only this provider does."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import pytest

from mlango.agents.providers import (
    Completion,
    OpenAICompatibleProvider,
    ReasoningDelta,
    connections,
)
from mlango.agents.providers.openai_compatible import effort
from mlango.core.messages import assistant_message
from mlango.exceptions import (
    AuthenticationFailed,
    InvalidRequest,
    MalformedResponse,
    Misconfigured,
    RateLimited,
)
from tests.fake_model import (
    STALL,
    Answer,
    chunk,
    document,
    event,
    fails,
    says,
    tail,
    texts,
    tool_delta,
)
from tests.providers.contract import ADD, CANARY, HELLO, ProviderContract, collect, failure


@pytest.fixture
def provider(model):
    made = OpenAICompatibleProvider(model.url, api_key=CANARY)
    made.name = "here"
    return made


@pytest.fixture
def lost_provider():
    made = OpenAICompatibleProvider("http://127.0.0.1:9/v1")
    made.name = "here"
    return made


class TestContract(ProviderContract):
    model_name = "fake"


# -- options ----------------------------------------------------------------------------------


def test_a_base_url_is_an_address():
    with pytest.raises(Misconfigured, match="must begin with http:// or https://, not 'openai'"):
        OpenAICompatibleProvider("openai")


def test_a_dialect_is_one_of_those_there_are():
    with pytest.raises(Misconfigured, match="Did you mean 'gemini'"):
        OpenAICompatibleProvider("http://x", dialect="gemni")


async def test_the_key_headers_and_body_are_sent(model, monkeypatch):
    monkeypatch.setenv("THE_KEY", "one\n")
    provider = OpenAICompatibleProvider(
        f"{model.url}/",
        api_key_env="THE_KEY",
        headers={"X-Title": "Site"},
        extra_body={"provider": {"order": ["a"]}},
    )
    model.script(says("ok"), says("ok"))

    await collect(provider)
    monkeypatch.setenv("THE_KEY", "two")
    await collect(provider)

    assert [each["Authorization"] for each in model.headers] == ["Bearer one", "Bearer two"]
    assert model.headers[0]["X-Title"] == "Site"
    assert model.requests[0]["provider"] == {"order": ["a"]}
    assert model.headers[0]["Accept"] == "text/event-stream"
    assert model.headers[0]["Content-Type"] == "application/json"


async def test_a_header_replaces_one_of_our_own(model):
    own = {"accept": "*/*", "content-type": "application/json; charset=utf-8"}
    provider = OpenAICompatibleProvider(model.url, headers=own)
    model.script(says("ok"))

    await collect(provider)

    assert model.headers[0]["Accept"] == "*/*"
    assert model.headers[0]["Content-Type"] == "application/json; charset=utf-8"


async def test_a_missing_key_names_the_variable(model, monkeypatch):
    monkeypatch.delenv("THE_KEY", raising=False)
    provider = OpenAICompatibleProvider(model.url, api_key_env="THE_KEY")

    caught, _ = await failure(provider)

    assert isinstance(caught, AuthenticationFailed)
    assert "Set the environment variable THE_KEY." in str(caught)
    assert model.requests == []


async def test_a_refused_key_names_the_variable(model, monkeypatch):
    monkeypatch.setenv("THE_KEY", CANARY)
    model.script(fails(401))

    caught, _ = await failure(OpenAICompatibleProvider(model.url, api_key_env="THE_KEY"))

    assert "refused the key in THE_KEY (HTTP 401)" in str(caught)


async def test_a_server_without_a_key_gets_none(model):
    model.script(says("ok"))

    await collect(OpenAICompatibleProvider(model.url))

    assert "Authorization" not in model.headers[0]


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("gpt-4o", "max_tokens"),
        ("o3-mini", "max_completion_tokens"),
        ("openai/gpt-5", "max_completion_tokens"),
        ("olmo-2", "max_tokens"),
    ],
)
async def test_models_that_think_take_another_field_for_tokens(provider, model, name, field):
    model.script(says("ok"))

    await collect(provider, model=name)

    assert model.requests[0][field] == 4096
    assert sum("tokens" in key for key in model.requests[0]) == 1


async def test_the_field_for_tokens_can_be_set(model):
    provider = OpenAICompatibleProvider(model.url, max_tokens_field="max_completion_tokens")
    model.script(says("ok"))

    await collect(provider)

    assert "max_completion_tokens" in model.requests[0]


async def test_the_field_for_tokens_is_learned(provider, model, caplog):
    error = {
        "message": "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.",
        "param": "max_tokens",
    }
    model.script(fails(400, error), says("one"), says("two"))

    await collect(provider, max_tokens=9)
    await collect(provider, max_tokens=9)

    assert model.requests[1]["max_completion_tokens"] == 9
    assert "max_tokens" not in model.requests[2]
    assert caplog.records == []


async def test_a_server_that_knows_no_stream_options_is_asked_without(provider, model, caplog):
    error = {"message": "stream_options: Extra inputs are not permitted"}
    model.script(fails(422, error), says("one", usage=None), says("two", usage=None))

    await collect(provider)
    answer = (await collect(provider, model="another"))[-1]

    assert ["stream_options" in request for request in model.requests] == [True, False, False]
    assert answer.usage.estimated
    assert caplog.records == []


async def test_a_value_that_is_wrong_is_not_left_out(provider, model):
    model.script(fails(400, {"message": "temperature must be at most 2", "param": "temperature"}))

    caught, _ = await failure(provider, temperature=9)

    assert isinstance(caught, InvalidRequest)
    assert len(model.requests) == 1


@pytest.mark.parametrize(
    ("thinking", "asked", "sent"),
    [
        (None, None, None),
        ("adaptive", None, None),
        ("adaptive", "high", "high"),
        ("low", None, "low"),
        ("low", "max", "xhigh"),
        ("off", "high", "none"),
    ],
)
async def test_thinking_and_effort_become_one_field(provider, model, thinking, asked, sent):
    model.script(says("ok"))

    await collect(provider, thinking=thinking, effort=asked)

    assert effort(thinking, asked) == sent
    assert model.requests[0].get("reasoning_effort") == sent


async def test_effort_is_left_out_where_it_is_not_known(provider, model, caplog):
    model.script(fails(400, {"message": "Unknown parameter: reasoning_effort"}), says("ok"))

    with caplog.at_level(logging.WARNING, "mlango.providers"):
        await collect(provider, effort="high")

    assert "reasoning_effort" not in model.requests[1]
    assert "does not take 'reasoning_effort'" in caplog.text


async def test_tools_are_written_in_the_dialect_of_the_model(model):
    provider = OpenAICompatibleProvider(model.url, dialect="gemini")
    schema = {
        "type": "object",
        "properties": {"a": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
    }
    tool = {"type": "function", "function": {**ADD["function"], "parameters": schema}}
    model.script(says("ok"))

    await collect(provider, tools=[tool])

    sent = model.requests[0]["tools"][0]["function"]["parameters"]
    assert sent["properties"]["a"] == {"type": "integer", "nullable": True}


async def test_schemas_may_be_sent_without_descriptions(provider, model, settings):
    settings.MLANGO = {"COMPACT_TOOL_SCHEMAS": True}
    schema = {"type": "object", "properties": {"a": {"type": "integer", "description": "A."}}}
    tool = {"type": "function", "function": {**ADD["function"], "parameters": schema}}
    model.script(says("ok"))

    await collect(provider, tools=[tool])

    sent = model.requests[0]["tools"][0]["function"]["parameters"]
    assert sent["properties"] == {"a": {"type": "integer"}}


# -- shapes of answers ------------------------------------------------------------------------


async def test_an_error_event_has_its_type(provider, model):
    model.script(Answer([*texts("Hi"), event({"error": {"type": "rate_limit_error"}})]))

    caught, _ = await failure(provider)

    assert isinstance(caught, RateLimited)
    assert caught.text == "Hi"


@pytest.mark.parametrize(
    "odd", [[1], "x", {"choices": [None]}, {"choices": 4}, {"choices": [{"delta": 5}]}]
)
async def test_chunks_of_another_shape_are_an_error(provider, model, odd):
    model.script(Answer([*texts("Hi"), event(odd)]))

    caught, _ = await failure(provider)

    assert isinstance(caught, MalformedResponse)
    assert caught.text == "Hi"


async def test_comments_and_other_fields_are_passed_over(provider, model):
    noise = [b": keep-alive\n\n", b"event: message\r\nid: 4\r\n", b"\n", b"retry: 100\n"]
    model.script(Answer([*noise, *texts("Hi there"), chunk({}, "stop"), *tail()]))

    assert (await collect(provider))[-1].text == "Hi there"


async def test_lines_may_be_cut_anywhere(provider, model):
    whole = b"".join([*texts("Grüße 🎉"), chunk({}, "stop"), *tail()])
    pieces = [whole[start : start + 7] for start in range(0, len(whole), 7)]
    model.script(Answer(pieces))

    assert (await collect(provider))[-1].text == "Grüße 🎉"


async def test_half_of_a_surrogate_pair_breaks_no_answer(provider, model):
    half = chunk({"content": "!"}).replace(b"!", rb"\ud83d")
    model.script(Answer([*texts("Hi"), half, chunk({}, "stop"), *tail()]))

    assert (await collect(provider))[-1].text == "Hi\ud83d"


async def test_a_last_line_without_an_end_is_read(provider, model):
    model.script(Answer([*texts("Hi"), chunk({}, "stop").rstrip()]))

    assert (await collect(provider))[-1].text == "Hi"


async def test_a_refusal_is_told(provider, model):
    model.script(
        Answer([chunk({"refusal": "I will "}), chunk({"refusal": "not."}), chunk({}, "stop")])
    )

    answer = (await collect(provider))[-1]

    assert answer.stop_reason == Completion.REFUSAL
    assert answer.refusal == "I will not."


async def test_details_of_reasoning_are_sent_back_as_they_came(provider, model):
    pieces = [
        {
            "reasoning": "Let",
            "reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "Let"}],
        },
        {
            "reasoning_details": [
                {"type": "reasoning.text", "index": 0, "text": " me", "signature": "s"}
            ]
        },
        {"reasoning_details": [{"type": "reasoning.encrypted", "index": 1, "data": "xyz"}]},
        {
            "tool_calls": [
                tool_delta(0, "a", "add", "{}")
                | {"extra_content": {"google": {"thought_signature": "t"}}}
            ]
        },
    ]
    model.script(Answer([*map(chunk, pieces), chunk({}, "tool_calls"), *tail()]), says("ok"))

    answer = await collect(provider)
    await collect(provider, [*HELLO, assistant_message(answer[-1], provider.name), *HELLO])
    sent = model.requests[1]["messages"][1]

    assert answer[0] == ReasoningDelta("Let")
    assert sent["reasoning_details"] == [
        {"type": "reasoning.text", "index": 0, "text": "Let me", "signature": "s"},
        {"type": "reasoning.encrypted", "index": 1, "data": "xyz"},
    ]
    assert sent["reasoning"] == "Let"
    assert sent["tool_calls"][0]["extra_content"] == {"google": {"thought_signature": "t"}}


async def test_images_of_the_model_are_kept(provider, model):
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
    model.script(Answer([chunk({"images": [image]}), chunk({}, "stop"), *tail()]))

    assert (await collect(provider))[-1].images == [image]


async def test_images_among_the_parts_of_a_content_are_kept(provider, model):
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    message = {"content": [{"type": "text", "text": "Here:"}, image]}
    model.script(document({"choices": [{"message": message, "finish_reason": "stop"}]}))

    answer = (await collect(provider))[-1]
    assert (answer.text, answer.images) == ("Here:", [image])


async def test_a_large_request_is_sent(provider, model):
    model.script(says("ok"))
    text = "x" * 2_000_000

    await collect(provider, [{"role": "user", "content": text}])

    assert model.requests[0]["messages"][0]["content"] == text


async def test_a_redirect_is_not_followed(provider, model):
    model.script(fails(307, Location="http://127.0.0.1:9/"))

    caught, _ = await failure(provider)

    assert isinstance(caught, InvalidRequest)
    assert caught.status == 307


async def test_a_server_that_stays_after_its_last_word_is_left(provider, model):
    model.script(Answer([*texts("Hi"), chunk({}, "stop"), *tail(), STALL]))

    assert (await collect(provider))[-1].text == "Hi"
    assert await asyncio.to_thread(model.hung_up.wait, 10)


# -- connections ------------------------------------------------------------------------------


async def test_calls_in_a_row_share_a_connection(provider, model):
    model.script(says("one"), says("two"))

    await collect(provider)
    session = await connections.session()
    await collect(provider)

    kept = [conn for group in session.connector._conns.values() for conn in group]
    assert len(kept) == 1
    assert await connections.session() is session


async def test_a_closed_provider_can_be_asked_again(provider, model):
    model.script(says("one"), says("two"))

    await collect(provider)
    first = await connections.session()
    await provider.aclose()
    await collect(provider)

    assert first.closed
    assert await connections.session() is not first


def test_a_session_ends_with_its_loop():
    async def use():
        return await connections.session()

    first, second = asyncio.run(use()), asyncio.run(use())

    assert first is not second
    assert first.closed
    assert second.closed
    # The loop of plain callers may have one of its own, which stays.
    assert not {first, second} & {*connections._sessions.values()}


def test_a_loop_that_was_dropped_is_forgotten():
    loop = asyncio.new_event_loop()
    session = loop.run_until_complete(connections.session())
    with contextlib.suppress(Exception):
        loop.run_until_complete(session.connector.close())
    loop.close()

    asyncio.run(connections.session())

    assert loop not in connections._sessions
