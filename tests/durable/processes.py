"""Workers in processes of their own, on the database of the tests."""

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from datetime import timedelta

from django.db import connection

from mlango.clock import Now
from mlango.models import DurableRun

PATIENCE = 60  # seconds until a process that does not do its work is given up

PROGRAM = """
import django, os, sys
from django.conf import settings
settings.DATABASES["default"]["NAME"] = os.environ["SITE_DATABASE"]
django.setup()
import tests.durable.agents
from django.core.management import execute_from_command_line as run
run(["manage.py", "agentworker", *sys.argv[1:]])
"""


@contextmanager
def worker(*arguments, **variables):
    """Start a worker; it is killed in the end."""
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "SITE_DATABASE": str(connection.settings_dict["NAME"]),
        **variables,
    }
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments], env=environment, stderr=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def until(condition):
    """Wait for another process."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "The other process did not do its work."
        time.sleep(0.02)


def let_lapse(uuid):
    """Have the lease of a run be over, as if its process had said nothing for long."""
    DurableRun.objects.filter(pk=uuid).update(due_at=Now() - timedelta(seconds=1))
