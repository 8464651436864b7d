"""Asking for a run that another process does, and asking twice for one run."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from django.db import IntegrityError, transaction

from mlango.agents.arguments import RUN_OPTIONS
from mlango.agents.execution import execute
from mlango.agents.output.kinds import Invalid
from mlango.agents.queues import ring
from mlango.agents.requests import new_row
from mlango.agents.resolve import run_for
from mlango.agents.resume import recorded_of, run_from, user_of
from mlango.agents.streams import AsyncRunStream, result_of
from mlango.core.numbers import is_number_from
from mlango.core.run import FAILED, FINISHED, QUEUED, RUNNING, AgentRun
from mlango.core.wanted import Wanted, check, instance_of
from mlango.exceptions import IdempotencyConflict, Misused, RunError
from mlango.models import DurableRun, Trace
from mlango.models.durable import DEFAULT_QUEUE
from mlango.runtime import database
from mlango.runtime.durable import DurableJournal, create
from mlango.runtime.rows import trace_of
from mlango.runtime.sync import Call

if TYPE_CHECKING:
    from mlango.agents.agent import Agent
    from mlango.core.run import Run

QUEUE_OPTIONS = {
    "run_after": instance_of("a datetime", datetime).or_none(),
    "priority": Wanted(
        lambda value: is_number_from(value, -100, (int,)) and value <= 100,
        "a whole number from -100 to 100",
    ),
    "queue": Wanted(
        lambda value: isinstance(value, str) and 0 < len(value) <= 32,
        "a name of 1 to 32 characters",
    ),
}
POLL = 0.25  # seconds between two looks at a run that another process does


@dataclass(frozen=True, slots=True)
class Asked:
    """A run that is asked for: its trace as it is to be, and the values of its row."""

    run: Run
    trace: Trace
    row: dict[str, Any]

    def store(self, *, rings: bool = True) -> Trace:
        """Write it down, or find what the same key has asked for; asks the database.

        With ``rings`` the queue is told when the transaction commits.
        """
        alias = database.alias()
        found = twin_of(self.trace, self.row)
        if found is not None:
            return found.trace
        try:
            create(alias, self.trace, self.row)
        except IntegrityError:
            found = twin_of(self.trace, self.row)
            if found is None:
                raise
            return found.trace
        if rings:
            durable = DurableRun.objects.using(alias).get(pk=self.trace.pk)
            transaction.on_commit(partial(ring, durable), using=alias)
        return self.trace


def asked(agent: Agent, message: Any, options: dict[str, Any], *, here: bool = False) -> Asked:
    """Return a run that any process may do. Raise Misused for what is wrong, or not storable.

    With ``here`` a request may be among the options, which is not stored.
    """
    placed = _placed({name: options[name] for name in QUEUE_OPTIONS if name in options})
    options = {name: value for name, value in options.items() if name not in QUEUE_OPTIONS}
    run = run_for(agent, message, options, journal=DurableJournal())
    row = _row(agent, run, options, here=here) | placed
    trace = trace_of(run)
    trace.status, trace.opening_json = Trace.Status.QUEUED, ""
    return Asked(run, trace, row)


def enqueue(agent: Agent, message: Any, options: dict[str, Any]) -> Trace:
    """Write a run down for any process to do, and return its trace; asks the database."""
    return asked(agent, message, options).store()


def _placed(given: dict[str, Any]) -> dict[str, Any]:
    """Return the columns that say when and where a run is done; raise Misused for others."""
    check("{}", given, QUEUE_OPTIONS, Misused)
    run_after = given.get("run_after")
    placed = {"priority": given.get("priority", 0), "queue": given.get("queue", DEFAULT_QUEUE)}
    return placed if run_after is None else {**placed, "due_at": run_after}


def _row(agent: Agent, run: Run, options: dict[str, Any], *, here: bool) -> dict[str, Any]:
    extra = {name: value for name, value in options.items() if name not in RUN_OPTIONS}
    return new_row(agent, run.said, run.options | {"user": run.user}, extra, here=here)


def twin_of(trace: Trace, row: dict[str, Any]) -> DurableRun | None:
    """Return the run that was asked for by the same key before; None if there is none.

    Raise IdempotencyConflict if the key was used for another request.
    """
    key = row["idempotency_key"]
    if key is None:
        return None
    found = DurableRun.objects.select_related("trace").filter(
        agent=trace.agent, owner_key=trace.owner_key, idempotency_key=key
    )
    twin = found.first()
    if twin is not None and twin.request_digest != row["request_digest"]:
        raise IdempotencyConflict(
            f"The idempotency key {key!r} was used for another request to {trace.agent}. "
            f"Use a new key for a new request."
        )
    return twin


async def once(
    agent: Agent, message: Any, options: dict[str, Any], call: Call | None = None
) -> AgentRun:
    """Run, or return the run that was asked for by the same idempotency key before."""
    raise_on_error = options.get("raise_on_error", True)
    run = run_for(agent, message, options, call)
    twin = await twin_for(run, options)
    if twin is None:
        try:
            return await result_of(AsyncRunStream(run), raise_on_error=raise_on_error)
        except IdempotencyConflict:
            twin = await twin_for(run, options)
            if twin is None:
                raise
    return await outcome_of(agent, twin.pk, call, raise_on_error=raise_on_error)


async def twin_for(run: Run, options: dict[str, Any]) -> DurableRun | None:
    """Return the run that was asked for by the key of this one before it; see ``twin_of``."""
    row = _row(run.agent, run, options, here=True)
    return await database.ask(twin_of, trace_of(run), row)


async def outcome_of(
    agent: Agent, uuid: str, call: Call | None = None, *, raise_on_error: bool = True
) -> AgentRun:
    """Wait until a run ends or needs somebody, doing it here if nobody does; return it."""
    while True:
        done = await execute(uuid, call)
        if done is None:
            done = await database.ask(told_of, agent, uuid)
        if done is not None:
            break
        await asyncio.sleep(POLL)
    if done.status == FAILED and raise_on_error:
        raise RunError(done.error, run=done)
    return done


def told_of(agent: Agent, uuid: str) -> AgentRun | None:
    """Return a run as its rows tell it; None while it goes on."""
    trace = Trace.objects.prefetch_related("spans").get(pk=uuid)
    if trace.status in (QUEUED, RUNNING):
        return None
    if not trace.opening_json:  # it was stopped before it began
        trace.opening = {"said": trace.durable.request["said"]}
    run = run_from(agent, recorded_of(trace, user_of(trace)), {})
    run.status, run.stop_reason, run.error = trace.status, trace.stop_reason, trace.error
    if run.agent._meta.output and run.status == FINISHED:
        with suppress(Invalid):
            run.output = run.agent._meta.output.read(run.text)
    run.approvals = [each.describe() for each in trace.approvals.all().open()]
    result = run.result()
    result.elapsed = trace.duration_s or 0.0
    return result
