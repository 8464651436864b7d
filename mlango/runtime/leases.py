"""The lease of a durable run: who holds it may write for it, and nobody else.

Each write first touches the run's row by the token of the claim, in the transaction of the
write. Where another process has claimed the run since, that finds no row and nothing is
written: the process is fenced.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from time import monotonic
from typing import Any, Generic, TypeVar
from uuid import uuid4
from weakref import WeakKeyDictionary

from django.db import DatabaseError, IntegrityError, InterfaceError, transaction

from mlango.conf import settings
from mlango.core.controls import Leave
from mlango.core.provider import Message
from mlango.core.run import LOST, RUNNING, Run
from mlango.models import DurableRun, Instruction
from mlango.runtime import database
from mlango.runtime.hold import hold
from mlango.runtime.writer import may_pass, writer

logger = logging.getLogger("mlango.durable")

T = TypeVar("T")

LOOK = 1.0  # seconds between two looks at what others ask of the runs that are held here
FIRST_PAUSE, LAST_PAUSE = 0.2, 5.0  # seconds between two attempts to reach the database
PATIENCE = 60.0  # seconds to keep trying


class Fenced(Leave):
    """Another process has the run now."""

    def __init__(self, uuid: str) -> None:
        super().__init__(LOST, f"Another process goes on with the run {uuid[:8]}.")


class Unsaved(Leave):
    """The database takes no rows, so nothing more may be done; the run goes on later."""

    def __init__(self, uuid: str, error: Exception) -> None:
        reason = (str(error).splitlines() or [""])[0]
        super().__init__(
            LOST, f"The run {uuid[:8]} could not be saved: {type(error).__name__}: {reason}"
        )


def worker_name() -> str:
    """Return what tells this process from all others."""
    return _name_of(os.getpid())


@lru_cache(maxsize=1)
def _name_of(pid: int) -> str:
    return f"{socket.gethostname()[:24]}:{pid}:{uuid4().hex[:16]}"


class Lease:
    """The right to write for one durable run, until someone else claims it."""

    def __init__(self, uuid: str, token: int, alias: str, seconds: float) -> None:
        self.uuid = uuid
        self.token = token
        self.alias = alias
        self.seconds = seconds
        self.is_lost = False
        # What others told the run, by its row's key; None once the run has heard it.
        self._handed: dict[int, list[Message] | None] = {}
        self.place: database.Place | None = None
        self._turn = asyncio.Lock()
        self._number = 0  # of the last transaction

    async def do(self, function: Callable[[], T], done: int = 0) -> T:
        """Call a function in a transaction that only who holds the lease can commit.

        ``done`` counts what it finishes of the run. Raise Leave where nothing may be written.
        """
        if self.is_lost:
            raise Fenced(self.uuid)
        if self.place is not None:
            return await self.place(partial(self._fenced, function, done))  # type: ignore[no-any-return]
        async with self._turn:  # none overtakes one of which nobody knows yet whether it is there
            self._number += 1
            return await self.patiently(Once(self, function, done, self._number))

    async def patiently(self, work: Callable[[], T]) -> T:
        """Call a function on the writer's connection, and again while the database is away."""
        pause, deadline = FIRST_PAUSE, monotonic() + PATIENCE
        while True:
            try:
                return await asyncio.wrap_future(writer.send(self.alias, work))
            except IntegrityError:
                raise
            except (DatabaseError, InterfaceError) as error:
                if monotonic() > deadline or not may_pass(self.alias, error):
                    self.is_lost = True
                    unsaved = Unsaved(self.uuid, error)
                    logger.error("%s", unsaved)  # noqa: TRY400 - the row may stand in the trail
                    raise unsaved from error
            await asyncio.sleep(pause * random.uniform(0.5, 1))
            pause = min(pause * 2, LAST_PAUSE)

    def _fenced(self, function: Callable[[], T], done: int) -> T:
        with transaction.atomic(using=self.alias):
            self.hold(done)
            return function()

    def hold(self, done: int = 0, number: int | None = None) -> None:
        """Touch the run's row, so that this transaction holds it. Raise Fenced if it is gone."""
        if not hold(self.alias, self.uuid, self.token, self.seconds, done, number):
            self.is_lost = True
            logger.warning("%s This one is fenced.", Fenced(self.uuid))
            raise Fenced(self.uuid)

    def hand(self, run: Run, instructions: Iterable[Instruction]) -> None:
        """Tell a run what others want it to be told, each once."""
        for each in instructions:
            if each.pk in self._handed or run.status != RUNNING:
                continue
            if each.kind == each.Kind.STEER:
                self._handed[each.pk] = run.steer(each.said, now=each.now)
            else:
                self._handed[each.pk] = run.follow_up(each.said)

    def heard(self, run: Run) -> list[int]:
        """Return the keys of what the run has heard since this was asked last."""
        waiting = {id(said) for said in (*run.steering, *run.follow_ups)}
        heard = [pk for pk, said in self._handed.items() if said and id(said) not in waiting]
        self._handed.update(dict.fromkeys(heard))
        return heard

    @property
    def rows(self) -> Any:
        return DurableRun.objects.using(self.alias)


