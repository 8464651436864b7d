"""Going on with a run where its trace ends: after an approval, a limit, an abort or a failure."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from django.db import transaction
from django.utils import timezone

from mlango.agents.arguments import check_options
from mlango.agents.handoffs import go_on_as_last
from mlango.agents.requests import renewed, restored
from mlango.agents.resolve import run_for
from mlango.agents.surroundings import surround
from mlango.conf import settings
from mlango.core.events import StepFinished
from mlango.core.memory import is_remembered, owner_key
from mlango.core.messages import open_calls, text_of
from mlango.core.provider import Completion
from mlango.core.run import CANCELLED, FAILED, QUEUED, RUNNING, STOPPED, WAITING, Run
from mlango.core.usage import NO_USAGE, Usage
from mlango.core.values import dumps
from mlango.exceptions import Misused, NotResumable, TraceNotFound, WrongStatus
from mlango.runtime.sync import Call
from mlango.runtime.tokens import program_with

if TYPE_CHECKING:
    from mlango.agents.agent import Agent
    from mlango.core.provider import Message
    from mlango.models import Attempt, DurableRun, Span, Trace
    from mlango.models.event import LastTold

RESUMABLE = (WAITING, STOPPED, CANCELLED, FAILED)
# What a crash leaves of a sub-agent's durable run, whose lead goes on.
LEFT_OPEN = (QUEUED, RUNNING)
# What belongs to the run as it was begun, and so cannot be given again.
FIXED = ("session_id", "history", "images", "files", "memory", "metadata", "idempotency_key")


@dataclass(frozen=True, slots=True)
class Recorded:
    """What the rows say of a run, all of it fetched."""

    trace: Trace
    user: Any
    history: list[Message]
    turn: list[Message]
    spans: list[Span]
    durable: DurableRun | None
    attempts: list[Attempt]
    used: tuple[Usage, Decimal | None]
    last_told: LastTold | None


def recorded(
    agent: Agent, trace: Any, options: dict[str, Any], also: tuple[str, ...] = ()
) -> Recorded:
    """Return what there is to go on with; asks the database.

    ``trace`` is the row, its uuid, or the AgentRun; ``also`` are statuses that will do too.
    Raises TraceNotFound if there is none of this agent and user, WrongStatus if it cannot go
    on now, and NotResumable if it never can.
    """
    from mlango.models import Trace

    for name in FIXED:
        if name in options:
            raise Misused(f"resume() has no option {name!r}: it is as the run was begun.")
    check_options(type(agent).__name__, options)
    uuid = getattr(trace, "uuid", None) or getattr(trace, "trace_uuid", None) or str(trace)
    label = agent._meta.label
    found = Trace.objects.prefetch_related("spans").filter(pk=uuid, agent=label).first()
    user = options.get("user")
    if found is None or (user is not None and owner_key(user) != found.owner_key):
        raise TraceNotFound(f"{label} has no trace {uuid!r}.")
    if not found.opening_json:
        raise NotResumable(
            f"The run {uuid[:8]} was recorded without its content and cannot go on."
        )
    if found.status not in (*RESUMABLE, *also):
        raise _wrong_status(uuid, found.status)
    return recorded_of(found, user or user_of(found))


def recorded_of(trace: Trace, user: Any) -> Recorded:
    """Return all that the rows say of a run; asks the database."""
    from mlango.models import Event

    return Recorded(
        trace,
        user,
        trace.history,
        trace.turn,
        list(trace.spans.all()),
        getattr(trace, "durable", None),
        list(trace.attempts.all()),
        trace.used,
        Event.objects.using(trace._state.db).last_told(trace.uuid, _lead_of(trace)),
    )


def _lead_of(trace: Trace) -> str:
    """Return the uuid of the run that keeps the log: this one, or the one it works for."""
    while trace.parent is not None:
        trace = trace.parent
    return trace.uuid


def take(run: Run) -> None:
    """Take the trace of a run that is to go on, so that nobody else goes on with it."""
    from mlango.models import DurableRun, Trace
    from mlango.runtime.leases import worker_name

    also = LEFT_OPEN if run.lead is not None and run.is_durable else ()
    with transaction.atomic(using=Trace.objects.db):
        rows = Trace.objects.filter(pk=run.uuid, status__in=(*RESUMABLE, *also))
        running = {"status": Trace.Status.RUNNING, "resumed_at": timezone.now()}
        if not rows.update(ended_at=None, **running):
            status = Trace.objects.values_list("status", flat=True).get(pk=run.uuid)
            raise _wrong_status(run.uuid, status)
        if run.is_durable and run.lead is None:
            seconds = settings.LEASE_SECONDS
            taken = DurableRun.objects.take(run.uuid, worker_name(), seconds)
            if taken is None:
                raise _wrong_status(run.uuid, Trace.Status.QUEUED)
            # Whoever goes on after this process is to have the same options.
            request = renewed(taken.request, run.options)
            DurableRun.objects.filter(pk=run.uuid).update(request_json=dumps(request))
            run.journal.hold(taken)  # type: ignore[attr-defined]  # as it is durable


def _wrong_status(uuid: str, status: str) -> WrongStatus:
    wanted = ", ".join(RESUMABLE)
    return WrongStatus(f"The run {uuid[:8]} is {status}. Only one that is {wanted} can go on.")


def resumed(agent: Agent, trace: Any, options: dict[str, Any], call: Call) -> Run:
    """Return the Run that goes on with ``trace``, for a caller who waits for it."""
    run = run_from(agent, recorded(agent, trace, options), options, call)
    take(run)
    return run


async def aresumed(
    agent: Agent, trace: Any, options: dict[str, Any], lead: Run | None = None
) -> Run:
    """Return the Run that goes on with ``trace``; ``lead`` is the run that it works for."""
    # Rows can be imported only once the apps are loaded.
    from mlango.runtime.database import ask, write

    also = LEFT_OPEN if lead is not None and lead.is_durable else ()
    run = run_from(agent, await ask(recorded, agent, trace, options, also), options, lead=lead)
    if lead is not None:
        await write(lead, take, run)
    else:
        await ask(take, run)
    return run


def run_from(
    agent: Agent,
    found: Recorded,
    options: dict[str, Any],
    call: Call | None = None,
    lead: Run | None = None,
) -> Run:
    """Return a Run in the state that the fold of the trace's rows gives."""
    trace, spans = found.trace, found.spans
    begun = {
        "user": found.user,
        "session_id": trace.session_key,
        "metadata": trace.metadata,
    }
    said, journal = trace.opening["said"], _journal_of(agent, found, lead)
    given = _as_begun(found) | options | begun
    run = run_for(agent, said, given, call, lead, is_resumed=True, journal=journal)
    run.uuid = trace.uuid
    if lead is None:
        run.surroundings = trace.opening.get("surroundings")
        surround(run)
    run.parent = trace.parent_id
    run.history = found.history
    run.messages = [*found.history, *found.turn]
    run.step = max([trace.steps, *(span.step for span in spans)])
    run.text = trace.output
    run.usage, run.cost = found.used if run.is_durable else (trace.usage, trace.cost)
    run.orderings = _orderings(spans)
    run.ordering = max([span.ordering for span in spans] + [*run.orderings.values()], default=0)
    run.tool_results = [each.outcome for each in spans if each.kind == each.Kind.TOOL]
    asked = max((span.ordering for span in spans if _is_answer(span)), default=None)
    run.journal.go_on(len(spans), sum(bool(span.error_type) for span in spans), asked)
    if found.last_told is not None:
        run.seq = found.last_told.seq + 1
        if lead is None:  # else its events go into the log of that
            run.journal.keep_log(run)
    if trace.stop_reason != "forked" and is_remembered(trace.status, trace.stop_reason):
        run.remembered = len(found.turn)
    if run.is_durable and trace.status in LEFT_OPEN and spans:
        _go_on_behind(run, spans[-1], found.last_told)
        _take_up(run, spans)
    run.was_stopped_speaking = run.reply is None and _ends_with_words(
        found.turn[len(said) :], spans
    )
    go_on_as_last(run, spans)
    return run


