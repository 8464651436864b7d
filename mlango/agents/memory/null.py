"""The memory that keeps nothing: every run starts fresh."""

from __future__ import annotations

from mlango.core.memory import Memory, SessionKey
from mlango.core.provider import Message


class NullMemory(Memory):
    """Keeps nothing. The default."""

    blocking = False

    def load(self, key: SessionKey) -> list[Message]:
        return []

    def append(self, key: SessionKey, messages: list[Message]) -> None:
        pass

    def clear(self, key: SessionKey) -> None:
        pass
