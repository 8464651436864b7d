"""How a run ended, told from its row where its log does not tell it."""

from __future__ import annotations

from django.utils import timezone

from mlango.core.events import Event, Failed, Finished
from mlango.core.log import ENDING, Cursor, Told
from mlango.core.run import FAILED, AgentRun
from mlango.core.values import encode
from mlango.models import Trace


def ending_of(trace: Trace, cursor: Cursor) -> Told:
    """Return the last event of a run whose log ends at ``cursor``; asks the database."""
    event = _event_of(trace, run_of(trace), cursor.seq + 1)
    return Told(cursor._replace(part=ENDING), event.kind, encode(event.describe()))


def run_of(trace: Trace) -> AgentRun:
    """Return what the rows still tell of a run; a lost one has failed."""
    is_lost = trace.status == Trace.Status.LOST
    spans = trace.spans.filter(kind="tool")
    return AgentRun(
        agent=trace.agent,
        output=trace.output,
        text=trace.output,
        status=FAILED if is_lost else trace.status,
        stop_reason="error" if is_lost else trace.stop_reason,
        error=trace.error,
        steps=trace.steps,
        usage=trace.usage,
        cost=trace.cost,
        elapsed=trace.duration_s or 0.0,
        tool_results=[span.outcome for span in spans],
        messages=[],
        artifacts=[],
        trace_uuid=trace.uuid,
        session_id=trace.session_key,
    )


def _event_of(trace: Trace, run: AgentRun, seq: int) -> Event:
    at = (trace.ended_at or timezone.now()).timestamp()
    head = (seq, trace.uuid, trace.steps, at, trace.parent_id)
    if run.status != FAILED:
        return Finished(*head, run)
    name = "ProcessLost" if trace.status == Trace.Status.LOST else "RunError"
    return Failed(*head, run.error, name, run)
