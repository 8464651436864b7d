"""The Celery app of a site whose workers are killed where a test orders it."""

from celery.signals import task_postrun, task_prerun, worker_process_init

from tests.services.celeryapp import app  # noqa: F401 - it is what Celery looks for

_begun = {}


@worker_process_init.connect
def watch(**kwargs):
    # Not in the process that forks: a lock that another thread holds then is never free.
    from tests.durable import crashing, points  # noqa: F401 - agents are found by their labels

    points.watch_the_database()


@task_prerun.connect
def begin(args, **kwargs):
    """Count the kill points of a run, and meet the one that is ordered."""
    from mlango.models import DurableRun
    from tests.durable import points
    from tests.services.orders import Orders

    claims = DurableRun.objects.get(pk=args[0]).token
    point, with_group = Orders().take(args[0], claims)
    _begun[args[0]] = claims
    points.meet(point, with_group=with_group)


@task_postrun.connect
def end(args, **kwargs):
    from tests.durable import points
    from tests.services.orders import Orders

    Orders().note(args[0], _begun.pop(args[0]), points.count())
    points.meet(0)
