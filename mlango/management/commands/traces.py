"""``manage.py traces``: what agents did."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from mlango.agents.traces import get_trace, recent_traces
from mlango.exceptions import TraceNotFound
from mlango.management.terminal import sanitize
from mlango.models import Trace


class Command(BaseCommand):
    """Lists traces, and shows one with its spans."""

    help = "List the newest traces, or show one."

    def add_arguments(self, parser: ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        listing = actions.add_parser("list", help="list the newest traces")
        listing.add_argument("--agent", help="only those of this agent")
        listing.add_argument("-n", "--limit", type=int, default=20, help="how many")
        showing = actions.add_parser("show", help="show one trace")
        showing.add_argument("ref", help="the first 8 or more characters of its id, or last")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["action"] == "list":
            for trace in recent_traces(options["limit"], agent=options["agent"]):
                self.stdout.write(headline(trace))
            return
        trace = self._find(options["ref"])
        self.stdout.write(headline(trace))
        self.stdout.write(sanitize(f"  in   {trace.input}"))
        for span in trace.spans.all():
            mark = "✗" if span.error else " "
            self.stdout.write(
                sanitize(
                    f"{mark} {span.ordering:>3} {span.kind:<6} {span.name}  "
                    f"{span.duration_s or 0:.2f}s {span.error}".rstrip()
                )
            )
        self.stdout.write(sanitize(f"  out  {trace.output or trace.error}"))

    def _find(self, ref: str) -> Trace:
        try:
            if ref == "last":
                return recent_traces(1)[0]
            return get_trace(ref)
        except (TraceNotFound, IndexError) as error:
            raise CommandError(str(error) or "There is no trace yet.") from error


def headline(trace: Trace) -> str:
    """Return one line about a trace, without its content."""
    tokens = trace.input_tokens + trace.output_tokens
    return (
        f"{str(trace.pk)[:8]}  {trace.started_at:%Y-%m-%d %H:%M:%S}  {trace.status:<9} "
        f"{trace.agent}  {trace.steps} steps  {tokens} tokens"
    )
