"""The control that runs the guardrails of a run, and writes down what they said."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mlango.core.controls import Control, Halt
from mlango.core.events import GuardrailRewrote, GuardrailTripped
from mlango.core.guardrails import (
    GUARDRAIL,
    INPUT,
    OUTPUT,
    TOOLS,
    Block,
    Check,
    Guardrail,
    GuardrailContext,
    Rewrite,
)
from mlango.core.journal import Entry
from mlango.core.messages import content_parts, text_of
from mlango.core.values import to_json
from mlango.exceptions import ToolError

if TYPE_CHECKING:
    from mlango.core.calls import Job
    from mlango.core.provider import Completion, Message, ToolCall
    from mlango.core.run import Run


class Tripped(Halt):
    """Ends the run; ``kept`` is what to store in the place of the message, None for itself."""

    def __init__(self, text: str, kept: str | None) -> None:
        super().__init__(GUARDRAIL, text)
        self.kept = kept


class Guarding(Control):
    """Runs the guardrails of one run: what they refuse is neither said nor done."""

    late: asyncio.Task[None] | None = None  # the checks beside the first model call
    halt: Halt | None = None  # what a check said before the trace was opened
    heard = False  # whether what was said went through hear(), and not to another agent

    def __init__(self, guardrails: Iterable[Guardrail]) -> None:
        every = tuple(guardrails)
        self.input = [each for each in every if each.guards(INPUT)]
        self.output = [each for each in every if each.guards(OUTPUT)]
        self.tools = [each for each in every if each.guards(TOOLS)]
        self.early: list[Entry] | None = []

    # -- the seams -----------------------------------------------------------------------

    async def hear(self, run: Run, said: list[Message]) -> list[Message]:
        if self.early is None:
            return await run.watch.wait(self._read(run, list(said), self.input), run.deadline)
        self.heard = True
        first, read = [each for each in self.input if not each.parallel], list(said)
        try:
            await run.watch.wait(self._read(run, read, first), run.deadline)
        except Halt as halt:
            self.halt = halt
        return read

    async def begin(self, run: Run) -> None:
        early, self.early = self.early or [], None
        for entry in early:
            run.journal.write(entry)
        if self.halt is not None:
            raise self.halt
        late = [each for each in self.input if each.parallel or not self.heard]
        if late and not _was_checked(run):
            self.late = run.spawn(self._judge(run, late))

    def holds(self, run: Run) -> bool:
        if self.late is not None and self.late.done():
            self.late.result()
        return bool(self.output) or (self.late is not None and not self.late.done())

    async def after_model(self, run: Run, completion: Completion) -> Completion:
        if self.late is not None:
            # A steering message ends the wait, but not the checks.
            await run.watch.wait(asyncio.shield(self.late), run.deadline)
            self.late = None
        if not self.output:
            return completion
        try:
            return await run.watch.wait(self._cleared(run, completion), run.deadline)
        except Halt:
            run.text = ""
            raise

    async def before_call(self, run: Run, job: Job, arguments: dict[str, Any]) -> dict[str, Any]:
        assert job.tool is not None
        for each in self.tools:
            name = job.call.name
            passed = await self._passed(run, each, TOOLS, name, arguments, call=job.call)
            if passed is not arguments:
                job.call = replace(job.call, arguments=to_json(passed))
                arguments = job.tool.parameters.validate(job.call.arguments)
        return arguments

    async def end(self, run: Run) -> None:
        if self.late is not None:
            self.late.cancel()
            await asyncio.wait({self.late})
            if not self.late.cancelled():
                self.late.exception()  # or asyncio complains that nobody looked at it

    # -- the checks ----------------------------------------------------------------------

    async def _read(
        self, run: Run, said: list[Message], guardrails: list[Guardrail]
    ) -> list[Message]:
        """Check messages in place: what was rewritten stays so if a later check blocks."""
        for index in range(len(said)):
            for each in guardrails:
                text = text_of(said[index].get("content"))
                try:
                    passed = await self._passed(run, each, INPUT, text) if text else text
                except Tripped as tripped:
                    if tripped.kept is not None:
                        said[index] = _with_text(said[index], tripped.kept)
                    raise
                if passed != text:
                    said[index] = _with_text(said[index], passed)
        return said

    async def _judge(self, run: Run, guardrails: list[Guardrail]) -> None:
        """Check what was said, side by side; end the model call at the first that blocks."""
        texts = [text for message in run.said if (text := text_of(message.get("content")))]
        checks = [
            asyncio.ensure_future(self._passed(run, each, INPUT, text, is_late=True))
            for each in guardrails
            for text in texts
        ]
        try:
            await asyncio.gather(*checks)
        except Halt as halt:
            run.watch.end_soon(halt)
            raise
        finally:
            for check in checks:
                check.cancel()
            if checks:
                await asyncio.wait(checks)

    async def _cleared(self, run: Run, completion: Completion) -> Completion:
        """Return the answer as it may be told."""
        changed: dict[str, Any] = {}
        for field in ("text", "refusal"):
            text = passed = getattr(completion, field)
            for each in self.output:
                passed = await self._passed(run, each, OUTPUT, passed) if passed else passed
            if passed != text:
                changed |= {field: passed, "raw_content": None}
        if completion.reasoning:  # which nobody has checked
            changed["reasoning"] = ""
        return replace(completion, **changed) if changed else completion

    async def _passed(
        self,
        run: Run,
        guardrail: Guardrail,
        kind: str,
        *subject: Any,
        call: ToolCall | None = None,
        is_late: bool = False,
    ) -> Any:
        """Return what a check lets through of the last of ``subject``; raise if it blocks."""
        context = GuardrailContext(run, kind, call)
        check = Check(guardrail, context, subject)
        verdict = await check.verdict(run)
        if is_late and isinstance(verdict, Rewrite):
            verdict = Block("It rewrites a message after the model has read it.")
        entry = check.entry(run, verdict)
        self.early.append(entry) if self.early is not None else run.journal.write(entry)
        tool = call.name if call else ""
        if isinstance(verdict, Block):
            run.note(GuardrailTripped, guardrail.name, kind, verdict.reason, tool)
            raise _refusal(guardrail.name, kind, verdict)
        if verdict is None:
            return subject[-1]
        run.note(GuardrailRewrote, guardrail.name, kind, verdict.reason, tool)
        return verdict.value


def _refusal(name: str, kind: str, verdict: Block) -> Exception:
    because = f": {verdict.reason}" if verdict.reason else "."
    if kind == TOOLS:
        return ToolError(f"The guardrail {name!r} refused this call{because}")
    return Tripped(f"Stopped by the guardrail {name!r}{because}", verdict.kept)


def _was_checked(run: Run) -> bool:
    """Return whether an earlier process has checked what was said: the model has answered it."""
    added = run.messages[len(run.history) + len(run.said) :]
    is_answered = any(message["role"] == "assistant" for message in added)
    return run.is_resumed and is_answered and not run.handoffs


def _with_text(message: Message, text: str) -> Message:
    """Return a message with another text, and the images and files that it had."""
    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": text}
    others = [part for part in content_parts(content) if part.get("type") != "text"]
    return {**message, "content": [{"type": "text", "text": text}, *others]}
