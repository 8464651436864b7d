"""What a provider says that a call used, in the many shapes in which they say it."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from mlango.core.messages import size
from mlango.core.provider import Message
from mlango.core.usage import Usage

CHARS_PER_TOKEN = 4
# Most servers tell no more than this.
PLAIN = frozenset(("prompt_tokens", "completion_tokens", "total_tokens"))


def read_usage(raw: Mapping[str, Any]) -> Usage:
    """Return the usage of a ``usage`` object.

    ``prompt_tokens`` count what came from a cache too, as OpenAI, DeepSeek and litellm have
    it. Anthropic's ``input_tokens`` do not, so what was cached is added there.
    """
    if PLAIN.issuperset(raw):
        return Usage(_number(raw.get("prompt_tokens")), _number(raw.get("completion_tokens")))
    cached_as = _part(raw, "prompt_tokens_details", "input_tokens_details")
    thought = _part(raw, "completion_tokens_details", "output_tokens_details")
    # Sources repeat each other, so none is added.
    read = _number(
        cached_as.get("cached_tokens")
        or raw.get("cache_read_input_tokens")
        or raw.get("prompt_cache_hit_tokens")
    )
    written = _number(
        cached_as.get("cache_write_tokens")
        or cached_as.get("cache_creation_tokens")
        or raw.get("cache_creation_input_tokens")
    )
    total = _number(raw.get("prompt_tokens"))
    if "prompt_tokens" not in raw:
        total = _number(raw.get("input_tokens"))
        if "input_tokens_details" not in raw:
            total += read + written
    return Usage(
        input_tokens=total,
        output_tokens=_number(raw.get("completion_tokens") or raw.get("output_tokens")),
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


def _part(raw: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """Return the first of the objects in ``raw`` that holds anything."""
    for name in names:
        part = raw.get(name)
        if part and isinstance(part, dict):
            return part
    return {}


def _number(value: Any) -> int:
    if value.__class__ is float:
        value = int(value) if isfinite(value) else 0
    return max(0, value) if value.__class__ is int else 0
