"""The endpoint where people decide about the tool calls that wait for them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from django.core.exceptions import PermissionDenied
from django.db.models import Q
from django.http.response import HttpResponseBase

from mlango.agents.execution import execute
from mlango.core.memory import owner_key
from mlango.core.threads import in_thread
from mlango.exceptions import AlreadyDecided, NotResumable, WrongStatus, did_you_mean
from mlango.models import Approval, Trace
from mlango.runtime.database import ask
from mlango.runtime.endings import run_of
from mlango.runtime.registry import registry
from mlango.serve.base import View, Visit, visited
from mlango.serve.body import body_of, parsed
from mlango.serve.json import document, shown
from mlango.serve.limits import admitted
from mlango.serve.operations import DECISIONS as DECISIONS
from mlango.serve.problems import Problem

if TYPE_CHECKING:
    from mlango.agents.agent import Agent
    from mlango.core.run import AgentRun
    from mlango.serve.policy import Policy

ID = re.compile("[0-9a-f]{32}")
LISTED = 100  # as many at a time, so that the answer stays small
DEEPEST = 16  # how deep sub-agents are looked for: each level is a join
# The fields of a decision and their types; the first two must be there.
FIELDS: dict[str, type] = {"approval": str, "decision": str, "note": str, "arguments": dict}


def endpoint(agent: Agent | None, policy: Policy) -> View:
    """Return a view that lists what a user may decide, and takes his decision."""
    return visited(answer, agent, policy, ("GET", "POST"), kind="approvals")


async def answer(visit: Visit) -> HttpResponseBase:
    """Answer with what is open, or go on with the run that was decided about."""
    if visit.request.method == "GET":
        return document({"approvals": await in_thread(open_to, visit)})
    return await admitted(decide, visit)


async def decide(visit: Visit) -> HttpResponseBase:
    """Decide as the body says, and go on with the run."""
    fields = fields_of(parsed(body_of(visit.request)))
    row = await in_thread(decided, visit, fields)
    run = await gone_on(visit, row)
    return document({"approval": row.describe(), "run": run_shown(visit, row, run)})


def open_to(visit: Visit) -> list[dict[str, Any]]:
    """Return the oldest open approvals of the agent that the user may decide."""
    rows = Approval.objects.open().decidable_by(visit.user).order_by("created_at")
    if visit.agent is not None:
        rows = rows.filter(_of(visit.agent))
    return [row.describe() for row in rows[:LISTED]]


def _of(agent: Agent) -> Q:
    """Return which approvals are of the agent, or of a sub-agent that works for it."""
    label, run = agent._meta.label, "trace"
    found = Q(agent=label)
    for _ in range(min(agent._meta.max_subagent_depth, DEEPEST)):
        run += "__parent"
        found |= Q(**{f"{run}__agent": label, f"{run}__parent": None})
    return found


def _is_of(visit: Visit, row: Approval) -> bool:
    """Return whether the agent, or a sub-agent that works for it, makes the call."""
    if visit.agent is None:
        return True
    label = visit.agent._meta.label
    return row.agent == label or row.trace.root.agent == label


def fields_of(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a decision; raise a Problem if one is wrong."""
    for name, value in fields.items():
        if name not in FIELDS:
            hint = did_you_mean(name, FIELDS)
            known = ", ".join(FIELDS)
            raise Problem(400, f"There is no field {name!r:.100}.{hint} Fields are: {known}.")
        if not isinstance(value, FIELDS[name]):
            kind = "an object" if FIELDS[name] is dict else "a string"
            raise Problem(400, f"The field {name!r} must be {kind}.")
    if not ID.fullmatch(fields.get("approval", "")):
        raise Problem(400, "The field 'approval' must hold the id of an approval.")
    if fields.get("decision") not in DECISIONS:
        raise Problem(400, f"The field 'decision' must be one of {', '.join(DECISIONS)}.")
    return fields


def decided(visit: Visit, fields: dict[str, Any]) -> Approval:
    """Decide as the fields say and return the row."""
    row = Approval.objects.select_related("trace").filter(pk=fields["approval"]).first()
    # Of what is not his to decide, a user does not learn that it is there.
    if row is None or not _may_know(visit.user, row) or not _is_of(visit, row):
        raise Problem(404, "There is no such approval.")
    check_agent(visit, row)
    try:
        given = {name: fields[name] for name in ("note", "arguments") if name in fields}
        row.decide(fields["decision"], by=visit.user, **given)
    except PermissionDenied as error:
        raise Problem(403, str(error)) from error
    except AlreadyDecided as error:
        raise Problem(409, str(error)) from error
    return row


def check_agent(visit: Visit, row: Approval) -> None:
    """Raise a Problem unless the user has the permission of the agent that would go on.

    At an agent's own endpoint that was asked for before.
    """
    agent, _ = whose(visit, row)  # which raises before anything is decided if it is gone
    needed = agent._meta.permission
    if visit.agent is None and needed and not visit.user.has_perm(needed):
        raise Problem(403, f"This needs the permission {needed!r}.")


def _may_know(user: Any, row: Approval) -> bool:
    return owner_key(user) == row.owner_key or row.may_decide(user)


async def gone_on(visit: Visit, row: Approval) -> AgentRun | None:
    """Go on with the run and return it as it ended; None if somebody else goes on with it."""
    agent, trace = await ask(whose, visit, row)
    options: dict[str, Any] = {"raise_on_error": False}
    if owner_key(visit.user) == row.owner_key:
        options["user"] = visit.user
    try:
        if visit.is_async:
            run: AgentRun = await agent.aresume(trace, **options)
        else:
            run = await in_thread(agent.resume, trace, **options)
    except WrongStatus:
        return None
    except NotResumable as error:
        return await failed(trace, error)
    return run


async def failed(uuid: str, error: NotResumable) -> AgentRun | None:
    """End a run that waits and can never go on, and return it; None if somebody else has it."""
    await execute(uuid)  # a durable one ends so wherever it is done
    return await ask(_failed, uuid, str(error))


def _failed(uuid: str, error: str) -> AgentRun | None:
    trace = Trace.objects.get(pk=uuid)
    if trace.status == Trace.Status.WAITING and not hasattr(trace, "durable"):
        trace.fail(error)
        trace.refresh_from_db()
    return run_of(trace) if trace.status == Trace.Status.FAILED else None


def whose(visit: Visit, row: Approval) -> tuple[Agent, str]:
    """Return the run to go on with, and its agent: for a sub-agent's call, the lead's."""
    root, agent = row.trace.root, visit.agent
    if agent is None or root.agent != agent._meta.label:
        config = root.durable.request["config"] if hasattr(root, "durable") else {}
        agent = registry.get(root.agent)(**config)
    return agent, root.uuid


def run_shown(visit: Visit, row: Approval, run: AgentRun | None) -> dict[str, Any] | None:
    """Return the run for its owner; for anyone else who decides only how it stands."""
    if run is None:
        return None
    described = shown(run)
    if owner_key(visit.user) == row.owner_key:
        return described
    return {name: described[name] for name in ("trace", "status")}
