"""The queue that is a backend of Django's tasks, or of the package that brings them to 5.2."""

from __future__ import annotations

from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from django.conf import settings as django_settings

from mlango.agents.execution import execute_now
from mlango.agents.queues.base import Queue
from mlango.exceptions import Misconfigured

if TYPE_CHECKING:
    from mlango.models import DurableRun


class TasksQueue(Queue):
    """Has a backend of the setting TASKS run what is due."""

    def __init__(self, alias: str) -> None:
        known = getattr(django_settings, "TASKS", {})
        if alias not in known:
            raise Misconfigured(
                f"MLANGO['QUEUE'] is {alias!r}. It must be 'immediate', 'worker', 'celery', the "
                f"path of a Queue, or an alias of TASKS, which has: {', '.join(known) or 'none'}."
            )
        self.alias = alias
        self._tasks = tasks_module()

    def ring(self, run: DurableRun) -> None:
        self._task.enqueue(run.pk)

    @cached_property
    def _task(self) -> Any:
        return self._tasks.task(backend=self.alias)(execute_run)


def tasks_module() -> Any:
    """Return Django's tasks, or the package that brings them to older versions."""
    for name in ("django.tasks", "django_tasks"):
        if find_spec(name) is not None:
            return import_module(name)
    raise Misconfigured("A backend of TASKS needs Django 6.0, or the package django-tasks.")


def execute_run(uuid: str) -> None:
    """Run what is due, if nobody else does."""
    execute_now(uuid)
