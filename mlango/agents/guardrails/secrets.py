"""SecretScan: finds keys and passwords, by their form and those of this site by their value."""

from __future__ import annotations

from collections.abc import Iterable

from mlango.agents.guardrails.text import ACTION, BLOCK, TextGuardrail, Verdict
from mlango.core.guardrails import INPUT, OUTPUT, Block, Rewrite
from mlango.core.wanted import TEXT, check_made
from mlango.runtime.redaction import Redactor

REASON = "A secret, such as a key or a password."


class SecretScan(TextGuardrail):
    """Refuses secrets, or with ``action="rewrite"`` puts ``replacement`` in their place."""

    name = "secret-scan"

    def __init__(
        self,
        *,
        action: str = BLOCK,
        replacement: str = "[secret]",
        on: str | Iterable[str] = (INPUT, OUTPUT),
    ) -> None:
        super().__init__(on=on)
        self.action = action
        self.replacement = replacement
        check_made(self, {"action": ACTION, "replacement": TEXT})

    def check_text(self, text: str) -> Verdict:
        rewritten = Redactor().text(text, self.replacement)
        if rewritten == text:
            return None
        if self.action == BLOCK:
            return Block(REASON, kept=rewritten)
        return Rewrite(rewritten, REASON)
