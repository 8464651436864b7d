"""Runs that a backend of Django's TASKS is told of."""

from datetime import timedelta

import pytest
from django.utils import timezone

from mlango.agents.execution import execute_now
from mlango.agents.queues import get_queue
from mlango.agents.queues.task import tasks
from mlango.models import DurableRun
from tests.durable.agents import Clerk, plan
from tests.durable.backends import STORED, Storing, work

pytestmark = pytest.mark.django_db(transaction=True)

SHIPPED = f"{tasks.__name__}.backends"
IMMEDIATE, DUMMY = f"{SHIPPED}.immediate.ImmediateBackend", f"{SHIPPED}.dummy.DummyBackend"


@pytest.fixture
def backend(settings):
    """Have runs handed to a backend."""

    def use(path, **params):
        settings.TASKS = {"runs": {"BACKEND": path, **params}}
        settings.MLANGO = {"QUEUE": "runs"}
        forget()
        return tasks.task_backends["runs"]

    yield use
    STORED.clear()
    forget()


def forget():
    """Have TASKS be read again."""
    for name in ("settings", "_settings"):
        vars(tasks.task_backends).pop(name, None)
    tasks.task_backends._settings = None
    for alias in ("default", "runs"):
        if hasattr(tasks.task_backends._connections, alias):
            del tasks.task_backends[alias]


def status(trace):
    trace.refresh_from_db()
    return trace.status


def test_django_does_a_run_at_once(backend):
    backend(IMMEDIATE)

    assert status(Clerk().enqueue(plan("Hello."))) == "finished"


def test_a_backend_is_given_the_key_of_a_run_and_nothing_else(backend):
    dummy = backend(DUMMY)

    trace = Clerk().enqueue(plan("Hello."))

    [result] = dummy.results
    assert (list(result.args), result.kwargs) == ([trace.pk], {})
    assert status(trace) == "queued"


def test_another_process_finds_the_task_by_its_path(backend):
    backend("tests.durable.backends.Storing")
    trace = Clerk().enqueue(plan([["put", {"what": "a"}]], "Put."))
    assert status(trace) == "queued"

    work()

    assert status(trace) == "finished"


def test_a_message_may_come_twice_and_late(backend):
    backend("tests.durable.backends.Storing")
    trace = Clerk().enqueue(plan("Hello."))
    get_queue().ring(DurableRun.objects.get(pk=trace.pk))
    execute_now(trace.pk)

    work()

    assert status(trace) == "finished"


def test_a_backend_is_told_how_urgent_a_run_is_and_when_it_is_due(backend):
    dummy = backend(DUMMY, QUEUES=["default", "slow"])
    later = timezone.now() + timedelta(hours=1)

    Clerk().enqueue(plan("Hello."), queue="slow", priority=7, run_after=later)
    Clerk().enqueue(plan("Hello."))

    told = [
        (each.task.queue_name, each.task.priority, each.task.run_after) for each in dummy.results
    ]
    assert told == [("slow", 7, later), ("default", 0, None)]


def test_a_backend_is_not_told_what_it_does_not_know(backend):
    backend("tests.durable.backends.Storing")

    Clerk().enqueue(plan("Hello."), priority=7, run_after=timezone.now() + timedelta(hours=1))

    assert not Storing.supports_priority
    assert not Storing.supports_defer
    assert len(STORED) == 1


@pytest.mark.parametrize(("queues", "queue"), [(["other", "more"], "more"), ([], "slow")])
def test_a_backend_without_the_queue_has_the_run_in_another(backend, queues, queue):
    dummy = backend(DUMMY, QUEUES=queues)

    Clerk().enqueue(plan("Hello."), queue="slow")

    assert [each.task.queue_name for each in dummy.results] == [queue]


def test_a_task_that_a_backend_does_not_take_leaves_the_run_to_a_worker(backend, caplog):
    backend("tests.durable.backends.Refusing")

    trace = Clerk().enqueue(plan("Hello."))

    assert status(trace) == "queued"
    assert "Nobody could be told of the run" in caplog.text
