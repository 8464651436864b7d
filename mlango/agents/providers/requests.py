"""What a provider is asked, as a cassette writes and compares it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mlango.agents.providers.fingerprint import Conversation, canonical
from mlango.agents.providers.scrubbing import Scrubber
from mlango.core.messages import text_of
from mlango.core.provider import Message
from mlango.core.values import to_json


@dataclass(frozen=True, slots=True)
class Asked:
    """A request without its secrets; its messages up to ``known`` were in the one before."""

    key: str
    position: int
    head: dict[str, Any]
    messages: list[Message]
    known: int


class Listener:
    """Reads the requests of one conversation, each message once."""

    def __init__(self) -> None:
        self._scrubber = Scrubber()
        self._conversation = Conversation()
        self._messages: list[Message] = []
        self._tools: tuple[Any, Any, str] = (None, None, canonical(None))

    def hear(
        self,
        *,
        model: str = "",
        messages: list[Message],
        system: str = "",
        tools: list[dict[str, Any]] | None = None,
        **options: Any,
    ) -> Asked:
        known = self._take(messages)
        written_tools, tools_text = self._written_tools(tools)
        system, options = self._scrubber.text(system), self._scrubber.data(options)
        rest = canonical([model, system, options])
        return Asked(
            key=self._conversation.key(f"{rest}{tools_text}"),
            position=self._conversation.position,
            head={
                "model": model,
                "system": system,
                "tools": written_tools,
                "options": to_json(options),
            },
            messages=self._messages[:],
            known=known,
        )

    def _take(self, messages: list[Message]) -> int:
        """Take the messages that are new; return how many were known."""
        if not self._conversation.is_continued_by(messages):
            self._conversation, self._messages = Conversation(), []
        known = len(self._messages)
        for message in messages[known:]:
            written = self._scrubber.data(message)
            self._messages.append(written)
            self._conversation.add(message, written)
        return known

    def _written_tools(self, tools: list[dict[str, Any]] | None) -> tuple[Any, str]:
        """Return the tools and their fingerprint; the same list is looked at once."""
        if tools is not self._tools[0]:
            written = self._scrubber.data(tools)
            self._tools = (tools, written, canonical(written))
        return self._tools[1:]


def said_in(messages: list[Message]) -> str:
    """Return what people say in a conversation."""
    return "\n".join(
        text_of(message.get("content")) for message in messages if message["role"] == "user"
    )
