"""What makes two requests the same: all that the model reads, but for what changes each time.

UUIDs, dates and times are replaced by a word, and ids of tool calls by their order.
"""

from __future__ import annotations

import json
import re
from hashlib import sha256
from typing import Any

from mlango.core.provider import Message
from mlango.core.values import dumps

VOLATILE = re.compile(
    r"(?P<uuid>\b[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}\b)"
    r"|(?P<time>\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z\b|[+-]\d\d:?\d\d\b)?)"
    r"|(?P<date>\b\d{4}-\d\d-\d\d\b)",
    re.IGNORECASE,
)


def settled(text: str) -> str:
    """Return the text with a word for each value that changes each time."""
    return VOLATILE.sub(lambda match: f"<{match.lastgroup}>", text)


def canonical(value: Any) -> str:
    """Return a text that is the same for equal values only: ``1``, ``1.0`` and ``"1"`` differ."""
    if isinstance(value, str):
        return json.dumps(settled(value))
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, dict):
        pairs = sorted(f"{canonical(key)}:{canonical(item)}" for key, item in value.items())
        return f"{{{','.join(pairs)}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(canonical, value))}]"
    return f"<{type(value).__qualname__} {dumps(value)}>"


class Conversation:
    """The fingerprint of a conversation, which takes each message once."""

    __slots__ = ("_digest", "_ids", "messages", "position")

    def __init__(self) -> None:
        self.messages: list[Message] = []  # as they came
        self.position = 0  # how often the model has answered
        self._ids: dict[str, str] = {}
        self._digest = b""

    def is_continued_by(self, messages: list[Message]) -> bool:
        # Equal dicts are seen by identity, so this costs next to nothing.
        return self.messages == messages[: len(self.messages)]

    def add(self, message: Message, written: Message) -> None:
        """Take ``message``, whose text is that of ``written``."""
        self.messages.append(message)
        self.position += message["role"] == "assistant"
        text = canonical(self.with_ids(written))
        self._digest = sha256(self._digest + text.encode()).digest()

    def with_ids(self, message: Message) -> Message:
        """Return the message with the order of a tool call for its id."""
        message = dict(message)
        if message.get("tool_calls"):
            message["tool_calls"] = [
                {**call, "id": self._order(call.get("id", ""))} for call in message["tool_calls"]
            ]
        if "tool_call_id" in message:
            message["tool_call_id"] = self._order(message["tool_call_id"])
        return message

    def _order(self, call_id: str) -> str:
        return self._ids.setdefault(call_id, f"<call {len(self._ids) + 1}>")

    def key(self, head: str) -> str:
        """Return the key of a request: what is canonical of the rest, and the conversation."""
        return sha256(head.encode() + self._digest).hexdigest()


def difference(recorded: Any, asked: Any, path: str = "") -> str:
    """Return where two requests first differ, and how; an empty string if they do not."""
    if isinstance(recorded, dict) and isinstance(asked, dict):
        for key in (*asked, *(key for key in recorded if key not in asked)):
            if key not in recorded or key not in asked:
                side = "only asked" if key in asked else "only recorded"
                return f"{_join(path, key)} was {side}"
            if found := difference(recorded[key], asked[key], _join(path, key)):
                return found
        return ""
    if isinstance(recorded, list) and isinstance(asked, list):
        for index, (one, other) in enumerate(zip(recorded, asked, strict=False)):
            if found := difference(one, other, f"{path}[{index}]"):
                return found
        if len(recorded) != len(asked):
            return f"{path} has {len(asked)} items, not {len(recorded)}"
        return ""
    if canonical(recorded) == canonical(asked):
        return ""
    one, other = _around(recorded, asked)
    return f"{path} is {other}, not {one}"


def _join(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def _around(recorded: Any, asked: Any) -> tuple[str, str]:
    """Return both values as they are shown: long texts from a little before they differ."""
    if not (isinstance(recorded, str) and isinstance(asked, str)):
        return f"{recorded!r:.80}", f"{asked!r:.80}"
    recorded, asked = settled(recorded), settled(asked)
    same = 0
    while same < min(len(recorded), len(asked)) and recorded[same] == asked[same]:
        same += 1
    start = max(0, same - 20)
    return _cut(recorded, start), _cut(asked, start)


def _cut(text: str, start: int) -> str:
    piece = text[start : start + 60]
    before, after = "…" if start else "", "…" if start + 60 < len(text) else ""
    return f"{before}{piece!r}{after}"
