"""Events as they were, from what they have told of themselves."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime
from decimal import Decimal
from typing import Any

from mlango.core import events
from mlango.core.events import Event, Failed, Finished
from mlango.core.run import AgentRun, ToolOutcome
from mlango.core.usage import Usage
from mlango.core.values import dumps

KINDS: dict[str, type[Event]] = {
    each.kind: each
    for each in vars(events).values()
    if isinstance(each, type) and issubclass(each, Event) and each.kind
}


def event_of(document: dict[str, Any], result: AgentRun | None = None) -> Event:
    """Return the event that ``describe()`` has told; ``result`` is that of a last event."""
    kind = KINDS[document["kind"]]
    at = datetime.fromisoformat(document["at"]).timestamp()
    head = (document["seq"], document["run"], document["step"], at, document.get("parent"))
    if kind is Finished:
        return Finished(*head, result or run_of(document))
    if kind is Failed:
        said = document["error"], document["exception_type"]
        return Failed(*head, *said, result or run_of(document))
    own = [field.name for field in fields(kind)[len(head) :]]
    return kind(*head, **{name: document[name] for name in own if name in document})


def run_of(document: dict[str, Any]) -> AgentRun:
    """Return what a last event still tells of its run: no messages, and no files."""
    output, cost, used = document["output"], document["cost"], document["usage"]
    return AgentRun(
        agent=document["agent"],
        output=output,
        text=output if isinstance(output, str) else dumps(output),
        status=document["status"],
        stop_reason=document["stop_reason"],
        error=document["error"],
        steps=document["steps"],
        usage=Usage(**{field.name: used[field.name] for field in fields(Usage)}),
        cost=None if cost is None else Decimal(cost),
        elapsed=document["elapsed"],
        tool_results=[ToolOutcome(**each) for each in document["tool_results"]],
        messages=[],
        artifacts=[],
        trace_uuid=document["trace"],
        session_id=document["session_id"],
        approvals=document["approvals"],
    )
