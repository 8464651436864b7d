"""A run's state: the fold of its journal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from mlango.core.journal import AGENT, LLM, TOOL
from mlango.core.messages import tool_message
from mlango.core.provider import Message


class Recorded(Protocol):
    """What the fold reads of an entry, be it in memory or a row."""

    kind: str
    output: object
    tool_call_id: str
    error_type: str


def fold(opening: Iterable[Message], entries: Iterable[Recorded]) -> list[Message]:
    """Return the messages of a run from those it began with and its entries, in order."""
    messages = list(opening)
    for entry in entries:
        if entry.kind == TOOL:
            failed = bool(entry.error_type)
            messages.append(tool_message(entry.tool_call_id, entry.output, failed))
        elif entry.kind == LLM and entry.output is not None:
            messages.append(entry.output)  # type: ignore[arg-type]
        elif entry.kind == AGENT:
            messages.extend(entry.output)  # type: ignore[arg-type]
    return messages
