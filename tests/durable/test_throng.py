"""Many processes do durable runs on one SQLite file."""

import os
import subprocess
import sys

import pytest
from django.db import connection

from mlango.models import Trace
from tests.durable.checker import violations

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "sqlite", reason="is about SQLite's locks"),
]

PROCESSES, USERS = 4, 50


def throng(ledger):
    """Start a process of a site with many users."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.durable.throng", str(USERS)],
        env=os.environ
        | {
            "DJANGO_SETTINGS_MODULE": "tests.durable.site",
            "SITE_DATABASE": str(connection.settings_dict["NAME"]),
            "SITE_LEDGER": str(ledger.path),
        },
        stdout=subprocess.PIPE,
        text=True,
    )


def test_nobody_is_told_of_a_lock(ledger):
    sites = [throng(ledger) for _ in range(PROCESSES)]
    told = [site.communicate()[0] for site in sites]

    assert told == [""] * PROCESSES
    assert [site.returncode for site in sites] == [0] * PROCESSES
    traces = list(Trace.objects.all())
    assert {trace.status for trace in traces} == {"finished"}
    effects = ledger.read()
    assert [each for trace in traces for each in violations(trace, effects)] == []
