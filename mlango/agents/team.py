"""The controls of runs in which several agents work."""

from __future__ import annotations

from collections.abc import Iterator

from mlango.core.controls import Control
from mlango.core.limits import CALLS, STEPS, Limiting
from mlango.core.run import Run


class Sharing(Control):
    """Keeps a sub-agent to what is left to the runs that it works for."""

    async def begin(self, run: Run) -> None:
        for limiting in limits_above(run):
            limiting.refuse_unpriced(run)

    async def before_model(self, run: Run) -> None:
        for limiting in limits_above(run):
            limiting.check(STEPS, CALLS)


def limits_above(run: Run) -> Iterator[Limiting]:
    """Yield what limits the runs that this one works for, the nearest first."""
    lead = run.lead
    while lead is not None:
        yield from (control for control in lead.controls.all if isinstance(control, Limiting))
        lead = lead.lead


class Succession(Control):
    """Lets the agent go on that the conversation was handed over to, at the next step."""

    async def before_model(self, run: Run) -> None:
        if run.successor is not None:
            await run.successor(run)