class Once(Generic[T]):
    """A transaction for a run, which commits once, even if the answer to its commit is lost."""

    def __init__(self, lease: Lease, function: Callable[[], T], done: int, number: int) -> None:
        self._lease = lease
        self._function = function
        self._done = done
        self._number = number
        self._results: list[T] = []  # one, of the attempt that may have committed

    def __call__(self) -> T:
        """Call the function in a transaction, unless an earlier attempt has committed."""
        lease = self._lease
        if self._results and self._has_committed():
            return self._results[0]
        with transaction.atomic(using=lease.alias):
            lease.hold(self._done, self._number)
            self._results = [self._function()]
        return self._results[0]

    def _has_committed(self) -> bool:
        row = self._lease.rows.filter(pk=self._lease.uuid, token=self._lease.token)
        return bool(row.filter(written=self._number).exists())


class Keeper:
    """Keeps the leases of the runs of one event loop, and hears what others ask of them."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[Run, Lease]] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, run: Run, lease: Lease) -> None:
        """Renew a lease until it is removed."""
        self._held[run.uuid] = (run, lease)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._keep())

    def remove(self, run: Run) -> None:
        """Renew a run's lease no more."""
        self._held.pop(run.uuid, None)

    async def _keep(self) -> None:
        renewed = monotonic()
        while self._held:
            await asyncio.sleep(LOOK)
            is_time = monotonic() - renewed >= settings.LEASE_SECONDS / 3
            if is_time:
                renewed = monotonic()
            for alias in {lease.alias for _, lease in self._held.values()}:
                await self._look(alias, renew=is_time)

    async def _look(self, alias: str, *, renew: bool) -> None:
        held = {uuid: each for uuid, each in self._held.items() if each[1].alias == alias}
        seconds = settings.LEASE_SECONDS if renew else None
        look = partial(_asked_of, alias, [*held], seconds)
        try:
            found, told = await asyncio.wrap_future(writer.send(alias, look))
        except (DatabaseError, InterfaceError) as error:
            logger.warning("The leases could not be renewed: %s", type(error).__name__)
            return
        for uuid, (run, lease) in held.items():
            self._tell(run, lease, found.get(uuid))
            if not lease.is_lost:
                lease.hand(run, [each for each in told if each.trace_id == uuid])

    def _tell(self, run: Run, lease: Lease, row: DurableRun | None) -> None:
        if run.uuid not in self._held:  # it has ended meanwhile
            return
        if row is None or row.token != lease.token:
            lease.is_lost = True
            logger.warning("%s This one is fenced.", Fenced(run.uuid))
            self.remove(run)
            run.halt(Fenced(run.uuid))
            run.watch.interrupt_soon()
        elif row.cancel_requested and not run.aborted:
            run.abort()


def _asked_of(
    alias: str, uuids: list[str], renew: float | None
) -> tuple[dict[str, DurableRun], list[Instruction]]:
    """Return which runs are still this process's, and what they are to be told."""
    found = DurableRun.objects.using(alias).mine(worker_name(), uuids, renew)
    return found, list(Instruction.objects.using(alias).filter(trace__in=uuids))


_keepers: WeakKeyDictionary[asyncio.AbstractEventLoop, Keeper] = WeakKeyDictionary()


def keeper() -> Keeper:
    """Return the keeper of the running event loop."""
    return _keepers.setdefault(asyncio.get_running_loop(), Keeper())
