"""The endpoint that answers with the run's events, as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING

from django.http import StreamingHttpResponse

from mlango.core.events import Event
from mlango.core.log import Cursor, Places
from mlango.core.threads import in_thread
from mlango.serve.base import Ask, View, view
from mlango.serve.batches import Frame, Source, batched
from mlango.serve.direct import streams
from mlango.serve.limits import counted
from mlango.serve.renderers import EventStreamRenderer
from mlango.serve.wire import text_of

if TYPE_CHECKING:
    from mlango.agents.agent import Agent
    from mlango.agents.streams import AsyncRunStream, RunStream
    from mlango.serve.policy import Policy

# Proxies close a connection on which nothing was said for a minute, some for half of one.
HEARTBEAT_SECONDS = 15.0
HEARTBEAT = b": \n\n"
HEADERS = {
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
    # GZipMiddleware would hold the events back until it has a block of them.
    "Content-Encoding": "identity",
}


def endpoint(agent: Agent, policy: Policy) -> View:
    """Return a view that runs ``agent`` and answers with its events as they happen."""
    renderers = (EventStreamRenderer,)
    return streams(view(counted(answer), agent, policy, renderers, kind="stream"), "POST")


async def answer(ask: Ask) -> StreamingHttpResponse:
    """Return the events; the run begins with the first that is read."""
    if ask.is_async:
        return response(ask.agent.astream(ask.message, **ask.options))
    stream = await in_thread(ask.agent.stream, ask.message, **ask.options)
    return streaming(plain_frames_of(stream.keep_log()))


def response(stream: AsyncRunStream) -> StreamingHttpResponse:
    """Return the events of ``stream``; closing the response ends the run."""
    return streaming(Frames(frames_of(stream.keep_log())))


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


def framed(event: Event, places: Places) -> bytes:
    """Return the frame of the next event of a run."""
    return frame(places.of(event), event.kind, text_of(event))


def plain_frames_of(stream: RunStream) -> Iterator[bytes]:
    """Yield the events of a run; without heartbeats, for which a thread would be needed."""
    places = Places(stream.uuid)
    with stream:
        for event in stream:
            yield framed(event, places)


async def frames_of(stream: AsyncRunStream) -> AsyncGenerator[bytes]:
    """Yield the events of a run, joined, and heartbeats while nothing happens."""
    # Under middleware without async the view, and the thread that waited for it, are over.
    stream.enter_context()
    places = Places(stream.uuid)
    async with aclosing(with_heartbeats(aiter(stream), lambda e: framed(e, places))) as frames:
        async for each in frames:
            yield each


async def with_heartbeats(source: Source, frame: Frame) -> AsyncGenerator[bytes]:
    """Yield what ``source`` yields as frames, and a heartbeat when none came for a while."""
    async with aclosing(batched(source, frame, HEARTBEAT_SECONDS)) as batches:
        async for batch in batches:
            yield batch or HEARTBEAT