def _as_begun(found: Recorded) -> dict[str, Any]:
    """Return the options that a run was begun with, as far as they are stored."""
    if found.durable is None:
        return {"buffered": True} if found.trace.opening.get("buffered") else {}
    options = restored(found.durable.request["options"])
    return {name: value for name, value in options.items() if name not in FIXED}


def _go_on_behind(run: Run, last: Span, told: LastTold | None) -> None:
    """Note what a process did not come to that ended right behind this span."""
    if last.kind == last.Kind.TOOL:
        is_told = told is None or told.kind == StepFinished.kind
        run.owes_step = not run.orderings and not is_told


def _take_up(run: Run, spans: list[Span]) -> None:
    """Give the run the answer that its last process had of the model, if it is to be acted on.

    So the model is not asked twice for one answer, and a call that was cut is not made.
    """
    said = [span for span in spans if span.kind == span.Kind.AGENT or _is_answer(span)]
    if not said or not _is_answer(said[-1]):
        return
    *before, last = said
    calls = open_calls(run.messages)
    is_settled = bool(last.output.get("tool_calls")) and not calls
    if is_settled or last.attributes["stop_reason"] == Completion.PAUSE_TURN:
        return
    run.reply = Completion(
        text=text_of(last.output["content"]),
        tool_calls=calls,
        stop_reason=last.attributes["stop_reason"],
        usage=last.usage or NO_USAGE,
    )
    run.cuts = sum(1 for _ in takewhile(_is_cut, reversed(before)))


