"""A process whose children do runs, and meet a signal at the kill point that they are told.

Each line that it reads is an order, which it answers with how the child ended. A fork costs a
hundredth of a new interpreter.
"""

import json
import os
import signal
import subprocess
import sys
import traceback
from functools import cached_property, partial

from django.db import connection

PASSED = 3  # how a child ends whose run was cancelled on its way


class Mortals:
    """The process, as a test uses it."""

    def __init__(self, **variables):
        self.ledger = ""
        self._variables = variables

    @cached_property
    def process(self):
        environment = os.environ | {
            "DJANGO_SETTINGS_MODULE": "tests.durable.site",
            "SITE_DATABASE": str(connection.settings_dict["NAME"]),
            **self._variables,
        }
        return subprocess.Popen(
            [sys.executable, "-m", "tests.durable.mortals"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def do(self, uuid, fatal=0, number=signal.SIGKILL):
        """Have a child do what is due of a run; return whether it came to its end."""
        ended = self._order("do", str(self.ledger), uuid, fatal, number)
        assert ended in (0, -number), f"The child ended with {ended}."
        return ended == 0

    def call(self, path, *arguments):
        """Have a child call a function."""
        ended = self._order("call", str(self.ledger), path, *arguments)
        assert ended == 0, f"The child ended with {ended}."

    def cancel(self, uuid, point):
        """Have a child do what is due of a run, which somebody cancels when it is at a point.

        Return whether it came to its end before.
        """
        ended = self._order("do", str(self.ledger), uuid, point, signal.SIGKILL, True)
        assert ended in (0, PASSED), f"The child ended with {ended}."
        return ended == 0

    def wake(self):
        """Have the child that stopped go on; return when it has ended."""
        assert self._order("wake") == 0

    def _order(self, *order):
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        if "process" in vars(self):
            self.process.stdin.close()
            self.process.wait()
            self.process.stdout.close()


def main():
    import django

    django.setup()
    from tests.durable import crashing, points  # noqa: F401 - agents are found by their labels

    points.watch_the_database()
    child = 0
    for line in sys.stdin:
        order, *given = json.loads(line)
        if order in ORDERS:
            child = os.fork()
            if child == 0:
                obey(ORDERS[order], *given)
        else:
            os.kill(child, signal.SIGCONT)
        _, status = os.waitpid(child, os.WUNTRACED)
        is_stopped = os.WIFSTOPPED(status)
        ended = -os.WSTOPSIG(status) if is_stopped else os.waitstatus_to_exitcode(status)
        sys.stdout.write(f"{ended}\n")
        sys.stdout.flush()


def cancel(uuid):
    """Cancel a run, as another process does."""
    from mlango.models import Trace

    try:
        Trace.objects.get(pk=uuid).cancel()
    finally:
        connection.close()


def obey(function, ledger, *arguments):
    """Call a function, and end this process without any ado, with what that returns."""
    os.environ["SITE_LEDGER"] = ledger
    try:
        ended = function(*arguments)
    except BaseException:  # noqa: BLE001 - the test that waits is told by the exit code
        traceback.print_exc()
        os._exit(1)
    os._exit(ended or 0)


def do(uuid, fatal, number, is_cancel=False):
    """Do what is due of a run."""
    from mlango.agents.execution import execute_now
    from mlango.models import Trace
    from mlango.runtime import leases
    from tests.durable import points

    leases.LOOK = 0.01  # so that a cancel is heard within the run
    points.meet(fatal, number, partial(cancel, uuid) if is_cancel else None)
    run = execute_now(uuid)
    if run is not None and run.status not in ("queued", "lost"):
        rows = Trace.objects.get(pk=uuid).messages
        assert run.messages == rows, f"{run.messages} is not the fold of the rows: {rows}"
    return PASSED if is_cancel and points.is_passed() else 0


def call(path, *arguments):
    """Call a function of these tests."""
    from django.utils.module_loading import import_string

    import_string(path)(*arguments)


ORDERS = {"do": do, "call": call}


if __name__ == "__main__":
    main()
