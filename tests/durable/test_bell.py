"""What wakes workers on PostgreSQL."""

import threading

import pytest
from django.db import connection

from mlango.agents.queues import database
from mlango.models import DurableRun
from tests.durable.processes import until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="is about LISTEN"),
]
CUT = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND query LIKE 'LISTEN %%'
"""


@pytest.fixture
def heard(monkeypatch):
    """What a worker's bell sets, which listens meanwhile."""
    monkeypatch.setattr(database, "REST", 0)
    heard = threading.Event()
    bell = database.Bell("default", heard.set)
    bell.start()
    yield heard
    bell.stop()


def ring(heard):
    database.DatabaseQueue().ring(DurableRun(queue="default"))
    return heard.wait(0.1)


def test_a_worker_listens_again_when_its_connection_was_cut(heard):
    until(lambda: ring(heard))
    with connection.cursor() as cursor:
        cursor.execute(CUT)
        assert cursor.fetchall() == [(True,)]
    heard.clear()

    until(lambda: ring(heard))
