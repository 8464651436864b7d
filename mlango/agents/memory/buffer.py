"""The memory of the last messages, in this process."""

from __future__ import annotations

import threading
from collections import OrderedDict

from mlango.core.memory import Memory, SessionKey
from mlango.core.messages import turns
from mlango.core.provider import Message
from mlango.core.wanted import COUNT, check_made

# The session that was used longest ago goes first when there are more.
MAX_SESSIONS = 10_000


def last_turns(messages: list[Message], k: int) -> list[Message]:
    """Return the newest whole turns of at most ``k`` messages together; at least one turn."""
    kept: list[Message] = []
    for turn in reversed(list(turns(messages))):
        if kept and len(kept) + len(turn) > k:
            break
        kept = [*turn, *kept]
    return kept


class BufferMemory(Memory):
    """Recalls the last ``k`` messages, cut at whole turns. Gone when the process ends."""

    blocking = False

    def __init__(self, k: int = 20) -> None:
        self.k = k
        check_made(self, {"k": COUNT})
        self._sessions: OrderedDict[SessionKey, list[Message]] = OrderedDict()
        self._lock = threading.Lock()

    def load(self, key: SessionKey) -> list[Message]:
        with self._lock:
            return list(self._sessions.get(key, ()))

    def append(self, key: SessionKey, messages: list[Message]) -> None:
        with self._lock:
            self._sessions[key] = self._cut([*self._sessions.get(key, ()), *messages])
            self._sessions.move_to_end(key)
            if len(self._sessions) > MAX_SESSIONS:
                self._sessions.popitem(last=False)

    def clear(self, key: SessionKey) -> None:
        with self._lock:
            self._sessions.pop(key, None)

    def _cut(self, messages: list[Message]) -> list[Message]:
        return last_turns(messages, self.k)
