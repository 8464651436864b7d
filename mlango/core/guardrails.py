"""Guardrails: checks of what an agent is told, of what it answers, and of its tool calls.

A check returns a verdict: None, Block or Rewrite. One that raises, takes too long or returns
anything else blocks. Nothing that a check saw is told: not in events, errors or spans.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from mlango.core.context import Context
from mlango.exceptions import Misconfigured, did_you_mean

if TYPE_CHECKING:
    from mlango.core.provider import Message, ToolCall
    from mlango.core.run import Run
    from mlango.core.usage import Usage

INPUT, OUTPUT, TOOLS = KINDS = ("input", "output", "tools")
METHODS = {INPUT: "check_input", OUTPUT: "check_output", TOOLS: "check_tool_call"}


@dataclass(frozen=True, slots=True)
class Block:
    """A verdict that refuses. The reason is shown to people, so it must not quote the text."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A verdict that has ``value`` used instead: text, or the arguments of a tool call."""

    value: Any
    reason: str = ""


Verdict = Block | Rewrite | None
Checked = Verdict | Awaitable[Verdict]


class GuardrailContext(Context):
    """A check's view of the run; ``kind`` is ``input``, ``output`` or ``tools``."""

    __slots__ = ("cost", "kind", "model", "usage")

    def __init__(self, run: Run, kind: str, call: ToolCall | None = None) -> None:
        super().__init__(run, call)
        self.kind = kind
        self.usage: Usage | None = None
        self.cost: Decimal | None = None
        self.model = ""

    @property
    def messages(self) -> list[Message]:
        """The conversation so far, oldest first, without what is being checked."""
        return list(self._run.messages)

    def used(self, usage: Usage, cost: Decimal | None, model: str = "") -> None:
        """Tell what the check itself cost; the run counts it."""
        self.usage, self.cost, self.model = usage, cost, model


class Guardrail:
    """Subclass it and override one or more of the three checks, which may be async.

    ``on`` says which of them to use. With ``parallel`` a message is checked while the model
    is already asked; it is blocked then where the check would rewrite it. A check that takes
    longer than ``timeout`` seconds blocks.
    """

    name: str = ""  # the class's by default
    on: tuple[str, ...] = KINDS
    parallel: bool = True
    timeout: float = 30.0

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.name = vars(cls).get("name") or cls.__name__
        cls.on = kinds(cls.__name__, cls.on)

    def check_input(self, text: str, ctx: GuardrailContext) -> Checked:
        """Look at what someone told the agent."""

    def check_output(self, text: str, ctx: GuardrailContext) -> Checked:
        """Look at what the model answers, in each step."""

    def check_tool_call(
        self, name: str, arguments: dict[str, Any], ctx: GuardrailContext
    ) -> Checked:
        """Look at a tool call before it runs."""

    def guards(self, kind: str) -> bool:
        """Return whether there is such a check, and it is to be used."""
        method = METHODS[kind]
        return kind in self.on and getattr(type(self), method) is not getattr(Guardrail, method)

    def describe(self) -> dict[str, Any]:
        """Return what the guardrail is; part of an agent's fingerprint."""
        own = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        return {"name": self.name, "on": self.on} | own


def kinds(owner: str, on: Any) -> tuple[str, ...]:
    """Return what a guardrail is ``on`` as a tuple. Raises Misconfigured."""
    given = (on,) if isinstance(on, str) else tuple(on)
    for kind in given:
        if kind not in KINDS:
            raise Misconfigured(
                f"{owner}: on={kind!r} is unknown.{did_you_mean(kind, KINDS)} "
                f"It is one or more of {', '.join(map(repr, KINDS))}."
            )
    return given
