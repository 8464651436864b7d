"""How much one process serves at once: requests that run an agent, and open streams.

Whatever is taken here is given back when the response is closed, did not come, or was lost
on its way through a middleware.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import wraps
from math import ceil
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeVar

from django.http.response import HttpResponseBase

from mlango.conf import settings
from mlango.core.memory import owner_key
from mlango.serve.problems import Problem

if TYPE_CHECKING:
    from mlango.serve.base import Visit

V = TypeVar("V", bound="Visit")

STREAM_RETRY_SECONDS = 5  # when to ask again for a stream; nobody knows when one ends


class Full(Exception):
    """There is no place, and none became free in time."""


class Places:
    """So many at once, and so many more who wait for a place, first come first served.

    They may come from different threads and event loops.
    """

    def __init__(self) -> None:
        # A response that was lost is released by the garbage collector: in any thread, also
        # in one that holds the lock.
        self._lock = RLock()
        self.taken = 0
        self._waiting: deque[Future[None]] = deque()

    async def enter(self, size: int, backlog: int, timeout: float) -> None:
        """Take a place; raise Full if too many wait, or after ``timeout`` seconds."""
        turn = self._come(size, backlog)
        if turn is None:
            return
        try:
            await asyncio.wait([asyncio.wrap_future(turn)], timeout=timeout)
        except BaseException:  # such as the client's leaving
            if not self._gone(turn):
                self.leave()
            raise
        if self._gone(turn):
            raise Full

    def leave(self) -> None:
        """Give a place to the next who waits, or free it."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set_result(None)
            else:
                self.taken -= 1

    def _come(self, size: int, backlog: int) -> Future[None] | None:
        """Take a place and return None, or return what tells that a place was given."""
        with self._lock:
            if self.taken < size:
                self.taken += 1
                return None
            if len(self._waiting) >= backlog:
                raise Full
            turn: Future[None] = Future()
            self._waiting.append(turn)
            return turn

    def _gone(self, turn: Future[None]) -> bool:
        """Wait no more; return whether that was in vain."""
        with self._lock:
            if turn.done():
                return False
            self._waiting.remove(turn)
            return True


class Streams:
    """How many streams are open, by user and by address."""

    def __init__(self) -> None:
        self._lock = RLock()  # as above
        self._open: Counter[tuple[str, str]] = Counter()

    def open(self, user: Any, address: str) -> Callable[[], None]:
        """Count a stream and return what counts it off; raise a Problem if there are too many."""
        keys = {"MAX_STREAMS_PER_USER": owner_key(user), "MAX_STREAMS_PER_IP": address}
        counted = [(name, key) for name, key in keys.items() if key]
        with self._lock:
            for name, key in counted:
                limit = getattr(settings, name)
                if limit is not None and self._open[name, key] >= limit:
                    raise too_many(name, limit)
            self._open.update(counted)
        return lambda: self._close(counted)

    def _close(self, counted: list[tuple[str, str]]) -> None:
        with self._lock:
            self._open.subtract(counted)
            for key in counted:
                if not self._open[key]:
                    del self._open[key]

    def __len__(self) -> int:
        return len(self._open)


runs = Places()
streams = Streams()


async def place() -> Callable[[], None]:
    """Take a place to run an agent, and return what gives it back; a Problem if none is free."""
    size = settings.MAX_CONCURRENT_REQUESTS
    if size is None:
        return lambda: None
    timeout = settings.REQUEST_QUEUE_TIMEOUT
    try:
        await runs.enter(size, settings.MAX_QUEUE_BACKLOG, timeout)
    except Full:
        raise busy(timeout) from None
    return runs.leave


async def admitted(
    answer: Callable[[V], Awaitable[HttpResponseBase]], visit: V
) -> HttpResponseBase:
    """Answer when there is a place to run an agent; raise a Problem if there is none."""
    release = await place()
    return await held(answer(visit), release)


def counted(
    answer: Callable[[V], Awaitable[HttpResponseBase]],
) -> Callable[[V], Awaitable[HttpResponseBase]]:
    """Count what ``answer`` returns among the open streams."""

    @wraps(answer)
    async def within(visit: V) -> HttpResponseBase:
        address = visit.request.META.get("REMOTE_ADDR") or ""
        close = streams.open(visit.user, address)
        return await held(answer(visit), close)

    return within


async def held(
    response: Awaitable[HttpResponseBase], release: Callable[[], None]
) -> HttpResponseBase:
    """Return the response, and release what it holds when it holds it no more."""
    try:
        answer = await response
    except BaseException:
        release()
        raise
    if answer.streaming:
        _at_end(answer, release)
    else:
        release()
    return answer


def _at_end(response: HttpResponseBase, release: Callable[[], None]) -> None:
    """Have ``release`` called once, when the response is closed or forgotten."""
    finalizer = weakref.finalize(response, release)
    finalizer.atexit = False
    response._resource_closers.append(finalizer)  # type: ignore[attr-defined]


def busy(timeout: float) -> Problem:
    """Return the Problem of a request for which there is no place."""
    return Problem(
        503,
        "Too many requests run at the same time (MAX_CONCURRENT_REQUESTS). Try again later.",
        headers={"Retry-After": str(max(1, ceil(timeout)))},
    )


def too_many(name: str, limit: int) -> Problem:
    """Return the Problem of one stream more than a setting allows."""
    whose = "You have" if name == "MAX_STREAMS_PER_USER" else "Your address has"
    return Problem(
        429,
        f"{whose} {limit} streams open already ({name}). Close one first.",
        headers={"Retry-After": str(STREAM_RETRY_SECONDS)},
    )
