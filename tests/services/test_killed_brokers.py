"""Brokers that are killed, and come back with nothing, while Celery's workers do durable runs."""

import os

import pytest

from mlango.models import Trace
from tests.services.agents import Porter
from tests.services.brokers import RabbitMQ, Redis
from tests.services.processes import until
from tests.services.workers import Site, is_finished

pytestmark = pytest.mark.django_db(transaction=True)

# A node of RabbitMQ takes ten seconds to start.
IS_WHOLE = os.environ.get("MLANGO_TEST_KILL_EVERY") == "1"
BROKERS = [Redis, RabbitMQ] if IS_WHOLE else [Redis]


@pytest.fixture(params=BROKERS)
def broker(request, tmp_path):
    broker = request.param(tmp_path)
    broker.start()
    yield broker
    broker.kill()


@pytest.fixture
def site(broker, tmp_path, settings):
    settings.MLANGO = {"QUEUE": "celery", "LEASE_SECONDS": 3}
    site = Site(tmp_path, broker.url)
    with site.talking():
        yield site


def test_no_run_is_lost_or_done_twice(site, broker):
    with site.worker():
        piano = Porter().enqueue("piano")
        until(lambda: site.carried("piano"))
        waiting = [Porter().enqueue("chair") for _ in range(5)]

        broker.kill()
        untold = Porter().enqueue("stool")
        assert Trace.objects.get(pk=untold.pk).status == "queued"
        broker.start()
        told = Porter().enqueue("table")
        site.free_the_way()

        until(lambda: all(is_finished(each) for each in (piano, untold, told, *waiting)))

    carried = {what: len(site.carried(what)) for what in ("piano", "chair", "stool", "table")}
    assert carried == {"piano": 1, "chair": 5, "stool": 1, "table": 1}


@pytest.mark.skipif(not IS_WHOLE, reason="takes longer than the default suite may")
def test_a_worker_is_killed_with_its_broker(site, broker):
    with site.worker():
        piano = Porter().enqueue("piano")
        until(lambda: site.carried("piano"))
        broker.kill()
    broker.start()
    site.free_the_way()

    with site.worker():
        until(lambda: is_finished(piano))

    assert len(set(site.carried("piano"))) == 2
    assert [span.kind for span in piano.spans] == ["llm", "tool", "llm"]
