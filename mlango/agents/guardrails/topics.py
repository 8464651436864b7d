"""DenyTopics: refuses texts that name certain things."""

from __future__ import annotations

from collections.abc import Iterable

from mlango.agents.guardrails.text import TextGuardrail, Verdict, plain
from mlango.core.guardrails import INPUT, OUTPUT, Block
from mlango.exceptions import Misconfigured


class DenyTopics(TextGuardrail):
    """Refuses texts with one of ``topics`` in them, in whatever case and way of writing.

    The words themselves are looked for, also inside of longer ones, and not their meaning.
    """

    name = "deny-topics"

    def __init__(
        self, topics: Iterable[str], *, on: str | Iterable[str] = (INPUT, OUTPUT)
    ) -> None:
        super().__init__(on=on)
        is_list = isinstance(topics, Iterable) and not isinstance(topics, str)
        self.topics = tuple(topics) if is_list else ()
        if not self.topics or not all(map(_is_topic, self.topics)):
            raise Misconfigured(
                f"DenyTopics: topics is a list of words or phrases, not {topics!r}."
            )
        self._folded = tuple(map(_folded, self.topics))

    def check_text(self, text: str) -> Verdict:
        folded = _folded(text)
        if any(topic in folded for topic in self._folded):
            return Block("It touches on a topic that is not allowed.")
        return None


def _is_topic(topic: object) -> bool:
    return isinstance(topic, str) and bool(_folded(topic))


def _folded(text: str) -> str:
    return " ".join(plain(text).casefold().split())
