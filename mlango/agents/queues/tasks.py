"""The queue that is a backend of Django's tasks, or of the package that brings them to 5.2."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.conf import settings as django_settings
from django.utils import timezone

from mlango.agents.queues.base import Queue
from mlango.exceptions import Misconfigured

if TYPE_CHECKING:
    from mlango.models import DurableRun


class TasksQueue(Queue):
    """Has a backend of the setting TASKS run what is due.

    It is told of the run's queue, priority and time as far as it knows of such.
    """

    def __init__(self, alias: str) -> None:
        known = getattr(django_settings, "TASKS", {})
        if alias not in known:
            raise Misconfigured(
                f"MLANGO['QUEUE'] is {alias!r}. It must be 'immediate', 'worker', 'celery', the "
                f"path of a Queue, or an alias of TASKS, which has: {', '.join(known) or 'none'}."
            )
        from mlango.agents.queues import task  # needs a package on Django 5.2

        self.alias = alias
        self._module = task

    def ring(self, run: DurableRun) -> None:
        backend = self._module.tasks.task_backends[self.alias]
        options: dict[str, Any] = self._module.place_in(self.alias, run.queue)
        if backend.supports_priority:
            options["priority"] = run.priority
        if backend.supports_defer and run.due_at is not None and run.due_at > timezone.now():
            options["run_after"] = run.due_at
        self._module.execute_run.using(**options).enqueue(run.pk)
