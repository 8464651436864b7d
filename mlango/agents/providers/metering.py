"""What a provider says that a call used, in the many shapes in which they say it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlango.core.messages import size
from mlango.core.provider import Message
from mlango.core.usage import Usage

CHARS_PER_TOKEN = 4


def read_usage(raw: Mapping[str, Any]) -> Usage:
    """Return the usage of a ``usage`` object.

    ``prompt_tokens`` count what came from a cache too, as OpenAI, DeepSeek and litellm have
    it. Anthropic's ``input_tokens`` do not, so what was cached is added there.
    """
    cached_as = _part(raw, "prompt_tokens_details") or _part(raw, "input_tokens_details")
    read = _first(
        cached_as.get("cached_tokens"),
        raw.get("cache_read_input_tokens"),
        raw.get("prompt_cache_hit_tokens"),
    )
    written = _first(
        cached_as.get("cache_write_tokens"),
        cached_as.get("cache_creation_tokens"),
        raw.get("cache_creation_input_tokens"),
    )
    total = _number(raw.get("prompt_tokens"))
    if "prompt_tokens" not in raw:
        total = _number(raw.get("input_tokens"))
        if "input_tokens_details" not in raw:
            total += read + written
    thought = _part(raw, "completion_tokens_details") or _part(raw, "output_tokens_details")
    return Usage(
        input_tokens=total,
        output_tokens=_first(raw.get("completion_tokens"), raw.get("output_tokens")),
        cache_read_tokens=read,
        cache_write_tokens=written,
        reasoning_tokens=_number(thought.get("reasoning_tokens")),
    )


def estimate(
    messages: list[Message], system: str, tools: list[dict[str, Any]] | None, written: int
) -> Usage:
    """Return a guess from the number of characters, for a provider that does not tell."""
    read = len(system) + sum(map(size, messages)) + len(str(tools or ""))
    return Usage(
        max(1, read // CHARS_PER_TOKEN), max(1, written // CHARS_PER_TOKEN), estimated=True
    )


def _part(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = raw.get(name)
    return part if isinstance(part, Mapping) else {}


def _first(*values: Any) -> int:
    """Return the first number that is not zero: sources repeat each other, so none is added."""
    for value in values:
        if value and (number := _number(value)):
            return number
    return 0


def _number(value: Any) -> int:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return max(0, int(value)) if is_number and value == value else 0
