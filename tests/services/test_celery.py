"""Durable runs by Celery: real workers, over Redis and RabbitMQ, killed as it comes."""

import pytest
from celery import Celery, current_app

from mlango.agents.queues.celery import TASK
from mlango.models import Trace
from tests.services.agents import Porter
from tests.services.processes import kill, until
from tests.services.workers import BROKERS, Site, is_finished

pytestmark = pytest.mark.django_db(transaction=True)

NOBODY = "amqp://guest:guest@127.0.0.1:9//"  # the port where everything is discarded


@pytest.fixture(params=BROKERS)
def site(request, tmp_path, settings):
    settings.MLANGO = {"QUEUE": "celery", "LEASE_SECONDS": 3}
    site = Site(tmp_path, BROKERS[request.param])
    with site.talking():
        yield site


def test_a_worker_does_what_was_asked_for_here(site):
    trace = Porter().enqueue("chair")

    with site.worker():
        until(lambda: is_finished(trace))

    assert trace.output == "carried the chair"


def test_a_message_that_comes_twice_does_nothing_more(site):
    trace = Porter().enqueue("chair")
    for _ in range(3):
        current_app.send_task(TASK, args=(trace.pk,), ignore_result=True)

    with site.worker():
        until(lambda: is_finished(trace))
        last = Porter().enqueue("table")  # done after the other messages, by one worker
        until(lambda: is_finished(last))

    assert len(site.carried("chair")) == 1


def test_another_worker_goes_on_when_one_is_killed(site):
    trace = Porter().enqueue("piano")
    with site.worker() as first:
        until(lambda: site.carried("piano"))
        kill(first)
    site.free_the_way()

    with site.worker():
        until(lambda: is_finished(trace))

    assert len(set(site.carried("piano"))) == 2
    assert [span.kind for span in trace.spans] == ["llm", "tool", "llm"]


def test_a_run_that_no_message_tells_of_is_found_all_the_same(site):
    away = Celery("away", broker=NOBODY, set_as_current=True)
    trace = Porter().enqueue("chair")
    away.close()
    assert Trace.objects.get(pk=trace.pk).status == "queued"

    with site.worker():
        until(lambda: is_finished(trace))

    assert len(site.carried("chair")) == 1
