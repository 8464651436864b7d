"""A run is parked while somebody decides what it waits for."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection, connections, transaction

from mlango.models import DurableRun, Trace
from tests.durable.agents import Clerk, plan
from tests.durable.processes import until

pytestmark = pytest.mark.django_db(transaction=True)

BLOCKED = "SELECT 1 FROM pg_locks WHERE NOT granted AND pid <> pg_backend_pid()"


def wake(uuid):
    try:
        return DurableRun.objects.wake(uuid)
    finally:
        connections.close_all()


def is_anybody_blocked():
    with connection.cursor() as cursor:
        cursor.execute(BLOCKED)
        return cursor.fetchone() is not None


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time")
def test_a_run_is_woken_that_is_being_parked():
    claimed = DurableRun.objects.claim(Clerk().enqueue(plan("Hi.")).pk, "w1", 30)

    with ThreadPoolExecutor() as threads:
        with transaction.atomic():
            Trace.objects.filter(pk=claimed.pk).update(status="waiting")
            DurableRun.objects.park(claimed.pk, claimed.token)
            woken = threads.submit(wake, claimed.pk)
            until(lambda: woken.done() or is_anybody_blocked())

        assert woken.result()
