"""Approvals across processes: each command here is one of its own."""

import os
import pty
import subprocess
import sys

import pytest
from django.contrib.auth import get_user_model
from django.db import connection

from mlango.models import Approval, Trace
from tests.commands.test_chat import rest_of

User = get_user_model()

pytestmark = pytest.mark.django_db(transaction=True)

PROGRAM = """
import django, os, sys
from django.conf import settings
settings.DATABASES["default"]["NAME"] = os.environ["APPROVALS_DATABASE"]
django.setup()
import tests.commands.desk
from django.core.management import execute_from_command_line as run
run(["manage.py", *sys.argv[1:]])
"""


def environment(**variables):
    """Return the environment of a process that has the tests' database."""
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "APPROVALS_DATABASE": str(connection.settings_dict["NAME"]),
        **variables,
    }


def manage(*arguments):
    """Return the stdout, the stderr and the exit code of a command without a terminal."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )
    return done.stdout, done.stderr, done.returncode


def test_one_process_asks_another_decides_and_a_third_goes_on():
    User.objects.create_user("ann")

    out, err, code = manage("agent", "commands.Desk", 'refund {"order": 7}', "--user", "ann")
    ref = Approval.objects.get().pk[:8]
    assert (out, code) == ("", 3)
    assert f"manage.py approvals approve {ref} --user NAME" in err

    _, err, code = manage("approvals", "approve", ref, "--user", "ann", "--no-resume")
    assert (code, Approval.objects.get().status) == (0, "approved"), err
    assert Trace.objects.get().status == "waiting"

    out, err, code = manage("approvals", "resume")
    assert (out, code) == ("Done: refunded 7\n", 0), err
    trace = Trace.objects.get()
    assert (trace.status, trace.span_count) == ("finished", trace.spans.count())
    assert Approval.objects.get().status == "used"


def test_keys_typed_before_a_call_is_shown_decide_nothing():
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "agent", "commands.Desk"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(TERM="dumb"),
    ):
        os.close(theirs)
        shown = read_until(ours, "you> ")
        os.write(ours, b'refund {"order": 7}\ny\ny\n')
        shown += read_until(ours, "waiting > ")
        os.write(ours, b"q\n")
        shown += read_until(ours, "you> ")
        os.write(ours, b"/quit\n")
        shown += rest_of(ours).decode()
    os.close(ours)

    assert "It is left waiting." in shown
    assert Approval.objects.get().status == "pending"


def read_until(terminal, text):
    """Return what a terminal shows until it shows a text."""
    shown = ""
    while text not in shown:
        shown += os.read(terminal, 1024).decode()
    return shown
