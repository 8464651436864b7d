"""Joins what comes faster than it need be sent; a write costs more than what is in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

# What comes so soon after a write goes out with the next. A single model is hardly ever that
# fast; with many streams in a process it saves most of the writes.
TOGETHER_SECONDS = 0.02
MAX_FRAMES = 64  # so many wait for a slow client before their source has to

Source = AsyncGenerator[Any]
Frame = Callable[[Any], bytes]


async def batched(source: Source, frame: Frame, silence: float) -> AsyncGenerator[bytes]:
    """Yield what comes as frames, joined; empty bytes after ``silence`` seconds without any.

    An item may have an empty frame, of which nothing is sent.
    """
    ahead = Ahead(source, frame)
    try:
        while (batch := await ahead.next(silence)) is not None:
            yield batch
    finally:
        await ahead.close()


class Ahead:
    """Reads a source in a task of its own, a little further than its client has read."""

    def __init__(self, source: Source, frame: Frame) -> None:
        self._source = source
        self._frame = frame
        self._ready: list[bytes] = []
        self._loop = asyncio.get_running_loop()
        self._sent = 0.0
        self._enough = 1  # frames that end the wait of next()
        self._wait: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._task = asyncio.create_task(self._read())
        self._task.add_done_callback(self._wake)

    async def next(self, silence: float) -> bytes | None:
        """Return what has come, joined; nothing if silence was long, None after the last."""
        left = self._sent + TOGETHER_SECONDS - self._loop.time()
        if left > 0:
            await self._until(MAX_FRAMES, left)
        if not self._ready:
            await self._until(1, silence)
        batch = b"".join(self._ready)
        self._ready.clear()
        _set(self._room)
        self._sent = self._loop.time()
        if batch or not self._task.done():
            return batch
        self._task.result()
        return None

    async def close(self) -> None:
        """Leave the source, and wait until it has ended."""
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _until(self, enough: int, seconds: float) -> None:
        """Wait for so many frames, for the end, or for so many seconds."""
        if len(self._ready) >= enough or self._task.done():
            return
        self._enough = enough
        self._wait = self._loop.create_future()
        timer = self._loop.call_later(seconds, _set, self._wait)
        try:
            await self._wait
        finally:
            timer.cancel()
            self._wait = None

    async def _read(self) -> None:
        ready, frame = self._ready, self._frame
        async with aclosing(self._source) as source:
            async for item in source:
                if data := frame(item):
                    ready.append(data)
                if len(ready) >= self._enough:
                    self._wake()
                    if len(ready) >= MAX_FRAMES:
                        self._room = self._loop.create_future()
                        await self._room

    def _wake(self, task: asyncio.Task[None] | None = None) -> None:
        _set(self._wait)


def _set(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)
