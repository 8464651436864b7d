"""MaxLength: refuses what is too long."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mlango.agents.guardrails.text import TextGuardrail, Verdict
from mlango.core.guardrails import INPUT, OUTPUT, Block
from mlango.core.values import dumps
from mlango.core.wanted import COUNT, check_made


class MaxLength(TextGuardrail):
    """Refuses texts of more than ``max_chars`` characters; of arguments, their JSON text."""

    name = "max-length"

    def __init__(
        self, max_chars: int = 10_000, *, on: str | Iterable[str] = (INPUT, OUTPUT)
    ) -> None:
        super().__init__(on=on)
        self.max_chars = max_chars
        check_made(self, {"max_chars": COUNT})

    def check_text(self, text: str) -> Verdict:
        if len(text) <= self.max_chars:
            return None
        return Block(f"{len(text)} characters, but at most {self.max_chars} are allowed.")

    def check_arguments(self, arguments: dict[str, Any]) -> Verdict:
        return self.check_text(dumps(arguments))
