"""Answers that are made up here: how a test or a rule says one, and how it is streamed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

from mlango.core.provider import Completion, Delta, ReasoningDelta, ToolCall, ToolCallDelta
from mlango.core.usage import Usage
from mlango.core.values import dumps
from mlango.exceptions import Misused, did_you_mean

USAGE = Usage(input_tokens=10, output_tokens=5)
KEYS = (*(field.name for field in fields(Completion)), "error")
CALL_KEYS = ("id", "name", "arguments")


def call(name: str, /, **arguments: Any) -> ToolCall:
    """Return a tool call for a script: ``call("search", query="refunds")``."""
    return ToolCall("", name, dumps(arguments))


def completion_of(turn: Any) -> Completion:
    """Return the Completion that a turn means: text, calls, a dict of its fields, or itself."""
    if isinstance(turn, Completion):
        return turn
    if isinstance(turn, str):
        return Completion(turn, usage=USAGE)
    if isinstance(turn, ToolCall):
        return Completion(tool_calls=[turn], usage=USAGE)
    if isinstance(turn, list):
        texts = [item for item in turn if isinstance(item, str)]
        calls = [_call(item) for item in turn if not isinstance(item, str)]
        return Completion("".join(texts), calls, usage=USAGE)
    if isinstance(turn, dict):
        return _from_dict(turn)
    raise Misused(
        f"A turn is text, a tool call, a list of them, a dict, a Completion, an exception or "
        f"a function of the request, not {turn!r:.80}."
    )


def _from_dict(turn: dict[str, Any]) -> Completion:
    for key in turn:
        if key not in KEYS:
            raise Misused(
                f"A turn has no key {key!r}.{did_you_mean(key, KEYS)} Keys are: {', '.join(KEYS)}."
            )
    given = {name: value for name, value in turn.items() if name != "error"}
    given["tool_calls"] = [_call(item) for item in turn.get("tool_calls") or ()]
    usage = given.setdefault("usage", USAGE)
    if isinstance(usage, dict):
        given["usage"] = Usage(**usage)
    return Completion(**given)


def _call(item: Any) -> ToolCall:
    if isinstance(item, ToolCall):
        return item
    if not isinstance(item, dict) or "name" not in item or not set(item) <= set(CALL_KEYS):
        raise Misused(
            f"A tool call is call(name, …) or a dict of {', '.join(CALL_KEYS)}, not {item!r:.80}."
        )
    arguments = item.get("arguments", {})
    text = arguments if isinstance(arguments, str) else dumps(arguments)
    return ToolCall(str(item.get("id") or ""), item["name"], text)


def with_ids(completion: Completion, first: int) -> Completion:
    """Return the answer with ids ``call_<n>`` for the calls that have none."""
    if all(each.id for each in completion.tool_calls):
        return completion
    calls = [
        each if each.id else ToolCall(f"call_{number}", each.name, each.arguments)
        for number, each in enumerate(completion.tool_calls, first)
    ]
    return replace(completion, tool_calls=calls)


def deltas_of(completion: Completion) -> Iterator[Delta]:
    """Yield an answer as a model streams it: word by word, and whole at the end."""
    for word in words(completion.reasoning):
        yield ReasoningDelta(word)
    yield from words(completion.text)
    for index, each in enumerate(completion.tool_calls):
        arguments = each.arguments
        text = arguments if isinstance(arguments, str) else dumps(arguments)
        yield ToolCallDelta(index, each.id, each.name, text)
    yield completion


def words(text: str) -> list[str]:
    """Return the words of a text with the space after each; joined they are the text."""
    return re.findall(r"\s*\S+\s*|\s+", text)
