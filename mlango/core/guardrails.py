"""Guardrails: checks of what an agent is told, of what it answers, and of its tool calls.

A check returns a verdict: None, Block or Rewrite. One that raises, takes too long or returns
anything else blocks. Nothing that a check saw is told: not in events, errors or spans.
"""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import Awaitable, Coroutine, Iterable
from dataclasses import dataclass
from decimal import Decimal
from time import monotonic, time
from typing import TYPE_CHECKING, Any

from mlango.core.context import Context
from mlango.core.controls import Halt
from mlango.core.journal import Entry
from mlango.core.overrides import check_overrides
from mlango.core.threads import in_thread
from mlango.core.values import clean
from mlango.core.wanted import check, one_of
from mlango.exceptions import Misconfigured

if TYPE_CHECKING:
    from mlango.core.provider import Message, ToolCall
    from mlango.core.run import Run
    from mlango.core.usage import Usage

GUARDRAIL = "guardrail"  # the stop reason, and the kind of span
INPUT, OUTPUT, TOOLS = KINDS = ("input", "output", "tools")
METHODS = {INPUT: "check_input", OUTPUT: "check_output", TOOLS: "check_tool_call"}


@dataclass(frozen=True, slots=True)
class Block:
    """A verdict that refuses. The reason is shown to people, so it must not quote the text.

    ``kept`` is what the trace holds in the place of a refused message; None keeps that. A
    check that is ``parallel`` comes too late for it.
    """

    reason: str = ""
    kept: str | None = None


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
        """The conversation so far, oldest first."""
        return list(self._run.messages or self._run.history)

    def used(self, usage: Usage, cost: Decimal | None, model: str = "") -> None:
        """Tell what the check itself cost; the run counts it."""
        self.usage, self.cost, self.model = usage, cost, model
        self._run.count(usage, cost)


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
        check_overrides(cls, Guardrail, METHODS.values())
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
        plain = str | int | float | tuple | list | dict | None
        return {"name": self.name, "on": self.on} | {
            name: value if isinstance(value, plain) else type(value).__name__
            for name, value in own.items()
        }


def kinds(owner: str, on: Any) -> tuple[str, ...]:
    """Return what a guardrail is ``on`` as a tuple. Raises Misconfigured."""
    given = tuple(on) if isinstance(on, Iterable) and not isinstance(on, str) else (on,)
    for kind in given:
        check(f"{{}} of {owner}", {"on": kind}, {"on": one_of(*KINDS)})
    return given


class Check:
    """One use of a guardrail."""

    def __init__(
        self, guardrail: Guardrail, context: GuardrailContext, subject: tuple[Any, ...]
    ) -> None:
        self.guardrail = guardrail
        self.context = context
        self.subject = subject
        self.error_type = ""
        self.attributes: dict[str, Any] = {"on": context.kind}
        self.started_at, self.clock = time(), monotonic()

    async def verdict(self, run: Run) -> Verdict:
        """Return the verdict, within the time for it."""
        try:
            return await _within(run, self._asked(), self.guardrail.timeout)
        except TimeoutError as error:
            return self._failed(error)

    async def _asked(self) -> Verdict:
        try:
            method = getattr(self.guardrail, METHODS[self.context.kind])
            given = self.subject
            if len(inspect.signature(method).parameters) > len(given):
                given = (*given, self.context)
            if inspect.iscoroutinefunction(method):
                return self._understood(await method(*given))
            answer = await in_thread(method, *given)
            return self._understood(await answer if inspect.isawaitable(answer) else answer)
        except (asyncio.CancelledError, Halt, Misconfigured):  # no verdict: the run ends
            raise
        # As for a tool: sys.exit() in a task would end the whole event loop.
        except BaseException as error:  # noqa: BLE001 - a check that fails blocks
            return self._failed(error)

    def _understood(self, answer: Any) -> Verdict:
        wanted = dict if self.context.kind == TOOLS else str
        if isinstance(answer, Rewrite) and isinstance(answer.value, wanted):
            value = answer.value
            value = clean(value) if isinstance(value, str) else value
            return Rewrite(value, clean(str(answer.reason)))
        if isinstance(answer, Block):
            kept = None if answer.kept is None else clean(str(answer.kept))
            return Block(clean(str(answer.reason)), kept)
        if answer is None:
            return None
        return Block(f"The check returned {type(answer).__name__}, which is no verdict.")

    def _failed(self, error: BaseException) -> Block:
        # Not its text, which may quote what was checked.
        self.error_type = type(error).__name__
        self.attributes["traceback"] = "".join(traceback.format_tb(error.__traceback__)[-20:])
        return Block(f"The check failed with {self.error_type}.")

    def entry(self, run: Run, verdict: Verdict) -> Entry:
        """Return the span of the check."""
        context, reason = self.context, verdict.reason if verdict else ""
        if context.tool_call_id:
            self.attributes["tool_call_id"] = context.tool_call_id
        if context.model:
            self.attributes["model"] = context.model
        self.attributes["verdict"] = type(verdict).__name__.lower() if verdict else "pass"
        if isinstance(verdict, Rewrite) and reason:
            self.attributes["reason"] = reason
        blocked = isinstance(verdict, Block)
        return Entry(
            GUARDRAIL,
            self.guardrail.name,
            run.next_ordering(),
            run.step,
            self.started_at,
            monotonic() - self.clock,
            error=reason if blocked else "",
            error_type=(self.error_type or GUARDRAIL) if blocked else "",
            usage=context.usage,
            cost=context.cost,
            attributes=self.attributes,
        )


async def _within(run: Run, coroutine: Coroutine[Any, Any, Verdict], seconds: float) -> Verdict:
    """Return what a check says in time; a thread that goes on is left behind."""
    task = run.spawn(coroutine)
    try:
        await asyncio.wait({task}, timeout=seconds)
    finally:
        if not task.done():
            run.leave_behind(task)
            task.cancel()
    if not task.done():
        raise TimeoutError
    verdict: Verdict = task.result()
    return verdict
