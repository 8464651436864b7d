"""The endpoints of runs that were begun: list them, read one, cancel, steer, follow up."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from django.db.models import Q
from django.http import HttpResponse

from mlango.agents.resolve import check_input
from mlango.core.messages import text_of, user_messages
from mlango.core.numbers import plain
from mlango.core.threads import in_thread
from mlango.exceptions import did_you_mean
from mlango.models import Approval, Span, Trace
from mlango.models.instruction import MAX_WAITING
from mlango.runtime.live import running
from mlango.serve.base import View, Visit, visited
from mlango.serve.body import JSON_TYPE, body_of, parsed
from mlango.serve.json import document
from mlango.serve.owned import ID, is_own, own_trace, own_traces, uuid_of
from mlango.serve.problems import Problem

if TYPE_CHECKING:
    from mlango.agents.agent import Agent
    from mlango.core.run import Run
    from mlango.serve.policy import Policy

PAGE, MAX_PAGE = 20, 100
TYPES: dict[str, type] = {"message": str, "now": bool}
GOING = (Trace.Status.RUNNING,)
HEARING = (Trace.Status.RUNNING, Trace.Status.QUEUED)


def listing(agent: Agent | None, policy: Policy) -> View:
    """Return a view of a user's runs, newest first."""
    return visited(answer_list, agent, policy, ("GET",), kind="runs")


def detail(agent: Agent | None, policy: Policy) -> View:
    """Return a view of one run, as the endpoint that ran it has answered."""
    return visited(answer_run, agent, policy, ("GET",), kind="run-detail")


def cancel(agent: Agent | None, policy: Policy) -> View:
    """Return a view that stops a run."""
    return visited(answer_cancel, agent, policy, content_types=("", JSON_TYPE), kind="cancel")


def steer(agent: Agent | None, policy: Policy) -> View:
    """Return a view that has a run read a message before its next model call."""
    return visited(answer_steer, agent, policy, kind="steer")


def follow_up(agent: Agent | None, policy: Policy) -> View:
    """Return a view that has a run go on with a message when it would be done."""
    return visited(answer_follow_up, agent, policy, kind="follow-up")


# -- reading ------------------------------------------------------------------------------------


async def answer_list(visit: Visit) -> HttpResponse:
    """Answer with a page of runs, and where the next page begins."""
    return document(await in_thread(page_of, visit))


def page_of(visit: Visit) -> dict[str, Any]:
    """Return a page of runs; those that work for others are left out."""
    query = visit.request.GET
    rows = own_traces(visit).filter(parent=None).order_by("-started_at", "-uuid")
    if query.get("session_id"):
        rows = rows.filter(session_key=query["session_id"].replace("\0", "␀"))
    if query.get("status"):
        rows = rows.filter(status=one_of(Trace.Status.values, "status", query["status"]))
    if query.get("before"):
        rows = rows.filter(older_than(visit, query["before"]))
    limit = size_of(query.get("limit", ""))
    found = list(rows.defer("opening_json", "metadata_json", "input", "output")[: limit + 1])
    following = found[limit - 1].uuid if len(found) > limit else None
    return {"runs": [row.describe() for row in found[:limit]], "next": following}


def one_of(choices: Iterable[str], name: str, value: str) -> str:
    """Return the value of a query's parameter; raise a Problem if it is none of the choices."""
    known = list(choices)
    if value not in known:
        hint = did_you_mean(value, known)
        raise Problem(400, f"{name!r} must be one of {', '.join(known)}.{hint}")
    return value


def size_of(text: str) -> int:
    """Return how many runs a page has."""
    if not text:
        return PAGE
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= MAX_PAGE):
        raise Problem(400, f"'limit' must be a number from 1 to {MAX_PAGE}.")
    return int(text[:9])


def older_than(visit: Visit, uuid: str) -> Q:
    """Return what is true of the runs behind one of a user's own."""
    if not ID.fullmatch(uuid):
        raise Problem(400, "'before' must be the id of a run, as 'next' gives it.")
    row = own_traces(visit).filter(pk=uuid).first()
    if row is None:
        raise Problem(404, "There is no such run to begin behind.")
    same_time = Q(started_at=row.started_at, uuid__lt=row.uuid)
    return Q(started_at__lt=row.started_at) | same_time


async def answer_run(visit: Visit) -> HttpResponse:
    """Answer with a run as it stands."""
    return document(await in_thread(lambda: shown(own_trace(visit))))


def shown(trace: Trace) -> dict[str, Any]:
    """Return what a client reads of a run, from its rows."""
    tools = trace.spans.filter(kind=Span.Kind.TOOL).values_list("name", flat=True)
    return {
        "agent": trace.agent,
        "output": output_of(trace),
        "status": trace.status,
        "stop_reason": trace.stop_reason,
        "steps": trace.steps,
        "trace": trace.uuid,
        "session_id": trace.session_key,
        "tools_used": list(dict.fromkeys(tools)),
        "usage": trace.usage.describe(),
        "cost": None if trace.cost is None else plain(trace.cost),
        "error": error_of(trace),
        "approvals": [row.describe() for row in Approval.objects.open_in(trace)],
        "artifacts": [row.describe() for row in trace.artifacts.all()],
        "started_at": trace.started_at.isoformat(),
        "ended_at": trace.ended_at.isoformat() if trace.ended_at else None,
    }


