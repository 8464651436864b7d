"""The queue without another process: whoever enqueues a run waits for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlango.agents.execution import execute_now
from mlango.agents.queues.base import Queue

if TYPE_CHECKING:
    from mlango.models import DurableRun


class ImmediateQueue(Queue):
    """Runs what is due at once. What is due later is left to a worker."""

    patience = 0.0

    def ring(self, run: DurableRun) -> None:
        execute_now(run.pk)