def _ends_with_words(added: list[Message], spans: list[Span]) -> bool:
    """Return whether the model spoke last, and has not paused in the middle of its turn."""
    if not added or added[-1]["role"] != "assistant" or added[-1].get("tool_calls"):
        return False
    answers = [span for span in spans if _is_answer(span)]
    return not answers or answers[-1].attributes["stop_reason"] != Completion.PAUSE_TURN


def _is_answer(span: Span) -> bool:
    return span.kind == span.Kind.LLM and "stop_reason" in span.attributes


def _is_cut(span: Span) -> bool:
    return bool(span.attributes.get("stop_reason") == Completion.MAX_TOKENS)


def _journal_of(agent: Agent, found: Recorded, lead: Run | None) -> Any:
    """Return the journal of a durable run; None for that of any other."""
    from mlango.runtime.durable import DurableJournal

    if lead is not None and isinstance(lead.journal, DurableJournal):
        journal = DurableJournal(lead=lead.journal)
    elif lead is None and found.durable is not None:
        journal = DurableJournal()
    else:
        return None
    journal.fingerprint, journal.declared = found.trace.fingerprint, agent._meta.fingerprint()
    answered = _answered(found.spans)
    journal.attempts = {
        each.ordering: each
        for each in found.attempts
        if each.tool_call_id and each.tool_call_id not in answered
    }
    return journal


def _answered(spans: list[Span]) -> set[str]:
    return {span.tool_call_id for span in spans if span.kind == span.Kind.TOOL}


def _orderings(spans: list[Span]) -> dict[str, int]:
    """Return the places of the calls that have no result, each by its id."""
    answered = _answered(spans)
    asked = [span for span in spans if span.kind == span.Kind.LLM and span.output]
    return {
        call["id"]: span.ordering + place
        for span in asked
        for place, call in enumerate(span.output.get("tool_calls") or (), 1)
        if call["id"] not in answered
    }


def user_of(trace: Trace) -> Any:
    """Return the user of a run that is to go on, or its program; NotResumable if he is gone."""
    if trace.user is not None or not trace.owner_key:
        return trace.user
    program = program_with(trace.owner_key)
    if program is None:
        raise NotResumable(
            f"The run {trace.uuid[:8]} belongs to {trace.owner_key!r}, which is no user in the "
            f"database and no program with a token any more. Pass user=."
        )
    return program
