"""The task that the backends of TASKS are given, which they find again by its path."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from mlango.agents.execution import execute_now
from mlango.conf import settings
from mlango.exceptions import Misconfigured
from mlango.models.durable import DEFAULT_QUEUE


def tasks_module() -> Any:
    """Return Django's tasks, or the package that brings them to older versions."""
    for name in ("django.tasks", "django_tasks"):
        if find_spec(name) is not None:
            return import_module(name)
    raise Misconfigured("A backend of TASKS needs Django 6.0, or the package django-tasks.")


tasks = tasks_module()


def place_in(alias: str, queue: str = DEFAULT_QUEUE) -> dict[str, str]:
    """Return where a backend takes a task: in the queue of this name, if it has that."""
    names = tasks.task_backends[alias].queues or {queue}
    name = min(names, key=lambda each: (each != queue, each != DEFAULT_QUEUE, each))
    return {"backend": alias, "queue_name": name}


def _known_backend() -> str:
    """Return the backend of the setting; a process that only does tasks may have another."""
    known: list[str] = list(tasks.task_backends)
    wanted: str = settings.QUEUE
    return wanted if wanted in known else known[0]


@tasks.task(**place_in(_known_backend()))  # type: ignore[untyped-decorator]
def execute_run(uuid: str) -> None:
    """Do a run that is due, if nobody else does."""
    execute_now(uuid)
