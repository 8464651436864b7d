"""The worker: does what is due, many runs on one event loop, until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import random
import signal
from functools import partial
from time import monotonic
from typing import Any

from django.db import DatabaseError, InterfaceError

from mlango.agents.execution import carry_on
from mlango.agents.queues.database import Bell
from mlango.agents.rounds import go_round_alone
from mlango.conf import settings
from mlango.core.run import Run
from mlango.models import DurableRun
from mlango.models.durable import DEFAULT_QUEUE
from mlango.runtime import database
from mlango.runtime.leases import worker_name
from mlango.runtime.writer import writer

logger = logging.getLogger("mlango.durable")

POLL = 1.0  # seconds between two looks into the table while nobody rings
SWEEP = 15.0  # seconds between two looks at what waits for nothing more
FIRST_PAUSE, LAST_PAUSE = 0.5, 10.0  # seconds between two looks while the database is away
GRACE = 20.0  # seconds that a step may take to end, when the worker is told to
SETTLE = 5.0  # seconds that a run may take to be left, after its grace


class Worker:
    """Claims what is due in a queue and does up to ``concurrency`` runs at a time.

    ``drain()`` lets it end: it claims nothing more, lets each run end the step that it is at
    for up to ``grace`` seconds, and leaves what is not done by then to others.
    """

    def __init__(
        self, queue: str = DEFAULT_QUEUE, concurrency: int = 10, grace: float = GRACE
    ) -> None:
        self.queue = queue
        self.concurrency = concurrency
        self.grace = grace
        self.done = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._runs: dict[str, Run] = {}
        self._wake = asyncio.Event()
        self._draining = False
        self._swept = -SWEEP
        self._pause = FIRST_PAUSE

    async def work(self, *, until_idle: bool = False) -> None:
        """Work until ``drain()``; with ``until_idle``, until nothing is due."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.drain)
        bell = Bell(self.queue, partial(loop.call_soon_threadsafe, self._wake.set))
        bell.start()
        writer.enter()  # its connection stays open between two looks
        try:
            await self._serve(until_idle=until_idle)
        finally:
            await self._leave()
            writer.leave()
            await asyncio.wrap_future(writer.send())  # after which it may rest
            await asyncio.to_thread(bell.stop)

    def drain(self) -> None:
        """Stop claiming, and end when the runs that are held have come to the end of a step."""
        if not self._draining:
            logger.info("The worker ends with %s runs to leave.", len(self._runs))
        self._draining = True
        self._wake.set()

    async def _serve(self, *, until_idle: bool) -> None:
        while not self._draining:
            self._wake.clear()
            pause = POLL * random.uniform(0.8, 1.2)
            try:
                await self._sweep()
                claimed = await self._claim()
            except (DatabaseError, InterfaceError) as error:
                claimed, pause = [], self._backed_off(error)
            else:
                self._pause = FIRST_PAUSE
            for run in claimed:
                self._start(run)
            if until_idle and not claimed and not self._tasks:
                return
            if not claimed or len(self._tasks) >= self.concurrency:
                await self._rest(pause)

    def _backed_off(self, error: Exception) -> float:
        """Return how long to leave the database alone."""
        logger.warning("The worker cannot ask the database: %s", type(error).__name__)
        pause, self._pause = self._pause, min(self._pause * 2, LAST_PAUSE)
        return pause * random.uniform(0.5, 1)

    async def _rest(self, pause: float) -> None:
        """Wait until somebody rings, a run ends, or it is time to look."""
        try:
            async with asyncio.timeout(pause):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _claim(self) -> list[DurableRun]:
        free = self.concurrency - len(self._tasks)
        if free <= 0:
            return []
        alias, seconds = database.alias(), settings.LEASE_SECONDS
        rows = DurableRun.objects.using(alias)
        claim = partial(rows.claim_due, self.queue, worker_name(), seconds, free)
        claimed: list[DurableRun] = await asyncio.wrap_future(writer.send(alias, claim))
        return claimed

    async def _sweep(self) -> None:
        if monotonic() - self._swept < SWEEP:
            return
        self._swept = monotonic()
        await asyncio.to_thread(go_round_alone)

    def _start(self, claimed: DurableRun) -> None:
        task = asyncio.get_running_loop().create_task(self._do(claimed))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def _do(self, claimed: DurableRun) -> None:
        try:
            await carry_on(claimed, started=self._note)
        except Exception:
            # The lease lapses, and the run is done by whoever claims it then.
            logger.exception("The run %s could not be done.", claimed.pk)
        finally:
            self._runs.pop(claimed.pk, None)
            self.done += 1

    def _note(self, run: Run) -> None:
        self._runs[run.uuid] = run
        if self._draining:
            run.leave()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        self._wake.set()

    async def _leave(self) -> None:
        """Let each run come to the end of its step; after the grace, leave it as it is."""
        for run in [*self._runs.values()]:
            run.leave()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self.grace)
        for run in [*self._runs.values()]:
            run.leave(now=True)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=SETTLE)
