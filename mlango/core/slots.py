"""How many tools may work at once in this process, over all runs.

A tool that blocks its thread keeps its slot until the thread is free, also when its run has
given it up: the number of busy threads stays bounded.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mlango.exceptions import ToolError


class Slots:
    """A counter with a queue of those who wait, of any event loop."""

    def __init__(self, limit: int | None = 64) -> None:
        self.limit = limit
        self.taken = 0
        self._lock = threading.Lock()
        self._waiting: deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = deque()

    def take(self) -> bool:
        """Take a slot if one is free."""
        with self._lock:
            if self.limit is None or self.taken < self.limit:
                self.taken += 1
                return True
            return False

    async def wait(self, name: str, seconds: float | None) -> None:
        """Take a slot; raise ToolError when none gets free in ``seconds``."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        with self._lock:
            self._waiting.append((loop, future))
        try:
            async with asyncio.timeout(seconds):
                await future
        except BaseException as error:
            self._leave(loop, future)
            if not isinstance(error, TimeoutError):
                raise
            raise ToolError(
                f"The tool {name!r} was not started: all {self.limit} places were taken for "
                f"{seconds:g} seconds. Try again later."
            ) from None

    def _leave(self, loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
        with self._lock:
            if (loop, future) in self._waiting:
                self._waiting.remove((loop, future))
        if future.done() and not future.cancelled():  # handed over too late
            self.free()

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Let others have the slot that the caller holds while it waits for them."""
        self.free()
        try:
            yield
        finally:
            with self._lock:
                self.taken += 1  # without a wait: it is free again in a moment

    def once(self) -> Callable[[], None]:
        """Return a function that gives one slot back, once, from any thread."""
        held = [True]

        def free() -> None:
            with self._lock:
                is_held = bool(held) and held.pop()
            if is_held:
                self.free()

        return free

    def free(self) -> None:
        """Give a slot back, to the one who has waited longest."""
        with self._lock:
            while self._waiting:
                loop, future = self._waiting.popleft()
                if not loop.is_closed():
                    loop.call_soon_threadsafe(_hand, future, self)
                    return
            self.taken -= 1


def _hand(future: asyncio.Future[None], owner: Slots) -> None:
    if future.cancelled():
        owner.free()
    else:
        future.set_result(None)


slots = Slots()
