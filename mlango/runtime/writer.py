"""The thread that writes the rows of all runs of this process.

Runs leave what is to be written in a queue and go on. The thread takes all that waits there
into one transaction, so that many runs share a commit, a connection and its errors: a row that
the database refuses does not take others with it.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from itertools import chain
from time import sleep
from typing import Any

from django.core import mail
from django.db import DatabaseError, InterfaceError, OperationalError, connections

from mlango.runtime.writes import Packet, Rows, Write, execute, made

logger = logging.getLogger("mlango.traces")

GROUP = 512  # rows in one transaction
LINGER = 0.05  # seconds to let a group gather while nobody waits for it
KEEP = 1.0  # seconds that a connection stays open with nothing to do, whatever CONN_MAX_AGE
MAX_QUEUED = 20_000  # rows; a run that cannot add more loses them
CROWDED = 2_000  # rows from which on runs wait at the end of each step
RETRIES = (0.05, 0.2, 0.5, 1.0)  # seconds to wait after an error that may pass
FLUSH_TIMEOUT = 5.0


class Errand:
    """Something to do on the writer's connection, for someone who waits for it."""

    __slots__ = ("alias", "error", "function", "result", "tell")

    def __init__(
        self, alias: str, function: Callable[[], Any] | None, tell: Callable[[Errand], None]
    ) -> None:
        self.alias = alias
        self.function = function
        self.tell = tell
        self.result: Any = None
        self.error: Exception | None = None

    def run(self) -> None:
        if self.function is not None:
            self.result = self.function()


def _tell(future: Future[Any], errand: Errand) -> None:
    """Wake the thread that waits, unless it has left."""
    if not future.set_running_or_notify_cancel():
        return
    if errand.error is not None:
        future.set_exception(errand.error)
    else:
        future.set_result(errand.result)


def _wake(loop: asyncio.AbstractEventLoop, done: asyncio.Future[None], errand: Errand) -> None:
    """Wake the task that waits, unless it has left."""

    def wake() -> None:
        if not done.done():
            done.set_result(None)

    with suppress(RuntimeError):  # its loop is closed
        loop.call_soon_threadsafe(wake)


Job = Write | Packet | Errand


