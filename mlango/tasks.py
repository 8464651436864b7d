"""What Celery's workers do; found by ``app.autodiscover_tasks()``."""

from __future__ import annotations

from typing import Any

from celery import shared_task
from celery.signals import worker_ready, worker_shutting_down

from mlango.agents.execution import execute_now
from mlango.agents.queues.celery import TASK
from mlango.agents.rounds import Rounds


# Acknowledged before it begins: whoever dies in it, the lease brings the run back, sooner
# than a broker would, and a broker that delivers twice finds the run taken.
@shared_task(name=TASK, ignore_result=True, acks_late=False)  # type: ignore[untyped-decorator]
def execute_run(uuid: str) -> None:
    """Do a run that is due, if nobody else does."""
    execute_now(uuid)


@worker_ready.connect(dispatch_uid="mlango.rounds")  # type: ignore[untyped-decorator]
def begin_rounds(**kwargs: Any) -> None:
    """Look after what no message comes for, as long as this worker lives."""
    global _rounds
    _rounds = Rounds()
    _rounds.start()


@worker_shutting_down.connect(dispatch_uid="mlango.rounds")  # type: ignore[untyped-decorator]
def end_rounds(**kwargs: Any) -> None:
    """End the rounds with the worker."""
    if _rounds is not None:
        _rounds.stop()


_rounds: Rounds | None = None
