"""The runs that somebody who asks may know of: his own, and no others."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mlango.core.memory import owner_key
from mlango.models import Trace
from mlango.models.trace import TraceQuerySet
from mlango.serve.problems import Problem

if TYPE_CHECKING:
    from mlango.core.run import Run
    from mlango.serve.base import Visit

ID = re.compile("[0-9a-f]{32}")


def own_traces(visit: Visit) -> TraceQuerySet:
    """Return the runs of who asks; at the endpoint of an agent, of that agent only."""
    rows = Trace.objects.for_user(visit.user)
    return rows if visit.agent is None else rows.filter(agent=visit.agent._meta.label)


def uuid_of(visit: Visit) -> str:
    """Return what the URL says after ``runs/``, which may be anything."""
    match = visit.request.resolver_match
    return str(match.kwargs.get("trace", "")) if match else ""


def is_own(visit: Visit, run: Run) -> bool:
    """Return whether a run of this process is among ``own_traces``, with or without its row."""
    is_agents = visit.agent is None or run.label == visit.agent._meta.label
    owner = owner_key(visit.user)
    return is_agents and bool(owner) and owner == owner_key(run.user)


def own_trace(visit: Visit, uuid: str | None = None) -> Trace:
    """Return a run, by default the one that the URL names; a Problem if it is not one's own.

    One of others is as one of nobody.
    """
    uuid = uuid_of(visit) if uuid is None else uuid
    row = own_traces(visit).filter(pk=uuid).first() if ID.fullmatch(uuid) else None
    if row is None:
        raise Problem(404, "There is no such run.")
    return row
