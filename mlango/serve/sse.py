"""The endpoint that answers with the run's events, as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING

from django.http import StreamingHttpResponse
from django.http.response import HttpResponseBase

from mlango.agents.requests import is_durable
from mlango.core.events import Event
from mlango.core.log import Places
from mlango.core.threads import in_thread
from mlango.runtime.following import Reader
from mlango.serve.base import Ask, View, view
from mlango.serve.direct import streams
from mlango.serve.events import followed_by
from mlango.serve.json import begun
from mlango.serve.limits import counted
from mlango.serve.renderers import EventStreamRenderer
from mlango.serve.streaming import Frames, frame, streaming, with_heartbeats
from mlango.serve.wire import text_of

if TYPE_CHECKING:
    from mlango.agents.agent import Agent
    from mlango.agents.streams import AsyncRunStream, RunStream
    from mlango.serve.policy import Policy


def endpoint(agent: Agent, policy: Policy) -> View:
    """Return a view that runs ``agent`` and answers with its events as they happen."""
    renderers = (EventStreamRenderer,)
    return streams(view(counted(answer), agent, policy, renderers, kind="stream"), "POST")


async def answer(ask: Ask) -> HttpResponseBase:
    """Return the events; a run that is not durable begins with the first that is read."""
    if is_durable(ask.agent, ask.options) and (uuid := await begun(ask)) is not None:
        return await followed_by(ask, Reader(uuid))
    if ask.is_async:
        return response(ask.agent.astream(ask.message, **ask.options))
    stream = await in_thread(ask.agent.stream, ask.message, **ask.options)
    return streaming(plain_frames_of(stream.keep_log()))


def response(stream: AsyncRunStream) -> StreamingHttpResponse:
    """Return the events of ``stream``; closing the response ends the run."""
    return streaming(Frames(frames_of(stream.keep_log())))


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
