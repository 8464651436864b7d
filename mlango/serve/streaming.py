"""Server-sent events on their way to a client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any

from django.http import StreamingHttpResponse

from mlango.conf import settings
from mlango.core.log import Cursor
from mlango.serve.batches import Frame, Source, batched

# Proxies close a connection on which nothing was said for a minute, some for half of one.
HEARTBEAT_SECONDS = 15.0
HEARTBEAT = b": \n\n"
HEADERS = {
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
    # GZipMiddleware would hold the events back until it has a block of them.
    "Content-Encoding": "identity",
}


def streaming(frames: Frames | Iterator[bytes]) -> StreamingHttpResponse:
    """Return a response of ``frames`` that nothing on the way holds back."""
    return StreamingHttpResponse(frames, content_type="text/event-stream", headers=HEADERS)


class Frames:
    """Frames, whose source is closed with the response: a run ends, a reader leaves.

    Django closes a response, but not the async generators that it and middleware put around
    its content: those are left to the garbage collector.
    """

    def __init__(self, frames: AsyncGenerator[bytes]) -> None:
        self._frames = frames
        self._loop = asyncio.get_running_loop()
        self._closing: asyncio.Task[None] | None = None

    def __aiter__(self) -> AsyncGenerator[bytes]:
        return self._frames

    def close(self) -> None:
        """Close the source if it still goes on; may be called from any thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._close)

    def _close(self) -> None:
        self._closing = self._loop.create_task(self._frames.aclose())


def frame(cursor: Cursor, kind: str, data: str) -> bytes:
    """Return an event as it goes over the wire; JSON text holds no line breaks."""
    return f"id: {cursor}\nevent: {kind}\ndata: {data}\n\n".encode()


async def with_heartbeats(source: Source, frame: Frame) -> AsyncGenerator[bytes]:
    """Yield what ``source`` yields as frames, and a heartbeat when none came for a while."""
    async with aclosing(batched(source, frame, HEARTBEAT_SECONDS)) as batches:
        async for batch in batches:
            yield batch or HEARTBEAT


@contextmanager
def hurried(drop: Callable[[], Any]) -> Iterator[None]:
    """Call ``drop`` if the client does not take in time what is sent in this block."""
    seconds = settings.STREAM_SEND_TIMEOUT
    if seconds is None:
        yield
        return
    timer = asyncio.get_running_loop().call_later(seconds, drop)
    try:
        yield
    finally:
        timer.cancel()
