"""Durable runs and their readers: the run goes on without them, and they come back to it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import aclosing
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any

from mlango.agents.enqueue import POLL, Asked, asked, told_of, twin_of
from mlango.agents.execution import execute
from mlango.agents.queues import get_queue
from mlango.agents.resolve import run_for
from mlango.agents.streams import AsyncRunStream
from mlango.core.events import Event
from mlango.core.journal import Journal
from mlango.core.log import Told
from mlango.core.retold import event_of, run_of
from mlango.core.run import QUEUED, AgentRun, Run
from mlango.exceptions import Misused, WrongStatus
from mlango.models import DurableRun, Trace
from mlango.runtime import database
from mlango.runtime.following import RESYNC, afollow
from mlango.runtime.live import running
from mlango.runtime.sync import Call, portal
from mlango.runtime.writer import writer

if TYPE_CHECKING:
    from mlango.agents.agent import Agent

logger = logging.getLogger("mlango.durable")

_tasks: set[asyncio.Task[None]] = set()  # as loops keep weak references only


async def begin(wanted: Asked) -> str | None:
    """Have a run done that outlives who asks for it, and return its uuid.

    Where the queue finds nobody in time, this process does it. Return None inside a
    transaction, of which no other process and no other thread sees anything.
    """
    if await database.place_of(database.alias()) is not None:
        twin = await database.ask(twin_of, wanted.trace, wanted.row)
        return None if twin is None else str(twin.pk)
    patience = get_queue().patience
    # One who leaves meanwhile has asked for the run all the same.
    return await asyncio.shield(_store(wanted, patience))


async def _store(wanted: Asked, patience: float) -> str:
    trace: Trace = await database.ask(partial(wanted.store, rings=patience > 0))
    # Not on the reader's loop, which may end with him, nor in his context.
    loop = portal.loop()
    loop.call_soon_threadsafe(_see_to_soon, trace.pk, patience, context=Context())
    return str(trace.pk)


def _see_to_soon(uuid: str, patience: float) -> None:
    task = asyncio.get_running_loop().create_task(_see_to(uuid, patience))
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


async def _see_to(uuid: str, patience: float) -> None:
    """Do a run here unless somebody begins it in time."""
    try:
        while await database.ask(_is_queued, uuid):
            await asyncio.sleep(patience)
            await execute(uuid)
            patience = max(patience, POLL)
    except Exception:
        logger.exception("The run %s could not be done here.", uuid)


def _is_queued(uuid: str) -> bool:
    rows = Trace.objects.using(database.alias())
    return rows.filter(pk=uuid, status=QUEUED).exists()


class Elsewhere:
    """Stands for a run that another process does, or another thread of this one."""

    journal = Journal()  # whoever does the run keeps its log

    def __init__(self, run: Run) -> None:
        self.uuid = run.uuid
        self.told: AgentRun | None = None  # how it ended
        self.is_aborted = self.is_begun = False
        self._run = run

    @property
    def here(self) -> Run | None:
        """The run, if this process does it."""
        return running(self.uuid)

    @property
    def exception(self) -> BaseException | None:
        return self._run.exception

    @property
    def steering(self) -> Collection[Any]:
        return self.here.steering if self.here else ()

    @property
    def follow_ups(self) -> Collection[Any]:
        return self.here.follow_ups if self.here else ()

    def become(self, run: Run) -> None:
        """Stand for this run, which the reader himself does."""
        run.uuid = self.uuid
        self._run = run

    def result(self) -> AgentRun:
        return self.told or (self.here or self._run).result()

    def steer(self, message: Any, *, now: bool = False) -> None:
        if self.here is not None:
            self.here.steer(message, now=now)
        else:
            self._post(lambda trace: trace.steer(message, now=now))

    def follow_up(self, message: Any) -> None:
        if self.here is not None:
            self.here.follow_up(message)
        else:
            self._post(lambda trace: trace.follow_up(message))

    def _post(self, tell: Callable[[Trace], None]) -> None:
        """Have a run told that goes on elsewhere, from a thread that may ask the database."""
        if not self.is_begun:
            raise Misused("The run has not begun. Read its first event before you tell it more.")
        if self.told is not None:
            raise WrongStatus(f"The run {self.uuid[:8]} has ended ({self.told.status}).")
        alias = database.alias()
        writer.send(alias, lambda: tell(Trace.objects.using(alias).get(pk=self.uuid)))

    def abort(self) -> None:
        self.is_aborted = True
        if self.here is not None:
            self.here.abort()
            return
        alias = database.alias()
        writer.send(alias, partial(DurableRun.objects.using(alias).cancel, self.uuid))


class DurableStream(AsyncRunStream):
    """The events of a durable run, from its log. Leaving it early leaves the run alone."""

    _run: Elsewhere  # type: ignore[assignment]  # which has all that is asked of it here

    def __init__(
        self, agent: Agent, message: Any, options: dict[str, Any], call: Call | None = None
    ) -> None:
        self._wanted = asked(agent, message, options, here=True)
        self._run = Elsewhere(self._wanted.run)
        self._make = partial(run_for, agent, message, options, call)
        self._events = self._follow()

    def enter_context(self) -> None:
        """Do nothing: whoever does the run has a context of its own."""

    async def _follow(self) -> AsyncGenerator[Event]:
        if self._run.is_aborted:
            self._wanted.row["cancel_requested"] = True
        uuid = await begin(self._wanted)
        async with aclosing(self._here() if uuid is None else self._log(uuid)) as events:
            async for event in events:
                yield event

    def _here(self) -> AsyncGenerator[Event]:
        """Do the run in the reader's transaction."""
        run = self._make()
        self._run.become(run)
        if self._run.is_aborted:
            run.abort()
        return aiter(AsyncRunStream(run))

    async def _log(self, uuid: str) -> AsyncGenerator[Event]:
        self._run.uuid, self._run.is_begun = uuid, True
        async with aclosing(afollow(uuid)) as log:
            async for told in log:
                if told.kind != RESYNC:
                    yield await self._event(told)

    async def _event(self, told: Told) -> Event:
        document = told.describe()
        if not told.is_last:
            return event_of(document)
        found = await database.ask(told_of, self._wanted.run.agent, self.uuid)
        self._run.told = found or run_of(document)
        return event_of(document, self._run.told)
