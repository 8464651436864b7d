"""``manage.py traces``: what agents did."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError
from django.db.models import QuerySet

from mlango.agents.traces import get_trace
from mlango.exceptions import TraceNotFound
from mlango.management.base import TerminalCommand, count
from mlango.management.endings import OK
from mlango.management.terminal import RED
from mlango.management.trees import BAD, headline, lines_of
from mlango.models import Span, Trace


class Command(TerminalCommand):
    """Lists traces, and shows one with its spans."""

    help = "List the newest traces, or show one."

    def add_arguments(self, parser: ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True, metavar="list|show")
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
        showing.add_argument("ref", help="the first 8 or more characters of its id, or last")
        showing.add_argument("--full", action="store_true", help="cut nothing")
        showing.add_argument("--json", action="store_true", help="print JSON")

    def perform(self, options: dict[str, Any]) -> int:
        if options["action"] == "list":
            self._list(options)
        else:
            self._show(_found(options["ref"]), options)
        return OK

    def _list(self, options: dict[str, Any]) -> None:
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
        write = self.out.line if options["full"] else self.out.short_line
        for line in lines_of(trace, full=options["full"]):
            write(line, RED if line.lstrip("│├└─ ").startswith("✗") else "")


def _color(trace: Trace) -> str:
    return RED if trace.status in BAD else ""


def _chosen(options: dict[str, Any]) -> QuerySet[Trace]:
    traces = Trace.objects.order_by("-started_at")
    if options["agent"]:
        traces = traces.filter(agent=options["agent"])
    if options["status"]:
        traces = traces.filter(status=options["status"])
    return traces.filter(status__in=BAD) if options["failed"] else traces


def _found(ref: str) -> Trace:
    if ref == "last":
        trace = Trace.objects.order_by("-started_at").first()
        if trace is None:
            raise CommandError("There is no trace yet. Run an agent first.")
        return trace
    try:
        return get_trace(ref)
    except TraceNotFound as error:
        raise CommandError(str(error)) from error


def described(trace: Trace) -> dict[str, Any]:
    """Return a trace with its content and spans, JSON-safe."""
    return trace.describe() | {
        "input": trace.input,
        "output": trace.output,
        "error": trace.error,
        "spans": [_span(span) for span in trace.spans.all()],
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
        "cost": None if span.cost is None else str(span.cost),
        "started_at": span.started_at.isoformat(),
        "duration_s": span.duration_s,
    }
