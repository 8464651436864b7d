"""``manage.py agentworker``: do the durable runs that are due."""

from __future__ import annotations

import asyncio
from argparse import ArgumentParser, ArgumentTypeError
from typing import Any

from mlango.agents.worker import GRACE, Worker
from mlango.management.base import TerminalCommand, count
from mlango.management.printing import counted
from mlango.models.durable import DEFAULT_QUEUE
from mlango.runtime.writer import writer


class Command(TerminalCommand):
    """Works until SIGTERM or Ctrl-C, and then leaves what is not done to others."""

    help = "Do the durable runs that are due, and go on with those that a process has left."

    def add_arguments(self, parser: ArgumentParser) -> None:
        add = parser.add_argument
        add("--concurrency", type=count, default=10, help="how many runs to do at a time (10)")
        add("--queue", default=DEFAULT_QUEUE, help=f"which runs to do ({DEFAULT_QUEUE})")
        add("--once", action="store_true", help="end as soon as nothing is due any more")
        add(
            "--grace",
            type=_seconds,
            default=GRACE,
            help=f"how many seconds a step may take to end when the worker is told to ({GRACE:g})",
        )

    def perform(self, options: dict[str, Any]) -> int:
        worker = Worker(options["queue"], options["concurrency"], options["grace"])
        self.err.line(f"Doing runs of the queue {options['queue']!r}.")
        asyncio.run(worker.work(until_idle=options["once"]))
        writer.close()
        self.err.line(f"Done with {counted(worker.done, 'run')}.")
        return 0


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value < float("inf"):
        raise ArgumentTypeError(f"must be a number of seconds, not {text!r}")
    return value
