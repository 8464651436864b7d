"""A backend of TASKS as others write them: it stores a task's path, and finds it by that."""

from django.utils.module_loading import import_string

from mlango.agents.queues.task import tasks

STORED = []


class Storing(tasks.backends.base.BaseTaskBackend):
    """Keeps messages until somebody works."""

    def enqueue(self, task, args, kwargs):
        self.validate_task(task)
        STORED.append((task.module_path, args, kwargs))


class Refusing(Storing):
    """Is away."""

    def enqueue(self, task, args, kwargs):
        raise ConnectionError("nobody is there")


def work():
    """Do what is stored, as a process does that knows nothing but the rows."""
    while STORED:
        path, args, kwargs = STORED.pop(0)
        task = import_string(path)
        assert hasattr(task, "enqueue"), f"{path} is no task."
        task.call(*args, **kwargs)
