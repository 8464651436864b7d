"""Queues: how a process learns that a run is due.

A queue is a doorbell. Its messages hold a run's key and nothing else, and none of them has to
arrive: the rows say what is due, and each run is claimed there. To add one, subclass Queue and
name it in ``MLANGO["QUEUE"]``.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from django.utils.module_loading import import_string

from mlango.agents.queues.base import Queue
from mlango.agents.queues.tasks import TasksQueue
from mlango.conf import settings
from mlango.exceptions import Misconfigured

if TYPE_CHECKING:
    from mlango.models import DurableRun

__all__ = ["Queue", "get_queue", "ring"]

logger = logging.getLogger("mlango.durable")

BUILT_IN = {
    "immediate": "mlango.agents.queues.immediate.ImmediateQueue",
    "celery": "mlango.agents.queues.celery.CeleryQueue",
    "worker": "mlango.agents.queues.database.DatabaseQueue",
}


def get_queue(name: str = "") -> Queue:
    """Return the queue of the setting, or of a name. Raises Misconfigured."""
    name = name or settings.QUEUE
    path = BUILT_IN.get(name, name)
    if "." in path:
        return _made(path)
    return TasksQueue(name)


def _made(path: str) -> Queue:
    try:
        kind = import_string(path)
    except ImportError as error:
        raise Misconfigured(f"MLANGO['QUEUE'] names {path!r}: {error}.") from error
    if not (isinstance(kind, type) and issubclass(kind, Queue)):
        raise Misconfigured(f"MLANGO['QUEUE'] names {path!r}, which is no subclass of Queue.")
    return kind()


def ring(run: DurableRun) -> None:
    """Tell that a run is due. It does not have to be heard, so no failure matters."""
    try:
        get_queue().ring(run)
    except Exception as error:  # noqa: BLE001 - whatever a broker raises, the run is due
        logger.warning(
            "Nobody could be told of the run %s: %s. It is found by the next worker that looks.",
            run.pk,
            type(error).__name__,
        )
