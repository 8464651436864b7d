"""``manage.py approvals``: what waits for a person, and deciding about it."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError
from django.db.models import QuerySet

from mlango.agents.traces import get_trace
from mlango.core.run import WAITING
from mlango.exceptions import TraceNotFound
from mlango.management.base import TerminalCommand, count, user_named
from mlango.management.decisions import (
    CUT_OFF,
    SIGNED_IN,
    asked,
    awaited_by,
    decide,
    described,
    find,
    headline,
    how_to_decide,
    lines_of,
    tell_what_waits,
    told,
)
from mlango.management.endings import APPROVAL, OK, Left
from mlango.management.resuming import agent_of, ready, resumed
from mlango.management.running import add_printing, follow
from mlango.management.terminal import RED
from mlango.models import Approval, Trace

REF = "the first 8 or more characters of its id"


class Command(TerminalCommand):
    """Lists approvals, shows and decides one, and goes on with the runs that waited."""

    help = "List what waits for a person, show or decide one, and go on with the run."

    def add_arguments(self, parser: ArgumentParser) -> None:
        actions = parser.add_subparsers(
            dest="action",
            required=True,
            metavar="|".join(
                ("list|show|approve|reject|edit|answer", SIGNED_IN, *CUT_OFF, "resume")
            ),
        )
        listing = actions.add_parser("list", help="list what can be decided, newest first")
        listing.add_argument("--all", action="store_true", help="also what is decided")
        listing.add_argument("--agent", metavar="LABEL", help="only those of this agent")
        listing.add_argument(
            "-n", "--limit", type=count, default=20, metavar="N", help="how many, 20 if not given"
        )
        listing.add_argument("--json", action="store_true", help="print one JSON a line")
        showing = actions.add_parser("show", help="show one")
        showing.add_argument("ref", metavar="REF", help=REF)
        showing.add_argument("--json", action="store_true", help="print JSON")
        self._add_decisions(actions)
        resuming = actions.add_parser("resume", help="go on with runs about which all is decided")
        resuming.add_argument("ref", metavar="REF", nargs="?", help="only this trace or approval")
        add_printing(resuming)

    def _add_decisions(self, actions: Any) -> None:
        approving = actions.add_parser("approve", help="let a call run")
        rejecting = actions.add_parser("reject", help="refuse a call, or to answer")
        editing = actions.add_parser("edit", help="let a call run with other arguments")
        answering = actions.add_parser("answer", help="answer a question")
        signing = actions.add_parser(SIGNED_IN, help="say that the run's user has signed in")
        cut_off = [
            actions.add_parser("happened", help="say that a call that was cut off had its effect"),
            actions.add_parser("did-not-happen", help="say that such a call had no effect"),
            actions.add_parser("run-again", help="have such a call made once more"),
        ]
        for parser in (approving, rejecting, editing, answering, signing, *cut_off):
            parser.add_argument("ref", metavar="REF", help=REF)
            parser.add_argument("--user", metavar="NAME", required=True, help="who decides")
            parser.add_argument(
                "--no-resume", action="store_true", help="do not go on with the run"
            )
            add_printing(parser)
        for parser in (approving, editing, signing, *cut_off):
            parser.add_argument("--note", metavar="TEXT", default="", help="kept with it")
        rejecting.add_argument(
            "--reason", metavar="TEXT", required=True, help="why not; the agent is told"
        )
        editing.add_argument(
            "changes", metavar="NAME=VALUE", nargs="+", help="a new value, in JSON"
        )
        answering.add_argument("text", metavar="TEXT", nargs="+", help="or an option's number")

    def perform(self, options: dict[str, Any]) -> int:
        try:
            if options["action"] == "list":
                return self._list(options)
            if options["action"] == "show":
                return self._show(find(options["ref"]), options)
            if options["action"] == "resume":
                return self._resume(options)
            return self._decide(find(options["ref"]), options)
        except Left as left:
            return left.code

    def _list(self, options: dict[str, Any]) -> int:
        approvals = _chosen(options)[: options["limit"]]
        for approval in approvals:
            if options["json"]:
                self.out.line(json.dumps(described(approval)))
            else:
                self.out.short_line(headline(approval))
        if not approvals:
            self.err.line("Nothing waits for a decision.")
        return OK

    def _show(self, approval: Approval, options: dict[str, Any]) -> int:
        if options["json"]:
            self.out.line(json.dumps(described(approval)))
            return OK
        for line in lines_of(approval):
            self.out.line(line)
        if Approval.objects.open().filter(pk=approval.pk).exists():
            for line in how_to_decide(approval):
                self.err.line(line)
        return OK

    def _decide(self, approval: Approval, options: dict[str, Any]) -> int:
        by = user_named(options["user"])
        root = _root_of(approval)
        if not options["no_resume"]:
            agent_of(root)  # nothing is decided if it is gone
        for line in asked(approval):
            self.err.line(line)
        decide(approval, options["action"], by, options)
        self.err.line(told(approval, options["action"], by))
        if root.status != WAITING:
            self.err.line(f"The run {root.uuid[:8]} is {root.status} and does not go on.")
            return OK
        return OK if options["no_resume"] else self._go_on(root, options)

    def _resume(self, options: dict[str, Any]) -> int:
        """Go on with the runs that can, and return the highest of their exit codes."""
        if options["ref"]:
            return self._go_on(_waiting_run(options["ref"]), options)
        codes = [self._go_on_with_one(trace, options) for trace in ready()]
        if not codes:
            self.err.line("No run is ready to go on.")
        return max(codes, default=OK)

    def _go_on_with_one(self, trace: Trace, options: dict[str, Any]) -> int:
        """Go on with one of several runs: what goes wrong with it is told, and no end."""
        self.err.line(f"{trace.agent} {trace.uuid[:8]}")
        try:
            return self._go_on(trace, options)
        except CommandError as error:
            self.err.line(str(error), RED)
            return error.returncode

    def _go_on(self, trace: Trace, options: dict[str, Any]) -> int:
        """Go on with a run, unless more has to be decided, and return its exit code."""
        if waits_for := list(Approval.objects.open_in(trace)):
            tell_what_waits(waits_for, self.err)
            return APPROVAL
        stream = resumed(agent_of(trace), trace)
        ended = follow(stream, options, self.out, self.err)
        if ended.run.status == WAITING and not options["json"]:
            tell_what_waits(awaited_by(ended.run), self.err)
        return ended.code


def _chosen(options: dict[str, Any]) -> QuerySet[Approval]:
    Approval.objects.expire()  # else they are said to be pending for ever
    approvals = Approval.objects.all() if options["all"] else Approval.objects.open()
    approvals = approvals.order_by("-created_at").prefetch_related("decided_by")
    return approvals.filter(agent=options["agent"]) if options["agent"] else approvals


def _root_of(approval: Approval) -> Trace:
    """Return the run that goes on once an approval is decided."""
    try:
        return approval.trace.root
    except Trace.DoesNotExist:
        raise CommandError(f"The run {approval.trace_id[:8]} is not recorded any more.") from None


def _waiting_run(ref: str) -> Trace:
    trace = _run_of(ref)
    if trace.status != WAITING:
        raise CommandError(f"The run {trace.uuid[:8]} is {trace.status} and does not wait.")
    return trace


def _run_of(ref: str) -> Trace:
    """Return the run that a trace's or an approval's id leads to."""
    try:
        return get_trace(ref).root
    except TraceNotFound as error:
        try:
            return _root_of(find(ref))
        except CommandError:
            raise CommandError(str(error)) from error
