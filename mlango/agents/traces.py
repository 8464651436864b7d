"""Finding the traces of runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async

from mlango.exceptions import TraceNotFound
from mlango.models import Trace
from mlango.models.naming import one_named

if TYPE_CHECKING:
    from django.db.models import QuerySet


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
    try:
        return one_named(Trace.objects.all(), uuid, lambda trace: trace.agent)
    except LookupError as error:
        raise TraceNotFound(str(error)) from None


aget_trace = sync_to_async(get_trace)


def find_trace(uuid: str) -> Trace | None:
    """Return the trace of a run; None when it was not traced."""
    return Trace.objects.filter(uuid=uuid).first()
