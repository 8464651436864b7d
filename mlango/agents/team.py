"""The controls of runs in which several agents work."""

from __future__ import annotations

from mlango.core.controls import Control
from mlango.core.limits import Limiting
from mlango.core.run import Run


class Sharing(Control):
    """Keeps a sub-agent to what is left to the runs that it works for."""

    async def before_model(self, run: Run) -> None:
        lead = run.lead
        while lead is not None:
            for control in lead.controls.all:
                if isinstance(control, Limiting):
                    control.check_usage()
            lead = lead.lead


class Succession(Control):
    """Lets the agent go on that the conversation was handed over to, at the next step."""

    async def before_model(self, run: Run) -> None:
        if run.successor is not None:
            await run.successor(run)
