"""The base of all queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from mlango.models import DurableRun


class Queue:
    """Override ``ring``: have some process call ``execute_now(run.pk)``, or claim it."""

    # How many seconds somebody has to begin a run, before who waits for its events does it.
    patience: ClassVar[float] = 2.0

    def ring(self, run: DurableRun) -> None:
        """Tell that a run is due. May raise; may be called twice for one run."""
        raise NotImplementedError
