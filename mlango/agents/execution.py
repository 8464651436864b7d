"""Doing a durable run that was claimed: from its request, or from where its rows end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from django.db import transaction

from mlango.agents.durability import CRASH_LOOP, crashed
from mlango.agents.requests import restored
from mlango.agents.resolve import run_for
from mlango.agents.resume import Recorded, recorded_of, run_from, user_of
from mlango.agents.streams import AsyncRunStream
from mlango.agents.surroundings import surround
from mlango.conf import settings
from mlango.core.durability import Durable
from mlango.core.run import AgentRun, Run
from mlango.exceptions import MlangoError, UnknownAgent
from mlango.models import DurableRun, Instruction, Trace
from mlango.runtime import database
from mlango.runtime.durable import DurableJournal
from mlango.runtime.leases import worker_name
from mlango.runtime.registry import registry
from mlango.runtime.sync import Call
from mlango.runtime.writer import writer

logger = logging.getLogger("mlango.durable")

T = TypeVar("T")

LATER = 30.0  # seconds until a run is due again that this process does not know how to do

Started = Callable[[Run], None]


@dataclass(frozen=True, slots=True)
class Found:
    """What the rows say of a claimed run; ``recorded`` is None if it has not begun."""

    trace: Trace
    user: Any
    recorded: Recorded | None
    instructions: list[Instruction]


def execute_now(uuid: str) -> AgentRun | None:
    """Do a run that is due, and wait for it; None if it is not due, or somebody has it."""
    call = Call("await execute(uuid)")
    return call.run(execute(uuid, call))


async def execute(uuid: str, call: Call | None = None) -> AgentRun | None:
    """Do a run that is due; return None if it is not due, or somebody has it."""
    claimed = await database.ask(claim, uuid)
    return None if claimed is None else await carry_on(claimed, call)


def claim(uuid: str) -> DurableRun | None:
    """Claim a run for this process."""
    rows = DurableRun.objects.using(database.alias())
    return rows.claim(uuid, worker_name(), settings.LEASE_SECONDS)


async def carry_on(
    claimed: DurableRun, call: Call | None = None, started: Started | None = None
) -> AgentRun | None:
    """Do a run that this process has claimed, to its end or until somebody is needed.

    ``started`` is given the Run. Return None if it could not be begun here.
    """
    try:
        if _is_deadly(claimed):
            await database.ask(_fail, claimed, crashed(claimed.crashes), CRASH_LOOP)
            return None
        run = _run_of(claimed, await _ask(partial(_found, claimed)), call)
    except UnknownAgent as error:
        logger.warning("The run %s is left to others: %s", claimed.pk, error)
        await database.ask(_leave, claimed)
        return None
    except MlangoError as error:
        logger.error("The run %s cannot go on: %s", claimed.pk, error)  # noqa: TRY400
        await database.ask(_fail, claimed, str(error))
        return None
    if claimed.cancel_requested:
        run.abort()
    if started is not None:
        started(run)
    stream = AsyncRunStream(run)
    async with stream:
        async for _ in stream:
            pass
    return stream.run


async def _ask(function: Callable[[], T]) -> T:
    """Call a function in the caller's transaction if he has one, else where a run is saved.

    That connection is open, and a worker that opened another for each run would do little else.
    """
    alias = database.alias()
    if await database.place_of(alias) is not None:
        return await database.ask(function)
    return await asyncio.wrap_future(writer.send(alias, function))


def _is_deadly(claimed: DurableRun) -> bool:
    """Return whether not even the process lived that was to end the run as a crash loop."""
    declared = registry.get(claimed.agent)._meta.durable
    return claimed.crashes > Durable.of(declared).max_crashes


def _run_of(claimed: DurableRun, found: Found, call: Call | None) -> Run:
    request = claimed.request
    agent = registry.get(claimed.agent)(**request["config"])
    if found.recorded is not None:
        run = run_from(agent, found.recorded, {}, call)
    else:
        options = restored(request["options"]) | {"user": found.user}
        run = run_for(agent, request["said"], options, call, journal=DurableJournal())
        run.uuid, run.surroundings = claimed.pk, request.get("surroundings")
        surround(run)
    journal: Any = run.journal
    journal.hold(claimed)
    journal.lease.hand(run, found.instructions)
    return run


def _found(claimed: DurableRun) -> Found:
    trace = Trace.objects.using(claimed._state.db).prefetch_related("spans").get(pk=claimed.pk)
    user = user_of(trace)
    recorded = recorded_of(trace, user) if trace.opening_json else None
    return Found(trace, user, recorded, list(trace.instructions.all()))


def _leave(claimed: DurableRun) -> None:
    rows = DurableRun.objects.using(claimed._state.db)
    if rows.give_back(claimed.pk, claimed.token, LATER):
        Trace.objects.filter(pk=claimed.pk).update(status=Trace.Status.QUEUED)


def _fail(claimed: DurableRun, error: str, reason: str = "error") -> None:
    alias = claimed._state.db
    with transaction.atomic(using=alias):
        if DurableRun.objects.using(alias).rest(claimed.pk, claimed.token):
            Trace.objects.using(alias).get(pk=claimed.pk).fail(error, reason)
