"""Durable runs by Celery: real workers, over Redis and RabbitMQ, killed as it comes."""

import os
import subprocess
import sys
from contextlib import contextmanager
from uuid import uuid4

import pytest
from celery import Celery, current_app
from django.db import connection

from mlango.agents.queues.celery import TASK
from mlango.models import Trace
from tests.services.agents import Porter
from tests.services.processes import kill, until

pytestmark = pytest.mark.django_db(transaction=True)

BROKERS = {
    "redis": os.environ.get("MLANGO_TEST_REDIS", "redis://127.0.0.1:6379/0"),
    "rabbitmq": os.environ.get("MLANGO_TEST_RABBITMQ", "amqp://guest:guest@127.0.0.1:5672//"),
}
NOBODY = "amqp://guest:guest@127.0.0.1:9//"  # the port where everything is discarded


class Site:
    """A project with Celery workers, and what they have carried."""

    def __init__(self, folder, broker):
        self.ledger = folder / "ledger"
        self.queue = f"mlango-test-{uuid4().hex[:12]}"
        self.broker = broker

    def carried(self, what):
        lines = self.ledger.read_text().splitlines() if self.ledger.exists() else []
        return [line.split()[-1] for line in lines if line.startswith(what)]

    def free_the_way(self):
        self.ledger.with_name("free").touch()

    @contextmanager
    def worker(self, broker=None):
        """Start a worker; its group is killed in the end."""
        command = [sys.executable, "-m", "celery", "-A", "tests.services.celeryapp", "worker"]
        # RabbitMQ ends the second of two workers with the same name.
        command += [f"--hostname={uuid4().hex}@%h"]
        command += ["--concurrency=1", "--loglevel=warning", "--without-gossip"]
        command += ["--without-mingle", "--without-heartbeat"]
        environment = os.environ | {
            "DJANGO_SETTINGS_MODULE": "tests.services.site",
            "SITE_DATABASE": str(connection.settings_dict["NAME"]),
            "SITE_BROKER": broker or self.broker,
            "SITE_QUEUE": self.queue,
            "SITE_LEDGER": str(self.ledger),
            "C_FORCE_ROOT": "1",
        }
        log = self.ledger.with_name(f"worker-{uuid4().hex[:4]}.log")
        with log.open("w") as output:
            process = subprocess.Popen(
                command, env=environment, stdout=output, stderr=output, start_new_session=True
            )
        try:
            yield process
        finally:
            kill(process)


def is_finished(trace):
    trace.refresh_from_db()
    return trace.status == "finished"


@pytest.fixture(params=BROKERS)
def site(request, tmp_path, settings):
    settings.MLANGO = {"QUEUE": "celery", "LEASE_SECONDS": 3}
    site = Site(tmp_path, BROKERS[request.param])
    before = current_app._get_current_object()
    app = Celery("site", broker=site.broker, set_as_current=True)
    app.conf.task_default_queue = site.queue
    yield site
    with app.connection() as broker:
        broker.default_channel.queue_delete(site.queue)
    app.close()
    before.set_current()


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
