"""Finding the traces of runs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async

from mlango.exceptions import TraceNotFound
from mlango.models import Trace

if TYPE_CHECKING:
    from django.db.models import QuerySet

MIN_PREFIX = 8
MAX_CANDIDATES = 10
_PREFIX = re.compile(rf"[0-9a-f]{{{MIN_PREFIX},32}}")


def recent_traces(limit: int = 20, agent: Any = None) -> QuerySet[Trace]:
    """Return the newest traces, newest first; with ``agent`` (a label or class) only its own.

    The query runs when they are read, with ``for`` or ``async for``.
    """
    traces = Trace.objects.order_by("-started_at")
    if agent is not None:
        traces = traces.filter(agent=agent if isinstance(agent, str) else agent._meta.label)
    return traces[:limit]


def get_trace(uuid: str) -> Trace:
    """Return the trace with this uuid, or the one whose uuid begins so.

    Raise TraceNotFound if there is none, or more than one.
    """
    prefix = str(uuid).strip().replace("-", "").lower()
    if not _PREFIX.fullmatch(prefix):
        raise TraceNotFound(
            f"{uuid!r} is not the id of a trace. Give at least the first {MIN_PREFIX} of its "
            f"32 characters, which are 0-9 and a-f."
        )
    found = list(Trace.objects.filter(uuid__startswith=prefix)[: MAX_CANDIDATES + 1])
    if not found:
        raise TraceNotFound(f"No trace has an id that begins with {prefix!r}.")
    if len(found) > 1:
        raise TraceNotFound(_ambiguous(prefix, found))
    return found[0]


aget_trace = sync_to_async(get_trace)


def _ambiguous(prefix: str, found: list[Trace]) -> str:
    names = [f"{trace.uuid} ({trace.agent})" for trace in found[:MAX_CANDIDATES]]
    more = " and more" if len(found) > MAX_CANDIDATES else ""
    return f"Several traces begin with {prefix!r}: {', '.join(names)}{more}."


def find_trace(uuid: str) -> Trace | None:
    """Return the trace of a run; None when it was not traced."""
    return Trace.objects.filter(uuid=uuid).first()
