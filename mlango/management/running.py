"""A run in the terminal: printed while it goes on, stopped by Ctrl-C."""

from __future__ import annotations

from argparse import ArgumentParser
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

from mlango.agents.streams import RunStream
from mlango.core.run import AgentRun
from mlango.management.endings import INTERRUPTED, Left, exit_code
from mlango.management.interrupts import Interrupts
from mlango.management.printing import JsonPrinter, Printer, TextPrinter, awaited
from mlango.management.steering import Steering
from mlango.management.terminal import Screen
from mlango.management.waiting import Waiting


@dataclass(frozen=True, slots=True)
class Ended:
    """A run, and the exit code that tells how it ended."""

    run: AgentRun
    code: int


def add_printing(parser: ArgumentParser) -> None:
    """Add the options that say how a run is printed."""
    parser.add_argument("--show-steps", action="store_true", help="tell what the agent does")
    parser.add_argument("--json", action="store_true", help="print events, one JSON a line")


def follow(
    stream: RunStream,
    options: dict[str, Any],
    out: Screen,
    err: Screen,
    steering: Steering | None = None,
) -> Ended:
    """Print a run to its end. Raise Left if the user does not only stop it, but leaves.

    With ``steering`` what he types is told to the run.
    """
    printer = _printer(options, out, err)
    interrupts = Interrupts(stream, err)
    try:
        # If printing fails, the run is stopped and stored before the signals are let go.
        with interrupts, closing(stream), Waiting(out, err) as waiting, ExitStack() as stack:
            if steering is not None:
                stack.enter_context(steering.of(stream, waiting))
            for event in stream:
                with waiting.interrupted():
                    printer.show(event)
                    waiting.what = awaited(event) or waiting.what
    except KeyboardInterrupt:
        raise Left(INTERRUPTED) from None
    result, failure = stream.run, stream._run.exception
    printer.end(result, failure)
    if interrupts.has_to_leave:
        raise Left(interrupts.code)
    return Ended(result, interrupts.code or exit_code(result, failure))


def _printer(options: dict[str, Any], out: Screen, err: Screen) -> Printer:
    if options["json"]:
        return JsonPrinter(out)
    return TextPrinter(out, err, show_steps=options["show_steps"])
