"""Going on with a run where its trace ends: after an approval, a limit, an abort or a failure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlango.agents.handoffs import go_on_as_last
from mlango.agents.resolve import run_for
from mlango.core.memory import owner_key
from mlango.core.run import CANCELLED, FAILED, STOPPED, WAITING, Run, ToolOutcome
from mlango.exceptions import Misused, TraceNotFound
from mlango.runtime.sync import Call

if TYPE_CHECKING:
    from mlango.agents.agent import Agent
    from mlango.core.provider import Message
    from mlango.models import Span, Trace

RESUMABLE = (WAITING, STOPPED, CANCELLED, FAILED)
# What belongs to the run as it was begun, and so cannot be given again.
FIXED = ("session_id", "history", "images", "files", "memory", "metadata")


@dataclass(frozen=True, slots=True)
class Recorded:
    """What the rows say of a run, all of it fetched."""

    trace: Trace
    user: Any
    history: list[Message]
    turn: list[Message]
    spans: list[Span]


def recorded(agent: Agent, trace: Any, options: dict[str, Any]) -> Recorded:
    """Return what there is to go on with; asks the database.

    ``trace`` is the row, its uuid, or the AgentRun. Raises TraceNotFound if there is none of
    this agent and user, and Misused if it cannot go on.
    """
    from mlango.models import Trace

    for name in FIXED:
        if name in options:
            raise Misused(f"resume() has no option {name!r}: it is as the run was begun.")
    uuid = getattr(trace, "uuid", None) or getattr(trace, "trace_uuid", None) or str(trace)
    label = agent._meta.label
    found = Trace.objects.prefetch_related("spans").filter(pk=uuid, agent=label).first()
    user = options.get("user")
    if found is None or (user is not None and owner_key(user) != found.owner_key):
        raise TraceNotFound(f"{label} has no trace {uuid!r}.")
    if not found.opening_json:
        raise Misused(f"The run {uuid[:8]} was recorded without its content and cannot go on.")
    if found.status not in RESUMABLE:
        raise _not_resumable(uuid, found.status)
    user = user or _user_of(found)
    return Recorded(found, user, found.history, found.turn, list(found.spans.all()))


def take(run: Run) -> None:
    """Take the trace of a run that is to go on, so that nobody else goes on with it."""
    from mlango.models import Trace

    rows = Trace.objects.filter(pk=run.uuid, status__in=RESUMABLE)
    if not rows.update(status=Trace.Status.RUNNING, ended_at=None):
        status = Trace.objects.values_list("status", flat=True).get(pk=run.uuid)
        raise _not_resumable(run.uuid, status)


def _not_resumable(uuid: str, status: str) -> Misused:
    wanted = ", ".join(RESUMABLE)
    return Misused(f"The run {uuid[:8]} is {status}. Only one that is {wanted} can go on.")


def resumed(agent: Agent, trace: Any, options: dict[str, Any], call: Call) -> Run:
    """Return the Run that goes on with ``trace``, for a caller who waits for it."""
    run = _run(agent, recorded(agent, trace, options), options, call)
    take(run)
    return run


async def aresumed(
    agent: Agent, trace: Any, options: dict[str, Any], lead: Run | None = None
) -> Run:
    """Return the Run that goes on with ``trace``; ``lead`` is the run that it works for."""
    # Rows can be imported only once the apps are loaded.
    from mlango.runtime.database import ask

    run = _run(agent, await ask(recorded, agent, trace, options), options, lead=lead)
    await ask(take, run)
    return run


def _run(
    agent: Agent,
    found: Recorded,
    options: dict[str, Any],
    call: Call | None = None,
    lead: Run | None = None,
) -> Run:
    """Return a Run in the state that the fold of the trace's rows gives."""
    trace = found.trace
    begun = {
        "user": found.user,
        "session_id": trace.session_key,
        "metadata": trace.metadata,
    }
    run = run_for(agent, trace.opening["said"], options | begun, call, lead, is_resumed=True)
    run.uuid = trace.uuid
    run.parent = trace.parent_id
    run.history = found.history
    run.messages = [*found.history, *found.turn]
    run.step = trace.steps
    run.text = trace.output
    run.usage = trace.usage
    run.cost = trace.cost
    run.ordering = max((span.ordering for span in found.spans), default=0)
    run.tool_results = [_outcome(each) for each in found.spans if each.kind == each.Kind.TOOL]
    run.journal.go_on(trace.span_count, trace.error_count)
    go_on_as_last(run, found.spans)
    return run


def _user_of(trace: Trace) -> Any:
    if trace.user is None and trace.owner_key:
        raise Misused(
            f"The run {trace.uuid[:8]} belongs to {trace.owner_key!r}, who is not in the "
            f"database any more. Pass user=."
        )
    return trace.user


def _outcome(span: Any) -> ToolOutcome:
    return ToolOutcome(
        span.tool_call_id,
        span.name,
        span.output,
        bool(span.error_type),
        span.error_type,
        span.duration_s,
        span.attributes.get("details"),
    )
