"""Celery workers of a site, in processes that can be killed."""

import os
import subprocess
import sys
from contextlib import contextmanager
from uuid import uuid4

from celery import Celery, current_app
from django.db import connection

from tests.services.processes import kill

BROKERS = {
    "redis": os.environ.get("MLANGO_TEST_REDIS", "redis://127.0.0.1:6379/0"),
    "rabbitmq": os.environ.get("MLANGO_TEST_RABBITMQ", "amqp://guest:guest@127.0.0.1:5672//"),
}


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
    def talking(self):
        """Have this process speak to the site's broker, and leave no queue there."""
        before = current_app._get_current_object()
        app = Celery("site", broker=self.broker, set_as_current=True)
        app.conf.task_default_queue = self.queue
        try:
            yield
            with app.connection() as broker:
                broker.default_channel.queue_delete(self.queue)
        finally:
            app.close()
            before.set_current()

    @contextmanager
    def worker(self, app="tests.services.celeryapp"):
        """Start a worker; its group is killed in the end."""
        command = [sys.executable, "-m", "celery", "-A", app, "worker"]
        # RabbitMQ ends the second of two workers with the same name.
        command += [f"--hostname={uuid4().hex}@%h"]
        command += ["--concurrency=1", "--loglevel=warning", "--without-gossip"]
        command += ["--without-mingle", "--without-heartbeat"]
        environment = os.environ | {
            "DJANGO_SETTINGS_MODULE": "tests.services.site",
            "SITE_DATABASE": str(connection.settings_dict["NAME"]),
            "SITE_BROKER": self.broker,
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