class Writer:
    """The queue and its thread, which starts at first use and again after a fork."""

    def __init__(self, name: str = "mlango-writer") -> None:
        self._name = name
        self._reset()
        os.register_at_fork(after_in_child=self._reset)
        atexit.register(self.close)

    def _reset(self) -> None:
        """Begin anew. What a parent process has queued is written by the parent."""
        self._changed = threading.Condition()
        self._queue: deque[Job] = deque()
        self._thread: threading.Thread | None = None
        self._runs = 0
        self._is_awake = False
        self._urgent = False
        self._ending = False
        self._down = False

    # -- for runs, from any thread ----------------------------------------------------------

    def enter(self) -> None:
        """Note that a run begins: the connection stays open until all have left."""
        with self._changed:
            self._runs += 1

    def leave(self) -> None:
        """Note that a run has ended."""
        with self._changed:
            self._runs -= 1

    @property
    def crowded(self) -> bool:
        """Whether rows come faster than the database takes them."""
        return len(self._queue) > CROWDED

    def put(self, write: Write | Packet) -> bool:
        """Queue a row, or some that belong together; return False if there are too many."""
        if len(self._queue) >= MAX_QUEUED:
            return False
        # Without the lock: the thread says that it sleeps before it looks into the queue.
        self._queue.append(write)
        if not self._is_awake:
            self._wake()
        return True

    def send(self, alias: str = "", function: Callable[[], Any] | None = None) -> Future[Any]:
        """Return a future that is done when all that was queued before is written.

        With a function, it is the future of its result; it is called in the writer's thread,
        and again after an error of the database ``alias`` that may pass.
        """
        future: Future[Any] = Future()
        self._send(Errand(alias, function, partial(_tell, future)))
        return future

    async def saved(self, timeout: float) -> bool:
        """Wait until all is written; return False if that takes longer than ``timeout``."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._send(Errand("", None, partial(_wake, loop, done)))
        try:
            async with asyncio.timeout(timeout):
                await done
        except TimeoutError:
            return False
        return True

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all is written; return False if that takes longer than ``timeout``.

        It blocks the thread, so event loops must not call it.
        """
        if self._thread is None:
            return True
        try:
            self.send().result(timeout)
        except TimeoutError:
            return False
        return True

    def close(self, timeout: float = FLUSH_TIMEOUT) -> None:
        """Write all, close the connection and end the thread; the next use starts it again."""
        thread = self._thread
        if thread is None:
            return
        self.flush(timeout)
        with self._changed:
            self._ending = True
            self._changed.notify()
        thread.join(timeout)
        with self._changed:
            self._ending = False

    def _send(self, errand: Errand) -> None:
        with self._changed:
            self._urgent = True
            self._queue.append(errand)
            self._wake()

    def _wake(self) -> None:
        with self._changed:
            self._is_awake = True
            self._changed.notify()
            if self._thread is None:
                work = self._work
                self._thread = threading.Thread(target=work, name=self._name, daemon=True)
                self._thread.start()

    # -- in the writer's thread ---------------------------------------------------------------

    def _work(self) -> None:
        try:
            while jobs := self._take():
                self._do(jobs)
                del jobs  # and the runs that they hold
        finally:
            with self._changed:
                if self._thread is threading.current_thread():  # something ended it early
                    self._thread, self._is_awake = None, False
            connections.close_all()

    def _do(self, jobs: list[Job]) -> None:
        errands = [job for job in jobs if isinstance(job, Errand)]
        try:
            self._store([job for job in jobs if not isinstance(job, Errand)])
            for errand in errands:
                errand.error = self._try(errand.alias, errand.run)
            if not keeps():
                self._rest()
        except Exception:
            logger.exception("Traces were lost.")
        finally:
            for errand in errands:
                errand.tell(errand)

    def _take(self) -> list[Job]:
        """Wait for jobs and take them; an empty list means the end."""
        with self._changed:
            is_idle = not self._wait(KEEP)
        if is_idle:
            self._rest()
        with self._changed:
            self._wait()
            if self._queue and not self._urgent:
                self._changed.wait(LINGER)
            jobs = [self._queue.popleft() for _ in range(min(len(self._queue), GROUP))]
            self._urgent = self._urgent and bool(self._queue)
            if not jobs:
                self._thread = None  # under the lock, so that the next job starts another
            return jobs

    def _wait(self, timeout: float | None = None) -> bool:
        """Wait for a job or the end; return False if neither comes in time."""
        self._is_awake = False
        came = self._changed.wait_for(lambda: self._queue or self._ending, timeout)
        self._is_awake = bool(self._queue)
        return bool(came)

    def _store(self, jobs: list[Write | Packet]) -> None:
        units = [job.writes if isinstance(job, Packet) else [job] for job in jobs]
        for alias in dict.fromkeys(unit[0].alias for unit in units):
            rows = [made(unit) for unit in units if unit[0].alias == alias]
            if any(rows):
                self._store_in(alias, [unit for unit in rows if unit])

    def _store_in(self, alias: str, units: list[Rows]) -> None:
        rows = list(chain.from_iterable(units))
        error = self._try(alias, lambda: execute(alias, rows))
        if error is None:
            return
        if len(rows) == 1 or (may_pass(alias, error) and not self._is_up(alias)):
            for write, _ in rows:
                write.source.failed(write.statement, error)
            return
        for unit in units:
            self._store_alone(alias, unit)

    def _store_alone(self, alias: str, unit: Rows) -> None:
        write = unit[0][0]
        if write.source.lost:
            return
        try:
            execute(alias, unit)
        except Exception as error:  # noqa: BLE001 - best effort: this row is the bad one
            if len(unit) == 1:
                write.source.failed(write.statement, error)
                return
            for row in unit:
                self._store_alone(alias, [row])

    def _try(self, alias: str, function: Callable[[], None]) -> Exception | None:
        """Call a function, again after an error that may pass; return the last error.

        While the database is down there is one attempt for each group.
        """
        for delay in (*(() if self._down else RETRIES), None):
            try:
                function()
            except Exception as error:  # noqa: BLE001 - best effort: runs go on without rows
                failure = error
            else:
                self._down = False
                return None
            if not may_pass(alias, failure):
                break
            connections[alias].close()
            if delay is not None:
                sleep(delay)
        return failure

    def _is_up(self, alias: str) -> bool:
        """Return whether the database answers, so that an error must be due to a row."""
        connection = connections[alias]
        try:
            connection.ensure_connection()
            self._down = connection.vendor == "sqlite" or not connection.is_usable()
        except DatabaseError:
            self._down = True
        return not self._down

    def _rest(self) -> None:
        """Give the connections back when there is nothing to do, as after a request."""
        with self._changed:
            idle = not self._queue and not self._runs
        if idle:
            for connection in connections.all(initialized_only=True):
                connection.close_if_unusable_or_obsolete()


def keeps() -> bool:
    """Return whether connections may outlast a run.

    Opening one costs as much as the rows of a run, but a test's database cannot be dropped
    while one is open.
    """
    return not hasattr(mail, "outbox")  # as Django's test environment leaves its mark


def may_pass(alias: str, error: BaseException) -> bool:
    """Return whether the same may succeed later: the database is away, busy or deadlocked."""
    if not isinstance(error, OperationalError | InterfaceError):
        return False
    # SQLite also tells of a missing table or a full disk by an OperationalError.
    return connections[alias].vendor != "sqlite" or "locked" in str(error)


writer = Writer()
