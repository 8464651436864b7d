"""The queue of Celery's workers, over Redis or RabbitMQ."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery import current_app

from mlango.agents.queues.base import Queue
from mlango.models.durable import DEFAULT_QUEUE

if TYPE_CHECKING:
    from mlango.models import DurableRun

TASK = "mlango.execute_run"


class CeleryQueue(Queue):
    """Sends the run's key to the project's Celery app, whose workers load ``mlango.tasks``.

    Runs of the default queue go to Celery's default queue, others to the queue of their name.
    """

    def ring(self, run: DurableRun) -> None:
        # One attempt: whoever enqueues should not wait for a broker that is away.
        current_app.send_task(
            TASK,
            args=(run.pk,),
            queue=None if run.queue == DEFAULT_QUEUE else run.queue,
            ignore_result=True,
            retry=False,
        )
