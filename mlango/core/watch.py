"""Ends a run's wait for the outside world: after too long, when told to stop, or to look up.

One timer serves a whole run: it is set again when it fires, not for every chunk, and never
counts while the run waits for its reader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from math import inf
from time import monotonic
from typing import Any, TypeVar

T = TypeVar("T")

NEVER = inf  # a deadline that does not come


class Interrupted(Exception):
    """The wait was ended by abort() or by steer(now=True)."""

    def __init__(self, *, steered: bool = False) -> None:
        super().__init__()
        self.steered = steered


class TimedOut(Exception):
    """The wait took longer than allowed."""


class Watch:
    """Guards the waits of one run, which happen one after the other."""

    __slots__ = ("_deadline", "_loop", "_reason", "_task", "_timer", "_wake", "_when", "steerable")

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._deadline = NEVER
        self._timer: asyncio.TimerHandle | None = None
        self._when = NEVER  # when the timer fires
        self._reason: Exception | None = None
        self._wake: asyncio.Future[None] | None = None
        self.steerable = False

    def attach(self) -> None:
        """Take the running loop: the run belongs to it from now on."""
        self._loop = asyncio.get_running_loop()

    async def wait(self, awaitable: Awaitable[T], deadline: float = NEVER) -> T:
        """Await; raise TimedOut at ``deadline`` (of the monotonic clock) or Interrupted."""
        self._task = task = asyncio.current_task(self._loop)
        self._deadline = deadline
        if deadline < self._when:
            self._set_timer(deadline)
        try:
            return await awaitable
        except asyncio.CancelledError:
            reason, self._reason = self._reason, None
            if reason is None or task is None or task.uncancel() > 0:
                raise
            raise reason from None
        finally:
            if self._reason is not None and task is not None:
                task.uncancel()  # what was awaited swallowed the cancellation
            self._task = self._reason = None

    def _set_timer(self, deadline: float) -> None:
        assert self._loop is not None
        if self._timer is not None:
            self._timer.cancel()
        self._when = deadline
        self._timer = self._loop.call_later(deadline - monotonic(), self._look)

    def _look(self) -> None:
        self._timer, self._when = None, NEVER
        if self._task is None or self._deadline == NEVER:
            return
        if monotonic() < self._deadline:
            self._set_timer(self._deadline)
        else:
            self.end_wait(TimedOut())

    def end_wait(self, reason: Exception) -> None:
        """End the present wait with ``reason``, if there is one; only on the run's loop."""
        if self._task is not None and self._reason is None:
            self._reason = reason
            self._task.cancel()

    # -- waking, from any thread ----------------------------------------------------------

    def waker(self) -> asyncio.Future[None]:
        """Return a future that the next wake() completes."""
        assert self._loop is not None
        if self._wake is None or self._wake.done():
            self._wake = self._loop.create_future()
        return self._wake

    def wake(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def call_soon(self, callback: Callable[[], Any]) -> None:
        """Call back on the run's loop and wake the run; at once when already there."""
        if self._loop is None or self._loop.is_closed():
            callback()
            return
        try:
            here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            here = False
        if here:
            callback()
            self.wake()
        else:
            self._loop.call_soon_threadsafe(self._call_and_wake, callback)

    def _call_and_wake(self, callback: Callable[[], Any]) -> None:
        callback()
        self.wake()

    def wake_soon(self) -> None:
        self.call_soon(lambda: None)

    def end_soon(self, reason: Exception) -> None:
        """End the present wait with ``reason``, from any thread."""
        self.call_soon(lambda: self.end_wait(reason))

    def interrupt_soon(self) -> None:
        """End the present wait with Interrupted."""
        self.end_soon(Interrupted())

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
