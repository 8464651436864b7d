"""What calls cost."""

from __future__ import annotations

from decimal import Decimal

import genai_prices
import pytest

from mlango.agents.prices import price
from mlango.core.usage import Usage
from mlango.exceptions import Misconfigured

USED = Usage(input_tokens=1_100, output_tokens=100, cache_read_tokens=600, cache_write_tokens=100)


def by_the_table(provider, model, usage):
    tokens = genai_prices.Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
    )
    return genai_prices.calc_price(tokens, model, provider_id=provider).total_price


@pytest.mark.parametrize(
    ("provider", "model", "table"),
    [
        ("anthropic", "claude-sonnet-4-5", ("anthropic", "claude-sonnet-4-5")),
        ("openai", "gpt-4o", ("openai", "gpt-4o")),
        ("gemini", "gemini-2.5-pro", ("google", "gemini-2.5-pro")),
        (
            "openrouter",
            "anthropic/claude-sonnet-4.5",
            ("openrouter", "anthropic/claude-sonnet-4.5"),
        ),
        ("litellm", "anthropic/claude-sonnet-4-5", ("anthropic", "claude-sonnet-4-5")),
        ("litellm", "vertex_ai/gemini-2.5-flash", ("google", "gemini-2.5-flash")),
        ("litellm", "gpt-4o", ("openai", "gpt-4o")),
    ],
)
@pytest.mark.parametrize("read", [1_100, 200_000, 200_001, 900_000])
def test_a_price_is_that_of_the_table(provider, model, table, read):
    usage = Usage(read, 100, 600, 0)

    assert price(provider, model, usage) == by_the_table(*table, usage)


def test_cached_and_written_tokens_have_their_own_price():
    assert price("anthropic", "claude-sonnet-4-5", USED) == Decimal("0.003255")


def test_an_unknown_price_is_none_and_not_zero():
    assert price("openai", "no-such-model", USED) is None
    assert price("litellm", "nowhere/gpt-4o", USED) is None


def test_a_known_model_at_an_unknown_provider_has_no_price():
    assert price("vllm", "gpt-4o", USED) is None
    assert price("ollama", "llama3", USED) is None


@pytest.mark.parametrize("provider", ["echo", "scripted", "replay"])
def test_offline_providers_cost_nothing(provider):
    assert price(provider, "gpt-4o", USED) == 0


def test_the_settings_go_before_the_table(settings):
    settings.MLANGO = {
        "PRICES": {
            "openai/gpt-4o": {"input": 10, "output": 20, "cache_read": 1},
            "vllm/*": {"input": 0, "output": 0},
        }
    }

    assert price("openai", "gpt-4o", USED) == Decimal("0.0076")  # 500×10 + 600×1 + 100×20
    assert price("vllm", "anything", USED) == 0


def test_changed_settings_count_at_once(settings):
    before = price("openai", "gpt-4o", USED)
    settings.MLANGO = {"PRICES": {"openai/gpt-4o": {"input": 0.1, "output": 0}}}

    assert price("openai", "gpt-4o", USED) == Decimal("0.00011") != before


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"input": 1}, "needs 'input' and 'output'"),
        ({"input": 1, "output": 1, "cached": 1}, "has no key 'cached'"),
        ({"input": "1", "output": 1}, r"\['input'\] must be a number from 0, not '1'"),
        ({"input": -1, "output": 1}, "must be a number from 0, not -1"),
    ],
)
def test_a_wrong_price_is_refused(settings, given, message):
    settings.MLANGO = {"PRICES": {"a/b": given}}

    with pytest.raises(Misconfigured, match=message):
        price("a", "b", USED)
