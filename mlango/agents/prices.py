"""What a model call costs, in US dollars, by an offline table of prices.

``MLANGO["PRICES"]`` goes before the table, in dollars per million tokens; ``*`` stands for
every model of a provider::

    "PRICES": {"vllm/*": {"input": 0, "output": 0},
               "openai/gpt-4o": {"input": 2.5, "output": 10, "cache_read": 1.25}}
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache, lru_cache
from importlib import import_module
from threading import Thread
from time import time
from typing import Any

from django.core.signals import setting_changed

from mlango.agents.providers.registry import get_provider, is_alias
from mlango.conf import settings
from mlango.core.usage import Usage
from mlango.exceptions import Misconfigured, did_you_mean

MILLION = Decimal(1_000_000)
KINDS = ("input", "output", "cache_read", "cache_write")
OFFLINE = ("echo", "scripted", "replay")
HOUR = 3600
TABLE = "genai_prices.data_snapshot"

# Names of providers in litellm's models, where the table has others.
TABLE_NAMES = {
    "azure_ai": "azure",
    "bedrock": "aws",
    "fireworks_ai": "fireworks",
    "gemini": "google",
    "moonshot": "moonshotai",
    "together_ai": "together",
    "vertex_ai": "google",
    "xai": "x-ai",
}


@dataclass(frozen=True, slots=True)
class Rate:
    """Dollars per million tokens; ``tiers`` hold (tokens read, rate), the largest first.

    A tier counts for the whole call once more tokens than its first number were read.
    """

    base: Decimal
    tiers: tuple[tuple[int, Decimal], ...] = ()

    def at(self, read: int) -> Decimal:
        for start, rate in self.tiers:
            if read > start:
                return rate
        return self.base


Rates = tuple[Rate, Rate, Rate, Rate]  # in the order of KINDS
FREE: Rates = (Rate(Decimal(0)),) * 4


def price(provider: str, model: str, usage: Usage) -> Decimal | None:
    """Return the cost of a call; None when the price is unknown, 0 for an offline provider."""
    rates = _rates(provider, model, int(time() / HOUR))
    if rates is None:
        return None
    read = usage.input_tokens
    input_, output, cache_read, cache_write = (rate.at(read) for rate in rates)
    total = (
        input_ * usage.uncached_input_tokens
        + output * usage.output_tokens
        + cache_read * usage.cache_read_tokens
        + cache_write * usage.cache_write_tokens
    )
    return total / MILLION


@cache
def warm() -> None:
    """Load the table while the first model call is on its way: that takes a third of a second."""
    Thread(target=import_module, args=(TABLE,), daemon=True).start()


@lru_cache(maxsize=1024)
def _rates(provider: str, model: str, hour: int) -> Rates | None:
    """Return the rates of a model, None if unknown. Prices change, at most by the hour."""
    own = settings.PRICES
    for key in (f"{provider}/{model}", model, f"{provider}/*"):
        if key in own:
            return rates_of(key, own[key])
    return FREE if _is_offline(provider) else _from_table(provider, model)


def rates_of(key: str, given: Any) -> Rates:
    """Return the rates that an entry of the settings tells. Raises Misconfigured."""
    where = f"MLANGO['PRICES'][{key!r}]"
    if not isinstance(given, dict) or not {"input", "output"} <= given.keys():
        raise Misconfigured(f"{where} needs 'input' and 'output', in dollars per million tokens.")
    for kind, rate in given.items():
        if kind not in KINDS:
            raise Misconfigured(
                f"{where} has no key {kind!r}.{did_you_mean(kind, KINDS)} "
                f"Keys are: {', '.join(KINDS)}."
            )
        if not isinstance(rate, int | float | Decimal) or isinstance(rate, bool) or rate < 0:
            raise Misconfigured(f"{where}[{kind!r}] must be a number from 0, not {rate!r}.")
    return _all(lambda kind: Rate(Decimal(str(given[kind]))) if kind in given else None)


def _is_offline(provider: str) -> bool:
    if provider in OFFLINE:
        return True
    return is_alias(provider) and get_provider(provider).offline


def _from_table(provider: str, model: str) -> Rates | None:
    """Return the rates that the table has. A provider that is not in it costs nobody knows what.

    The same model has another price elsewhere, and none on one's own machine.
    """
    found = _found(provider, model)
    return None if found is None else _read(found)


def _found(provider: str, model: str) -> Any:
    """Return what the table says of a model, or None."""
    table = import_module(TABLE)  # most commands never need a price
    if provider == "litellm":
        provider, slash, rest = model.partition("/")
        model = rest if slash else model
        provider = TABLE_NAMES.get(provider, provider) if slash else ""
    try:
        _, found = table.get_snapshot().find_provider_model(model, None, provider or None, None)
    except LookupError:
        return None
    return found


@lru_cache(maxsize=1024)
def context_window(provider: str, model: str) -> int | None:
    """Return how many tokens a model can read, None if the table does not know it."""
    found = _found(provider, model)
    return None if found is None else found.context_window


def _read(model: Any) -> Rates | None:
    listed = model.get_prices(datetime.now(UTC))
    if listed.input_mtok is None or listed.output_mtok is None:
        return None
    return _all(lambda kind: _rate(getattr(listed, f"{kind}_mtok")))


def _rate(listed: Any) -> Rate | None:
    if listed is None or isinstance(listed, Decimal):
        return None if listed is None else Rate(listed)
    tiers = [(tier.start, tier.price) for tier in listed.tiers]
    return Rate(listed.base, tuple(sorted(tiers, reverse=True)))


def _all(rate_of: Callable[[str], Rate | None]) -> Rates:
    """Return the rates of all kinds; what comes from a cache or goes there is read like any."""
    read, written = rate_of("input"), rate_of("output")
    assert read is not None
    assert written is not None
    return read, written, rate_of("cache_read") or read, rate_of("cache_write") or read


def _forget(*, setting: str, **kwargs: Any) -> None:
    if setting == "MLANGO":
        _rates.cache_clear()


setting_changed.connect(_forget, dispatch_uid="mlango.prices")
