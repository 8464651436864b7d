"""What may watch over a run: limits, guardrails, rules, approvals, compaction, hooks.

A control sits at the seams of the loop, which knows nothing of any one of them. It ends a
run with ``Halt``, refuses a call with ``ToolError``, and parks a call with ``Parked``.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from mlango.core.calls import Job
    from mlango.core.provider import Completion, Message
    from mlango.core.run import Run, ToolOutcome
    from mlango.exceptions import ProviderError, SignInRequired

SEAMS = (
    "hear",
    "begin",
    "before_model",
    "holds",
    "mend",
    "after_model",
    "before_call",
    "no_tool",
    "sign_in",
    "after_call",
    "before_finish",
    "end",
)


class Halt(Exception):
    """Ends the run for ``reason``, with ``text`` as its error.

    It ends as ``stopped``; with an ``error``, as ``failed`` by that.
    """

    status = ""  # how the run ends instead

    def __init__(self, reason: str, text: str, *, error: Exception | None = None) -> None:
        super().__init__(text)
        self.reason = reason
        self.error = error


class Leave(Halt):
    """Ends the run in this process only.

    With the status ``queued`` another process goes on with it; with ``lost`` one does so
    already, and nothing more may be written.
    """

    def __init__(self, status: str, text: str) -> None:
        super().__init__("released", text)
        self.status = status


class Parked(Exception):
    """Leaves a tool call open. The run waits once the other calls of the turn are done."""


class Control:
    """Watches over one run. Override what is needed; the rest costs nothing."""

    seams: ClassVar[tuple[str, ...]] = ()  # those at which it does something

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.seams = tuple(s for s in SEAMS if getattr(cls, s) is not getattr(Control, s))

    async def hear(self, run: Run, said: list[Message]) -> list[Message]:
        """Return what someone said as it may be read and stored.

        Called for what a run begins with, before its trace is opened, and for each message
        on the way.
        """
        return said

    async def begin(self, run: Run) -> None:
        """Look at a run that begins: its history and what was said are there."""

    async def before_model(self, run: Run) -> None:
        """Look at a run that is about to ask the model; ``run.view`` is what it will read."""

    def holds(self, run: Run) -> bool:
        """Return whether what the model says must be held back for now."""
        return False

    async def mend(self, run: Run, error: ProviderError) -> bool:
        """Return whether the model may be asked at once again after ``error``.

        Called for a call that failed before anything was released, and only where the
        control has changed what the model reads is the answer yes.
        """
        return False

    async def after_model(self, run: Run, completion: Completion) -> Completion:
        """Return the answer as it may be used. What was held back is released after this."""
        return completion

    async def before_call(self, run: Run, job: Job, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments to call the tool with."""
        return arguments

    async def no_tool(self, run: Run, job: Job) -> None:
        """Look at a call of a tool that the agent does not have, before the model is told."""

    async def sign_in(self, run: Run, job: Job, wanted: SignInRequired) -> None:
        """Park a call whose user must sign in first; the model is told if nobody does."""

    async def after_call(self, run: Run, job: Job, outcome: ToolOutcome) -> ToolOutcome:
        """Return what the call came to."""
        return outcome

    async def before_finish(self, run: Run) -> list[Message]:
        """Return what to tell the model, if the run may not end with its answer."""
        return []

    async def end(self, run: Run) -> None:
        """Give back what is held. Called once, however the run ended."""


Seam = tuple[Callable[..., Coroutine[Any, Any, Any]], ...]


class Controls:
    """The controls of a run by seam: at each, those that do something there, in order."""

    __slots__ = ("all", *SEAMS)

    all: tuple[Control, ...]
    hear: Seam
    begin: Seam
    before_model: Seam
    holds: tuple[Callable[[Run], bool], ...]
    mend: Seam
    after_model: Seam
    before_call: Seam
    no_tool: Seam
    sign_in: Seam
    after_call: Seam
    before_finish: Seam
    end: Seam

    def __init__(self, controls: Iterable[Control] = ()) -> None:
        for seam in SEAMS:
            setattr(self, seam, ())
        self.all = tuple(each for each in controls if each.seams)
        for each in self.all:
            for seam in each.seams:
                setattr(self, seam, (*getattr(self, seam), getattr(each, seam)))


NO_CONTROLS = Controls()
