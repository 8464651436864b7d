"""Where a run of the terminal begins: in a session, or where another run was."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from mlango.agents.agent import Agent
from mlango.agents.fork import forked
from mlango.agents.traces import get_trace
from mlango.core.memory import owner_key
from mlango.exceptions import MlangoError, TraceNotFound
from mlango.management.endings import USAGE
from mlango.models import Session, Trace

BAD = (Trace.Status.FAILED, Trace.Status.LOST)
REF = "the first 8 or more characters of its id, last or last-failed"


def add_beginnings(parser: ArgumentParser) -> None:
    """Add the options that say where a run begins, of which one may be given."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--session", metavar="ID", help="go on with this session")
    where.add_argument(
        "--continue", action="store_true", dest="last_session", help="go on with the last session"
    )
    where.add_argument(
        "--resume", metavar="RUN", help=f"go on with a run that has not finished: {REF}"
    )
    where.add_argument(
        "--fork", metavar="RUN[:STEP]", help="do a run anew from a step on, else from its last"
    )


def last_session(agent: Agent, user: Any) -> str:
    """Return the id of the session that a user, or nobody, had with an agent last."""
    label, owner = agent._meta.label, owner_key(user)
    rows = Session.objects.filter(agent=label, owner_key=owner).order_by("-updated_at")
    key = rows.values_list("key", flat=True).first()
    if key is None:
        whose = str(user) if user else "nobody; name the user by --user"
        raise CommandError(f"{label} has no session of {whose}.", returncode=USAGE)
    return key


def trace_named(ref: str) -> Trace:
    """Return the trace that is meant by REF. Raise CommandError if there is none."""
    if ref in ("last", "last-failed"):
        traces = Trace.objects.order_by("-started_at")
        trace = (traces if ref == "last" else traces.filter(status__in=BAD)).first()
        if trace is None:
            raise CommandError(
                "There is no trace yet. Run an agent first."
                if ref == "last"
                else "No run has failed."
            )
        return trace
    try:
        return get_trace(ref)
    except TraceNotFound as error:
        raise CommandError(str(error)) from error


def fork_point(written: str) -> tuple[Trace, int | None]:
    """Return the run that ``RUN[:STEP]`` names, and the step, None for its last."""
    ref, has_step, step = written.partition(":")
    if has_step and not step.isdecimal():
        raise CommandError(
            f"--fork {written!r} is not RUN:STEP, such as last:2.", returncode=USAGE
        )
    return trace_named(ref), int(step) if has_step else None


def fork(agent: Agent, written: str, options: dict[str, Any]) -> Trace:
    """Return a new trace that is as a run was before a step."""
    trace, step = fork_point(written)
    try:
        return forked(agent, trace, max(1, trace.steps) if step is None else step, options)
    except MlangoError as error:
        raise CommandError(str(error), returncode=USAGE) from error
