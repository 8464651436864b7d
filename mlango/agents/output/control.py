"""The two controls of a typed answer: one takes it from its call, one checks it.

Between them stand the guardrails, which therefore see the answer as text, like any other.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mlango.agents.calling import called_in
from mlango.agents.output.kinds import FINAL_ANSWER, Invalid, OutputType
from mlango.core.controls import Control, Halt
from mlango.core.provider import Completion
from mlango.core.values import clean

if TYPE_CHECKING:
    from mlango.core.provider import Message
    from mlango.core.run import Run

CUT = (
    Completion.MAX_TOKENS,
    Completion.PAUSE_TURN,
    Completion.REFUSAL,
    Completion.CONTENT_FILTER,
)


class AnswerTool(Control):
    """Makes the call that gives the final answer the text of the answer."""

    def __init__(self, output: OutputType) -> None:
        self.output = output

    async def after_model(self, run: Run, completion: Completion) -> Completion:
        calls = completion.tool_calls
        if completion.stop_reason in CUT or [call.name for call in calls] != [FINAL_ANSWER]:
            return completion
        return replace(
            completion,
            text=clean(self.output.unwrapped(calls[0].arguments)),
            tool_calls=[],
            stop_reason=Completion.END_TURN,
            raw_content=None,  # it holds the call, which has no result
        )


class Structured(Control):
    """Lets a run finish only with an answer that fits, and says nothing of any other."""

    def __init__(self, output: OutputType, retries: int) -> None:
        self.output = output
        self.retries = retries
        self.failures = 0
        self.value: Any = None
        self.problem = ""

    def holds(self, run: Run) -> bool:
        return True

    async def after_model(self, run: Run, completion: Completion) -> Completion:
        if not completion.tool_calls and completion.stop_reason not in CUT:
            await self._read(run, completion)
        return completion

    async def begin(self, run: Run) -> None:
        if run.reply is not None:  # which an earlier process had, and did not live to act on
            await self.after_model(run, run.reply)

    async def _read(self, run: Run, completion: Completion) -> None:
        self.value, self.problem = None, ""
        try:
            self.value = await called_in(run, self.output.read, completion.text)
        except Invalid as problem:
            self.problem = str(problem) or "It does not fit."
        run.is_muted = bool(self.problem)

    async def before_finish(self, run: Run) -> list[Message]:
        if not self.problem:
            self.failures, run.output = 0, self.value
            return []
        self.failures += 1
        if self.failures > self.retries:
            raise Halt("output_invalid", f"The answer does not fit. {self.problem}")
        told = (
            f"The answer does not fit:\n{self.problem}\n"
            f"Call {FINAL_ANSWER} with an answer that does."
        )
        return [{"role": "user", "content": told}]
