"""Regex: finds what a regular expression matches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mlango.agents.guardrails.text import ACTION, BLOCK, TextGuardrail, Verdict, plain
from mlango.core.guardrails import INPUT, OUTPUT, Block, Rewrite
from mlango.core.wanted import COUNT, TEXT, check_made
from mlango.exceptions import Misconfigured

FLAGS = {"i": "IGNORECASE", "m": "MULTILINE", "s": "DOTALL", "x": "VERBOSE"}
MAX_CHARS = 100_000
# A pattern that takes longer, such as (a+)+$, would take for ever; most take a thousandth.
SECONDS = 0.05
WANTED = {
    "pattern": TEXT,
    "flags": TEXT,
    "action": ACTION,
    "replacement": TEXT,
    "max_chars": COUNT,
}
REASON = "It matches a pattern that is not allowed."


class Regex(TextGuardrail):
    """Refuses what ``pattern`` matches, or puts ``replacement`` in its place.

    ``flags`` are letters out of ``imsx``, as in ``(?i)``. A text of more than ``max_chars``
    characters is refused, as is one that takes too long to search.
    """

    name = "regex"

    def __init__(
        self,
        pattern: str,
        *,
        flags: str = "",
        action: str = BLOCK,
        replacement: str = "[removed]",
        max_chars: int = MAX_CHARS,
        on: str | Iterable[str] = (INPUT, OUTPUT),
    ) -> None:
        super().__init__(on=on)
        self.pattern = pattern
        self.flags = flags
        self.action = action
        self.replacement = replacement
        self.max_chars = max_chars
        check_made(self, WANTED)
        self._compiled = _compiled(pattern, flags)

    def check_text(self, text: str) -> Verdict:
        if len(text) > self.max_chars:
            return Block(f"It has more than {self.max_chars} characters, too many to be searched.")
        if self.action == BLOCK:
            found = self._finds(text) or self._finds(plain(text))
            return Block(REASON) if found else None
        rewritten = self._compiled.sub(
            lambda match: self.replacement, text, timeout=SECONDS, concurrent=True
        )
        if self._finds(plain(rewritten)):  # it was written in another way
            return Block(REASON)
        return None if rewritten == text else Rewrite(rewritten, REASON)

    def _finds(self, text: str) -> bool:
        found = self._compiled.search(text, timeout=SECONDS, concurrent=True)
        return found is not None


def _compiled(pattern: str, flags: str) -> Any:
    # Unlike re, it can be told to stop and lets other threads run. Few agents need it.
    import regex

    unknown = sorted(set(flags) - set(FLAGS))
    if unknown:
        raise Misconfigured(
            f"Regex: the flag {unknown[0]!r} is unknown. Flags are letters out of 'imsx'."
        )
    try:
        compiled = regex.compile(f"(?{flags}){pattern}" if flags else pattern)
        matches_nothing = compiled.search("", timeout=SECONDS)
    except (regex.error, TypeError) as error:
        raise Misconfigured(f"Regex: {pattern!r} is not a regular expression: {error}.") from error
    if matches_nothing:
        raise Misconfigured(
            f"Regex: {pattern!r} matches an empty text, and so everything. "
            f"Write a pattern that needs at least one character."
        )
    return compiled
