"""Keeping the files that a run makes, for whoever started it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from mlango.core.controls import Control
from mlango.core.memory import owner_key
from mlango.core.values import clean

if TYPE_CHECKING:
    from mlango.core.calls import Job
    from mlango.core.run import Artifact, Run, ToolOutcome

logger = logging.getLogger("mlango.traces")


class Keeping(Control):
    """Keeps each file once the call that made it has ended. The run goes on if it cannot."""

    def __init__(self) -> None:
        self.kept: set[str] = set()

    async def after_call(self, run: Run, job: Job, outcome: ToolOutcome) -> ToolOutcome:
        await self.keep(run)
        return outcome

    async def end(self, run: Run) -> None:
        await self.keep(run)

    async def keep(self, run: Run) -> None:
        """Keep what is not kept yet; what a sub-agent made is kept by its own run."""
        if len(run.artifacts) == len(self.kept):
            return
        # Rows can be imported only once the apps are loaded.
        from mlango.runtime.database import ask

        for artifact in [each for each in run.artifacts if each.id not in self.kept]:
            self.kept.add(artifact.id)
            if artifact.run != run.uuid:
                continue
            try:
                await ask(_keep, run, artifact)
            except Exception:
                logger.exception("The file %s of run %s is not kept.", artifact.id, run.uuid)


def _keep(run: Run, artifact: Artifact) -> None:
    from mlango.models import Artifact as Row

    Row.objects.keep(
        artifact.data,
        uuid=artifact.id,
        trace_id=_root(run).uuid,
        owner_key=owner_key(run.user),
        name=clean(artifact.name)[:200],
        mime_type=clean(artifact.mime_type)[:100],
    )


def _root(run: Run) -> Run:
    """Return the run that this one works for in the end, which is its user's."""
    while run.lead is not None:
        run = run.lead
    return run
