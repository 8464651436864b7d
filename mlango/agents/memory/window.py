"""The memory of how a session began and of its last messages, in this process."""

from __future__ import annotations

from mlango.agents.memory.buffer import BufferMemory, last_turns
from mlango.core.messages import turns
from mlango.core.provider import Message
from mlango.core.wanted import COUNT, check_made


class WindowMemory(BufferMemory):
    """Recalls the first ``keep_first`` turns and the last ``k`` messages, at whole turns."""

    def __init__(self, k: int = 20, keep_first: int = 1) -> None:
        super().__init__(k)
        self.keep_first = keep_first
        check_made(self, {"keep_first": COUNT})

    def _cut(self, messages: list[Message]) -> list[Message]:
        first = [message for turn in list(turns(messages))[: self.keep_first] for message in turn]
        return [*first, *last_turns(messages[len(first) :], self.k)]
