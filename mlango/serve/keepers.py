"""Threads that ask the database for many requests in turn, on connections that they keep."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager

from asgiref.sync import ThreadSensitiveContext

from mlango.runtime.sync import close_all_connections, keep_connections

COUNT = 4
KEEP_SECONDS = 1.0  # that a connection stays open with nothing to do, whatever CONN_MAX_AGE


class Keeper:
    """One thread, and for how many it works."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(
            1, thread_name_prefix="mlango-keeper", initializer=keep_connections
        )
        self._timer: asyncio.TimerHandle | None = None
        self.load = 0

    @asynccontextmanager
    async def works(self) -> AsyncIterator[None]:
        """Have what asks the database in this block do so in the keeper's thread."""
        self.load += 1
        try:
            async with ThreadSensitiveContext(executor=self._executor):
                yield
        finally:
            self.load -= 1
            self._rest()

    def _rest(self) -> None:
        """Close the connection in a while, unless there is work again before."""
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(KEEP_SECONDS, self._close)

    def _close(self) -> Future[None]:
        return self._executor.submit(close_all_connections)

    async def close(self) -> None:
        """Close the connection now."""
        if self._timer is not None:
            self._timer.cancel()
            await asyncio.wrap_future(self._close())


class Keepers:
    """Gives work to the keeper that has the least of it."""

    def __init__(self) -> None:
        self._keepers = [Keeper() for _ in range(COUNT)]

    def next(self) -> Keeper:
        """Return the keeper with the least work."""
        return min(self._keepers, key=lambda keeper: keeper.load)

    async def close(self) -> None:
        """Close the connections of all."""
        for keeper in self._keepers:
            await keeper.close()
