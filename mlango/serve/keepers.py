"""Threads that ask the database for many requests in turn, on connections that they keep."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, Future
from contextlib import asynccontextmanager
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from asgiref.sync import ThreadSensitiveContext

from mlango.runtime.sync import close_all_connections, fulfil, keep_connections
from mlango.runtime.writer import KEEP, keeps

T = TypeVar("T")

COUNT = 4


class Keeper(Executor):
    """One thread, and for how many it works.

    The thread itself closes its connection when nothing came for a while: an event loop, whose
    timer could, may end before.
    """

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], Any]] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self.load = 0

    @asynccontextmanager
    async def works(self) -> AsyncIterator[None]:
        """Have what asks the database in this block do so in the keeper's thread."""
        self.load += 1
        try:
            async with ThreadSensitiveContext(executor=self):
                yield
        finally:
            self.load -= 1
            if self.load == 0 and not keeps():
                await asyncio.wrap_future(self.submit(close_all_connections))

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            self._work.put(partial(fulfil, future, fn, *args, **kwargs))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._keep, name="mlango-keeper", daemon=True
                )
                self._thread.start()
        return future

    def _keep(self) -> None:
        keep_connections()
        while work := self._next():
            work()
            del work  # and what it holds, such as a request

    def _next(self) -> Callable[[], Any] | None:
        """Return what is to be done; None, with the connection closed, if that is nothing."""
        try:
            return self._work.get(timeout=KEEP)
        except Empty:
            close_all_connections()
        with self._lock:
            if not self._work.empty():
                return self._work.get()
            self._thread = None
            return None


class Keepers:
    """Gives work to the keeper that has the least of it."""

    def __init__(self) -> None:
        self._keepers = [Keeper() for _ in range(COUNT)]

    def next(self) -> Keeper:
        """Return the keeper with the least work."""
        return min(self._keepers, key=lambda keeper: keeper.load)
