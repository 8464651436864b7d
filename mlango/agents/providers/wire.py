"""A conversation as OpenAI's chat completions take it, as dicts and as bytes.

The messages of a run only grow, so the bytes of those already sent are kept and each call
encodes the new ones only.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic_core import to_json

from mlango.core.messages import text_of
from mlango.core.provider import Message

OWN = frozenset(("raw_content", "provider", "is_error"))
NOTHING_SAID = {"role": "assistant", "content": ""}
HOISTED = "Image from tool result:"
KEPT = 128  # conversations whose bytes are kept
MAX_KEPT_BYTES = 256 * 1024

_encode = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")
).encode


def encode(value: Any) -> bytes:
    """Return a value as JSON in UTF-8."""
    try:
        return to_json(value, inf_nan_mode="null")
    except ValueError:  # half of a surrogate pair, or nothing that JSON can hold
        return _encode(value).encode(errors="replace")


def turns(messages: Iterable[Message], provider: str, model: str) -> Iterator[dict[str, Any]]:
    """Yield the messages as ``provider`` takes them for ``model``.

    A tool message holds text only, and nothing may stand between the results of one turn, so
    images in them follow in one message of the user. A turn in which the assistant said nothing
    is left out: some servers refuse it.
    """
    images: list[dict[str, Any]] = []
    for message in messages:
        role = message["role"]
        if role == "tool":
            yield _result(message, images)
            continue
        if images:
            yield _hoisted(images)
            images = []
        turn = _assistant(message, provider, model) if role == "assistant" else _plain(message)
        if turn != NOTHING_SAID:
            yield turn
    if images:
        yield _hoisted(images)


def _plain(message: Message) -> dict[str, Any]:
    return message if OWN.isdisjoint(message) else _without(message, OWN)


def _without(message: Message, names: Iterable[str]) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name not in names}


def _result(message: Message, images: list[dict[str, Any]]) -> dict[str, Any]:
    content = message["content"]
    if isinstance(content, str):
        return _plain(message)
    images += [part for part in content if part.get("type") != "text"]
    text = text_of(content) or "The result follows as an image."
    return {**_plain(message), "content": text}


def _hoisted(images: list[dict[str, Any]]) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": HOISTED}, *images]}


def _assistant(message: Message, provider: str, model: str) -> dict[str, Any]:
    """Return the assistant's turn with what its own provider and model added to it.

    A signature of another model would be refused.
    """
    turn = dict(_plain(message))
    if not isinstance(turn["content"], str):
        turn["content"] = text_of(turn["content"])
    if turn.get("tool_calls") and not turn["content"]:
        turn["content"] = None  # some servers refuse an empty text
    raw = message.get("raw_content")
    if raw and message.get("provider") == provider and raw.get("model") == model:
        turn |= raw["message"]
        if any(raw["tool_calls"]) and len(raw["tool_calls"]) == len(turn.get("tool_calls", ())):
            turn["tool_calls"] = [
                {**call, **extras}
                for call, extras in zip(turn["tool_calls"], raw["tool_calls"], strict=True)
            ]
    return turn


class Conversation:
    """The bytes of one conversation so far."""

    __slots__ = ("body", "messages")

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.body = bytearray()

    def is_continued_by(self, messages: list[Message]) -> bool:
        count = len(self.messages)
        # Equal dicts are seen by identity, so this costs next to nothing.
        if count > len(messages) or self.messages != messages[:count]:
            return False
        return count == len(messages) or messages[count]["role"] != "tool"

    def add(self, messages: list[Message], provider: str, model: str) -> None:
        new = messages[len(self.messages) :]
        self.messages += new
        for turn in turns(new, provider, model):
            if self.body:
                self.body += b","
            self.body += encode(turn)


class Encoder:
    """Encodes the conversations of one provider; keeps the latest, up to a size."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[int, str], Conversation] = OrderedDict()

    def encode(self, messages: list[Message], provider: str, model: str) -> bytes | bytearray:
        """Return the messages as JSON, without the brackets of the list."""
        key = (id(messages), model)
        conversation = self._kept.pop(key, None)
        if conversation is None or not conversation.is_continued_by(messages):
            conversation = Conversation()
        conversation.add(messages, provider, model)
        if len(conversation.body) <= MAX_KEPT_BYTES:
            self._kept[key] = conversation
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return conversation.body
