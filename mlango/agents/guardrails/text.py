"""What the guardrails that look at text share."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from html import unescape
from typing import Any
from unicodedata import category, normalize
from urllib.parse import unquote

from mlango.core.guardrails import (
    INPUT,
    OUTPUT,
    Block,
    Guardrail,
    GuardrailContext,
    Rewrite,
    kinds,
)
from mlango.core.guardrails import Verdict as Verdict
from mlango.core.values import to_json
from mlango.core.wanted import one_of

BLOCK, REWRITE = ACTIONS = ("block", "rewrite")
ACTION = one_of(*ACTIONS)
_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})")


class TextGuardrail(Guardrail):
    """Looks at a message, an answer, or each text in the arguments of a tool call.

    It takes less time than it takes to ask the model, so the model is asked afterwards. Its
    threads are not those of the pool, which may all wait for models.
    """

    parallel = False

    def __init__(self, *, on: str | Iterable[str] = (INPUT, OUTPUT)) -> None:
        self.on = kinds(type(self).__name__, on)

    def check_text(self, text: str) -> Verdict:
        """Return the verdict on one text. Runs in a thread."""
        raise NotImplementedError(f"{type(self).__name__}.check_text() must be overridden.")

    async def check_input(self, text: str, ctx: GuardrailContext) -> Verdict:
        return await asyncio.to_thread(self.check_text, text)

    async def check_output(self, text: str, ctx: GuardrailContext) -> Verdict:
        return await asyncio.to_thread(self.check_text, text)

    async def check_tool_call(
        self, name: str, arguments: dict[str, Any], ctx: GuardrailContext
    ) -> Verdict:
        return await asyncio.to_thread(self.check_arguments, arguments)

    def check_arguments(self, arguments: dict[str, Any]) -> Verdict:
        """Return the verdict on every text in the arguments, whatever they are inside of."""
        given, verdicts = to_json(arguments), list[Block | Rewrite]()
        rewritten = {name: self._walk(value, verdicts) for name, value in given.items()}
        for verdict in verdicts:
            if isinstance(verdict, Block):
                return verdict
        return Rewrite(rewritten, verdicts[0].reason) if verdicts else None

    def _walk(self, value: Any, verdicts: list[Block | Rewrite]) -> Any:
        if isinstance(value, dict):
            return {self._walk(k, verdicts): self._walk(v, verdicts) for k, v in value.items()}
        if isinstance(value, list):
            return [self._walk(item, verdicts) for item in value]
        if value is None or isinstance(value, bool):
            return value
        verdict = self.check_text(str(value))
        if verdict is None:
            return value
        verdicts.append(verdict)
        return verdict.value if isinstance(verdict, Rewrite) else value


def plain(text: str) -> str:
    """Return text as it reads: escapes undone, look-alike forms and invisible characters gone."""
    text = _ESCAPE.sub(lambda match: chr(int(match[1], 16)), text)
    text = normalize("NFKC", unquote(unescape(text)))
    if text.isascii():
        return text
    return text.translate({ord(each): None for each in set(text) if category(each) == "Cf"})
