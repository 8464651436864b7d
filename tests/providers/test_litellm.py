"""litellm: the contract, and what only this provider does. Importing litellm takes seconds."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
from contextlib import aclosing

import pytest
import pytest_asyncio

from mlango.agents.providers import Completion, LiteLLMProvider, ReasoningDelta, Usage
from mlango.agents.providers import litellm as module
from mlango.core.messages import assistant_message
from mlango.exceptions import (
    AuthenticationFailed,
    ContextLengthExceeded,
    InvalidRequest,
    MalformedResponse,
    ProviderUnavailable,
)
from tests.fake_model import Answer, anthropic, fails, says, text
from tests.providers.contract import ADD, CANARY, HELLO, ProviderContract, collect, failure

# litellm keeps its clients for as long as the event loop lives, so there is one for all tests.
pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore"),  # other people's warnings
]


@pytest_asyncio.fixture(loop_scope="module", scope="module", autouse=True)
async def _one_litellm(running_model):
    # The first call takes its time, in which a timeout would find no request to end.
    made = LiteLLMProvider(prefix="openai/", api_base=running_model.url, api_key=CANARY)
    running_model.script(says("ok"))
    await collect(made)
    yield
    await made.aclose()


@pytest.fixture
def provider(model):
    made = LiteLLMProvider(prefix="openai/", api_base=model.url, api_key=CANARY)
    made.name = "here"
    return made


@pytest.fixture
def lost_provider():
    made = LiteLLMProvider(prefix="openai/", api_base="http://127.0.0.1:9/v1", api_key=CANARY)
    made.name = "here"
    return made


@pytest.fixture
def claude(model):
    base = model.url.removesuffix("/v1")
    made = LiteLLMProvider(prefix="anthropic/", api_base=base, api_key=CANARY)
    made.name = "anthropic"
    return made


class TestContract(ProviderContract):
    model_name = "openai/fake"
    patience = 0.3


# -- what importing it does ---------------------------------------------------------------------


async def test_litellm_is_loaded_quietly(provider, model):
    model.script(says("ok"))
    await collect(provider)

    litellm = module.loaded()

    assert os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] == "True"
    assert os.environ["LITELLM_MODE"] == "PRODUCTION"
    assert litellm.suppress_debug_info
    assert not litellm.modify_params
    assert not litellm.drop_params
    assert not any((litellm.callbacks, litellm.success_callback, litellm.failure_callback))


FIRST_CALL = """
import asyncio, sys, django
django.setup()
from mlango.agents.providers.litellm import LiteLLMProvider

async def ask():
    provider = LiteLLMProvider(prefix="openai/", api_base=sys.argv[1], api_key="k")
    async for delta in provider.astream(model="m", messages=[{"role": "user", "content": "hi"}]):
        pass
    await provider.aclose()