def output_of(trace: Trace) -> str:
    """Return what the agent said last; the row itself has the beginning of long texts only."""
    said = [message for message in trace.turn if message.get("role") == "assistant"]
    return text_of(said[-1].get("content")) if said else trace.output


def error_of(trace: Trace) -> str:
    """Return why a run ended early, without the text of any exception."""
    is_failed = trace.status == Trace.Status.FAILED
    return "The run failed; its trace tells why." if is_failed else trace.error


# -- what may be asked of one that goes on ------------------------------------------------------


async def answer_cancel(visit: Visit) -> HttpResponse:
    """Ask a run to stop; it ends in its own time, with all that it has done."""
    if body := body_of(visit.request):
        fields_of(parsed(body), {})
    return accepted(await in_thread(cancelled, visit, uuid_of(visit)))


def cancelled(visit: Visit, uuid: str) -> Run | Trace:
    """Stop a run of who asks, and return it: a durable one in any process, others in this one."""
    run = own_running(visit, uuid)
    if run is not None:
        run.abort()
        return run
    row = own_trace(visit, uuid)
    if not hasattr(row, "durable") or not row.cancel():
        raise not_going(row)
    row.refresh_from_db(fields=["status"])
    return row


async def answer_steer(visit: Visit) -> HttpResponse:
    """Hand a run a message for its next model call."""
    fields = message_of(visit, TYPES)
    now = fields.get("now", False)
    return await handed(visit, lambda run: run.steer(fields["message"], now=now))


async def answer_follow_up(visit: Visit) -> HttpResponse:
    """Hand a run a message for when it is done."""
    fields = message_of(visit, {"message": str})
    return await handed(visit, lambda run: run.follow_up(fields["message"]))


async def handed(visit: Visit, hand: Callable[[Run | Trace], object]) -> HttpResponse:
    """Hand something to the run that the URL names."""
    return accepted(await in_thread(hand_over, visit, uuid_of(visit), hand))


def hand_over(visit: Visit, uuid: str, hand: Callable[[Run | Trace], object]) -> Run | Trace:
    """Tell a run of who asks something, and return it: see ``cancelled``."""
    run = own_running(visit, uuid)
    target = run or own_trace(visit, uuid)
    if isinstance(target, Trace):
        if not hasattr(target, "durable") or target.status not in HEARING:
            raise not_going(target)
        waiting = target.instructions.count()
    else:
        waiting = len(target.steering) + len(target.follow_ups)
    if waiting >= MAX_WAITING:
        raise Problem(429, f"{MAX_WAITING} messages wait for the run already.")
    hand(target)
    return target


def own_running(visit: Visit, uuid: str) -> Run | None:
    """Return a run of who asks, if it goes on in this process."""
    run = running(uuid)
    # Its row may come a moment later.
    return run if run is not None and is_own(visit, run) else None


def not_going(row: Trace) -> Problem:
    """Return the Problem of a run that cannot be told anything from here."""
    if row.status in GOING:
        return Problem(409, "The run goes on in another process, which cannot be told from here.")
    if row.status == Trace.Status.WAITING:
        return Problem(409, "The run waits for a person. Decide about its approvals.")
    if row.status == Trace.Status.QUEUED:
        return Problem(409, "The run waits for a process to do it. It can only be stopped.")
    return Problem(409, f"The run has ended ({row.status}).")


def accepted(run: Run | Trace) -> HttpResponse:
    """Return that a run was told."""
    response = document({"trace": run.uuid, "status": run.status})
    response.status_code = 202
    return response


def message_of(visit: Visit, types: dict[str, type]) -> dict[str, Any]:
    """Return the fields of a message to a run; raise a Problem if one is wrong."""
    fields = fields_of(parsed(body_of(visit.request)), types)
    if not fields.get("message", "").strip():
        raise Problem(400, "The field 'message' must hold the text for the run.")
    check_input(user_messages(fields["message"]))
    return fields


def fields_of(fields: dict[str, Any], types: dict[str, type]) -> dict[str, Any]:
    """Return the fields; raise a Problem for one that is unknown or of another type."""
    for name, value in fields.items():
        if name not in types:
            hint, known = did_you_mean(name, types), ", ".join(types) or "none"
            raise Problem(400, f"There is no field {name!r:.100}.{hint} Fields are: {known}.")
        if type(value) is not types[name]:
            kind = "a string" if types[name] is str else "true or false"
            raise Problem(400, f"The field {name!r} must be {kind}.")
    return fields
