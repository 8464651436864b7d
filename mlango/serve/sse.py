"""The endpoint that answers with the run's events, as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING

from django.http import StreamingHttpResponse

from mlango.core.events import Event
from mlango.core.threads import in_thread
from mlango.core.values import encode
from mlango.serve.base import Ask, View, view
from mlango.serve.limits import counted
from mlango.serve.renderers import EventStreamRenderer

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
    return view(counted(answer), agent, policy, (EventStreamRenderer,))


async def answer(ask: Ask) -> StreamingHttpResponse:
    """Return the events; the run begins with the first that is read."""
    if ask.is_async:
        return response(ask.agent.astream(ask.message, **ask.options))
    stream = await in_thread(ask.agent.stream, ask.message, **ask.options)
    return streaming(plain_frames_of(stream))


def response(stream: AsyncRunStream) -> StreamingHttpResponse:
    """Return the events of ``stream``; closing the response ends the run."""
    return streaming(Frames(stream))


def streaming(frames: Frames | Iterator[bytes]) -> StreamingHttpResponse:
    """Return a response of ``frames`` that nothing on the way holds back."""
    return StreamingHttpResponse(frames, content_type="text/event-stream", headers=HEADERS)


class Frames:
    """The frames of a run, and the end of the run when the response is closed.

    Django closes a response, but not the async generators that it and middleware put around
    its content: those are left to the garbage collector.
    """

    def __init__(self, stream: AsyncRunStream) -> None:
        self._frames = frames_of(stream)
        self._loop = asyncio.get_running_loop()
        self._closing: asyncio.Task[None] | None = None

    def __aiter__(self) -> AsyncGenerator[bytes]:
        return self._frames

    def close(self) -> None:
        """End the run if it still goes on; may be called from any thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._close)

    def _close(self) -> None:
        self._closing = self._loop.create_task(self._frames.aclose())


def frame(event: Event) -> bytes:
    """Return an event as it goes over the wire; JSON text holds no line breaks."""
    data = encode(event.describe())
    # Sub-agents count their events for themselves, so only the run's own have an id.
    number = f"id: {event.seq}\n" if event.parent is None else ""
    return f"{number}event: {event.kind}\ndata: {data}\n\n".encode()


def plain_frames_of(stream: RunStream) -> Iterator[bytes]:
    """Yield the events of a run; without heartbeats, for which a thread would be needed."""
    with stream:
        for event in stream:
            yield frame(event)


async def frames_of(stream: AsyncRunStream) -> AsyncGenerator[bytes]:
    """Yield the events of a run, and heartbeats while nothing happens."""
    # Under middleware without async the view, and the thread that waited for it, are over.
    stream.enter_context()
    async with aclosing(stream):
        while True:
            following = asyncio.ensure_future(next_of(stream))
            try:
                while not await is_done(following):
                    yield HEARTBEAT
                event = following.result()
            finally:
                await stopped(following)
            if event is None:
                return
            yield frame(event)


async def next_of(stream: AsyncRunStream) -> Event | None:
    """Return the next event; None after the last."""
    return await anext(stream, None)


async def is_done(following: asyncio.Future[Event | None]) -> bool:
    """Wait for an event; return whether it came before the next heartbeat is due."""
    done, _ = await asyncio.wait([following], timeout=HEARTBEAT_SECONDS)
    return bool(done)


async def stopped(following: asyncio.Future[Event | None]) -> None:
    """End the wait for an event if the reader has left; the run stores itself on the way."""
    if not following.done():
        following.cancel()
        await asyncio.wait([following])