asyncio.run(ask())
"""


def test_the_first_call_of_a_process_leaves_its_stderr_alone(model):
    model.script(says("ok"))

    done = subprocess.run(
        [sys.executable, "-c", FIRST_CALL, model.url],
        stderr=subprocess.PIPE,
        env=os.environ | {"DJANGO_SETTINGS_MODULE": "tests.settings"},
        check=False,
    )

    assert (done.stderr, done.returncode) == (b"", 0)


# -- requests -----------------------------------------------------------------------------------


async def test_the_prefix_is_put_once(provider, model):
    model.script(says("ok"), says("ok"))

    await collect(provider, model="fake")
    await collect(provider, model="openai/fake")

    assert [request["model"] for request in model.requests] == ["fake", "fake"]


async def test_a_model_of_no_provider_is_explained():
    caught, _ = await failure(LiteLLMProvider())

    assert isinstance(caught, InvalidRequest)
    assert "The provider 'litellm' knows no model 'fake'. Write it as 'provider/model'." in str(
        caught
    )


async def test_a_missing_key_names_the_variable(monkeypatch):
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    for prefix, variable in (("anthropic/", "ANTHROPIC_API_KEY"), ("openai/", "OPENAI_API_KEY")):
        caught, _ = await failure(LiteLLMProvider(prefix=prefix))
        assert isinstance(caught, AuthenticationFailed)
        assert f"has no key. Set the environment variable {variable}" in str(caught)


async def test_options_that_the_model_does_not_take_are_left_out(claude, model, caplog):
    model.script(*[anthropic(text("ok"))] * 2)

    with caplog.at_level(logging.WARNING, "mlango.providers"):
        for _ in range(2):
            await collect(claude, model="claude-sonnet-4-5", seed=7, presence_penalty=0.1)

    assert "seed" not in model.requests[0]
    assert sorted(record.getMessage().split("take ")[1] for record in caplog.records) == [
        "'presence_penalty': it is left out.",
        "'seed': it is left out.",
    ]


async def test_a_gemini_model_gets_schemas_without_references(model):
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/A"}},
        "$defs": {"A": {"anyOf": [{"type": "integer"}, {"type": "null"}], "title": "A"}},
    }
    tool = {"type": "function", "function": {**ADD["function"], "parameters": schema}}

    sent = LiteLLMProvider()._tools("gemini/gemini-2.5-pro", [tool])["tools"][0]["function"]
    kept = LiteLLMProvider()._tools("openai/gpt-4o", [tool])["tools"][0]["function"]

    assert sent["parameters"]["properties"]["a"] == {"type": "integer", "nullable": True}
    assert kept["parameters"] == schema


async def test_schemas_may_be_sent_without_descriptions(settings):
    settings.MLANGO = {"COMPACT_TOOL_SCHEMAS": True}
    schema = {"type": "object", "properties": {"a": {"type": "integer", "description": "A."}}}
    tool = {"type": "function", "function": {**ADD["function"], "parameters": schema}}

    sent = LiteLLMProvider()._tools("openai/gpt-4o", [tool])["tools"][0]["function"]

    assert sent["parameters"]["properties"] == {"a": {"type": "integer"}}


# -- Anthropic's shapes -------------------------------------------------------------------------

THOUGHT = (
    {"type": "thinking", "thinking": "", "signature": ""},
    {"type": "thinking_delta", "thinking": "Let me "},
    {"type": "thinking_delta", "thinking": "add."},
    {"type": "signature_delta", "signature": "c2ln"},
)
HIDDEN = ({"type": "redacted_thinking", "data": "aGlkZGVu"},)
CALL = (
    {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {}},
    {"type": "input_json_delta", "partial_json": '{"a"'},
    {"type": "input_json_delta", "partial_json": ": 1}"},
)


async def test_cached_tokens_of_anthropic_are_part_of_the_input(claude, model):
    model.script(anthropic(text("Hello")))

    answer = (await collect(claude, model="claude-sonnet-4-5"))[-1]

    assert answer.usage == Usage(110, 20, 64, 10)
    assert answer.text == "Hello"


async def test_thoughts_go_back_with_their_signatures(claude, model):
    model.script(anthropic(THOUGHT, HIDDEN, CALL, stop="tool_use"), anthropic(text("ok")))
    asked = {"model": "claude-sonnet-4-5", "tools": [ADD], "thinking": "low"}

    answer = await collect(claude, **asked)
    turn = json.loads(json.dumps(assistant_message(answer[-1], "anthropic")))
    result = {"role": "tool", "tool_call_id": "toolu_1", "content": "1"}
    await collect(claude, [*HELLO, turn, result], **asked)
    sent = model.requests[1]["messages"][1]["content"]

    assert answer[:2] == [ReasoningDelta("Let me "), ReasoningDelta("add.")]
    assert answer[-1].tool_calls[0].arguments == '{"a": 1}'
    assert answer[-1].stop_reason == Completion.TOOL_USE
    assert sent[0] == {"type": "thinking", "thinking": "Let me add.", "signature": "c2ln"}
    assert sent[1] == {"type": "redacted_thinking", "data": "aGlkZGVu"}
    assert sent[2]["type"] == "tool_use"


async def test_thinking_becomes_what_the_model_takes(claude, model):
    model.script(*[anthropic(text("ok"))] * 3)

    await collect(claude, model="claude-sonnet-4-5", thinking="low")
    await collect(claude, model="claude-sonnet-4-5", thinking="adaptive", max_tokens=8000)
    await collect(claude, model="claude-sonnet-4-5", thinking="off")

    assert model.requests[0]["thinking"]["type"] == "enabled"
    assert model.requests[1]["thinking"]["type"] in ("adaptive", "enabled")
    assert model.requests[2].get("thinking", {"type": "disabled"})["type"] == "disabled"


@pytest.mark.parametrize(
    ("stop", "reason"),
    [
        ("end_turn", Completion.END_TURN),
        ("max_tokens", Completion.MAX_TOKENS),
        ("pause_turn", Completion.PAUSE_TURN),
        ("refusal", Completion.REFUSAL),
    ],
)
async def test_anthropics_reasons_to_stop_are_mapped(claude, model, stop, reason):
    model.script(anthropic(text("Hello"), stop=stop))

    assert (await collect(claude, model="claude-sonnet-4-5"))[-1].stop_reason == reason


async def test_a_deprecated_option_is_left_out_with_a_warning(claude, model, caplog):
    error = {
        "type": "invalid_request_error",
        "message": "`temperature` is deprecated for this model.",
    }
    model.script(fails(400, error), anthropic(text("ok")))

    with caplog.at_level(logging.WARNING, "mlango.providers"):
        answer = (await collect(claude, model="claude-sonnet-4-5", temperature=0.5))[-1]

    assert answer.text == "ok"
    assert "temperature" not in model.requests[1]
    assert "does not take 'temperature'" in caplog.text


async def test_an_overloaded_anthropic_is_unavailable_and_says_how_long(claude, model):
    model.script(
        fails(529, {"type": "overloaded_error", "message": "Overloaded"}, Retry_After="4")
    )

    caught, _ = await failure(claude)

    assert isinstance(caught, ProviderUnavailable)
    assert caught.retryable
    assert caught.retry_after == 4


async def test_a_prompt_that_is_too_long_for_anthropic_has_its_type(claude, model):
    error = {
        "type": "invalid_request_error",
        "message": "prompt is too long: 300000 tokens > 200000",
    }
    model.script(fails(400, error))

    caught, _ = await failure(claude)

    assert isinstance(caught, ContextLengthExceeded)


async def test_a_broken_off_anthropic_stream_keeps_its_text(claude, model):
    whole = anthropic(text("Hello"))
    model.script(Answer(whole.pieces[:3]))

    caught, seen = await failure(claude)

    assert isinstance(caught, MalformedResponse)
    assert caught.text == "Hello"
    assert seen == ["Hello"]


async def test_its_clients_end_with_their_loop(provider, claude, model):
    kept = module.loaded().in_memory_llm_clients_cache.cache_dict

    async def made_by(asked):
        before = [*kept.values()]
        await collect(asked)
        return [client for client in kept.values() if client not in before]

    for asked, answer in ((provider, says("ok")), (claude, anthropic(text("ok")))):
        model.script(answer)
        (client,) = await asyncio.to_thread(asyncio.run, made_by(asked))

        assert client not in kept.values()
        assert client._client.is_closed


async def test_a_loop_that_begins_breaks_no_answer_of_another(claude, model):
    pieces = anthropic(text("Hello"), text(" there")).pieces
    model.script(Answer([*pieces[:4], 0.5, *pieces[4:]]), anthropic(text("ok")))

    async with aclosing(claude.astream(model="fake", messages=HELLO)) as stream:
        assert await anext(stream) == "Hello"
        await asyncio.to_thread(asyncio.run, collect(claude))
        *_, answer = [delta async for delta in stream]

    assert answer.text == "Hello there"
