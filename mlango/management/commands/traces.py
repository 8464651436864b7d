"""``manage.py traces``: what agents did."""

from __future__ import annotations

import json
import os
import time
from argparse import SUPPRESS, ArgumentParser
from collections.abc import Iterator
from typing import Any

from django.core.management.base import CommandError
from django.db.models import QuerySet

from mlango.core.numbers import plain
from mlango.exceptions import MlangoError
from mlango.management import removing
from mlango.management.base import TerminalCommand, count
from mlango.management.beginnings import BAD, REF, trace_named
from mlango.management.endings import OK
from mlango.management.printing import counted
from mlango.management.terminal import RED, columns
from mlango.management.trees import Bars, headline, lines_of, span_line
from mlango.models import Approval, Span, Trace

PERIOD = 0.5  # seconds between two looks at a run that goes on


class Command(TerminalCommand):
    """Lists traces, shows, follows and exports one, and deletes what may go."""

    help = "List the newest traces; show, follow or export one; delete old ones."

    def add_arguments(self, parser: ArgumentParser) -> None:
        actions = parser.add_subparsers(
            dest="action", required=True, metavar="list|show|tail|export|prune|erase"
        )
        listing = actions.add_parser("list", help="list the newest traces, newest first")
        listing.add_argument("--agent", metavar="LABEL", help="only those of this agent")
        which = listing.add_mutually_exclusive_group()
        which.add_argument("--status", choices=Trace.Status.values, help="only those that are so")
        which.add_argument("--failed", action="store_true", help="only those failed or lost")
        listing.add_argument(
            "-n", "--limit", type=count, default=20, metavar="N", help="how many, 20 if not given"
        )
        listing.add_argument("--json", action="store_true", help="print one JSON a line")
        showing = actions.add_parser("show", help="show one trace")
        showing.add_argument("ref", metavar="REF", help=REF)
        showing.add_argument("--full", action="store_true", help="cut nothing; so does -v 2")
        # Django's own -v stands before the action only.
        showing.add_argument(
            "-v", "--verbosity", type=int, choices=range(4), default=SUPPRESS, help=SUPPRESS
        )
        showing.add_argument("--json", action="store_true", help="print JSON")
        tailing = actions.add_parser("tail", help="show what a run does until it ends")
        tailing.add_argument("ref", metavar="REF", nargs="?", default="last", help=REF)
        exporting = actions.add_parser("export", help="write one trace to a file")
        exporting.add_argument("ref", metavar="REF", help=REF)
        exporting.add_argument(
            "--cassette", metavar="FILE", required=True, help="a cassette to be replayed"
        )
        removing.add_arguments(actions)

    def perform(self, options: dict[str, Any]) -> int:
        match options["action"]:
            case "list":
                self._list(options)
            case "show":
                Trace.objects.mark_lost()
                self._show(trace_named(options["ref"]), options)
            case "tail":
                Trace.objects.mark_lost()  # else it is waited for without an end
                self._tail(trace_named(options["ref"]))
            case "export":
                self._export(trace_named(options["ref"]), options["cassette"])
            case "prune":
                removing.prune(self.err, options)
            case "erase":
                removing.erase_user(self.err, options)
        return OK

    def _list(self, options: dict[str, Any]) -> None:
        Trace.objects.mark_lost()  # else they are said to be running for ever
        traces = _chosen(options)[: options["limit"]]
        for trace in traces:
            if options["json"]:
                self.out.line(json.dumps(trace.describe()))
            else:
                self.out.short_line(headline(trace), _color(trace))
        if not traces:
            self.err.line("There is no such trace.")

    def _show(self, trace: Trace, options: dict[str, Any]) -> None:
        if options["json"]:
            self.out.line(json.dumps(described(trace)))
            return
        full = options["full"] or options["verbosity"] > 1
        write = self.out.line if full else self.out.short_line
        bars = Bars.of(trace, columns()) if self.out.is_terminal and not full else None
        for line in lines_of(trace, full=full, bars=bars):
            write(line, RED if line.lstrip("│├└─ ").startswith("✗") else "")

    def _tail(self, trace: Trace) -> None:
        self.out.short_line(headline(trace))
        for span in followed(trace):
            self.out.short_line(span_line(span), RED if span.error else "")
        self.out.short_line(headline(trace), _color(trace))

    def _export(self, trace: Trace, path: str) -> None:
        if os.path.exists(path):
            raise CommandError(f"The file {path!r} is already there. Delete it, or name another.")
        if not trace.opening_json:
            raise CommandError(
                f"The trace {trace.uuid[:8]} holds no content. Set Meta.capture_content = True."
            )
        from mlango.management.exports import write_cassette  # other actions need no provider

        try:
            calls = write_cassette(trace, path)
        except MlangoError as error:
            raise CommandError(str(error)) from error
        if not calls:
            raise CommandError(f"The trace {trace.uuid[:8]} has no model call to export.")
        self.err.line(f"{counted(calls, 'model call')} written to {path}.")


def followed(trace: Trace) -> Iterator[Span]:
    """Yield the spans of a run as they are stored, until it has ended."""
    last = 0
    while True:
        # The status is read first: all spans of a run that has ended are there.
        trace.refresh_from_db()
        for span in trace.spans.filter(pk__gt=last).order_by("pk"):
            last = span.pk
            yield span
        if trace.status != Trace.Status.RUNNING:
            return
        time.sleep(PERIOD)


def _color(trace: Trace) -> str:
    return RED if trace.status in BAD else ""


def _chosen(options: dict[str, Any]) -> QuerySet[Trace]:
    traces = Trace.objects.order_by("-started_at")
    if options["agent"]:
        traces = traces.filter(agent=options["agent"])
    if options["status"]:
        traces = traces.filter(status=options["status"])
    return traces.filter(status__in=BAD) if options["failed"] else traces


def described(trace: Trace) -> dict[str, Any]:
    """Return a trace with its content and spans, JSON-safe."""
    return trace.describe() | {
        "input": trace.input,
        "output": trace.output,
        "error": trace.error,
        "spans": [_span(span) for span in trace.spans.all()],
        "approvals": [row.describe() for row in Approval.objects.open_in(trace)],
    }


def _span(span: Span) -> dict[str, Any]:
    usage = span.usage
    return {
        "ordering": span.ordering,
        "parent": span.parent_ordering,
        "step": span.step,
        "kind": span.kind,
        "name": span.name,
        "input": span.input,
        "output": span.output,
        "error": span.error,
        "usage": None if usage is None else usage.describe(),
        "cost": None if span.cost is None else plain(span.cost),
        "started_at": span.started_at.isoformat(),
        "duration_s": span.duration_s,
    }
