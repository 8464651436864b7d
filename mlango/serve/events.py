"""The endpoint that tells what a run has told, after any event, and then what it tells."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from django.http import HttpResponse
from django.http.response import HttpResponseBase

from mlango.core.log import BEGINNING, Told
from mlango.core.threads import in_thread
from mlango.models import Trace
from mlango.runtime import database
from mlango.runtime.following import (
    GRACE,
    Pause,
    Reader,
    afollowed,
    aknown,
    asker_of,
    followed,
    known,
)
from mlango.serve.base import View, Visit, visited
from mlango.serve.direct import streams
from mlango.serve.limits import counted
from mlango.serve.owned import own_trace
from mlango.serve.problems import Problem
from mlango.serve.renderers import EventStreamRenderer
from mlango.serve.streaming import HEARTBEAT, Frames, frame, streaming, with_heartbeats

if TYPE_CHECKING:
    from mlango.agents.agent import Agent
    from mlango.serve.policy import Policy

# Under WSGI a reader holds a worker, so it is sent away after a while and comes back.
WSGI_SECONDS = 25.0


def endpoint(agent: Agent | None, policy: Policy) -> View:
    """Return a view that tells the events of the runs of ``agent``, or of all, to their users."""
    renderers = (EventStreamRenderer,)
    checked = visited(
        counted(answer), agent, policy, ("GET",), renderer_classes=renderers, kind="events"
    )
    return streams(checked, "GET")


async def answer(visit: Visit) -> HttpResponseBase:
    """Return the events of the run that the URL names, behind the one that was read last."""
    after = cursor_of(visit)
    trace = await found(visit, GRACE if after else 0.0)
    return await followed_by(visit, Reader(trace.uuid, after))


async def found(visit: Visit, seconds: float) -> Trace:
    """Return the run that the URL names; a Problem if there is none after ``seconds``.

    Rows are written behind the run, so a reader whose stream broke may come back before its
    run's is there. A run of somebody else is waited for as one of nobody is, and tells as
    little.
    """
    ask = await asker_of(database.alias())
    deadline, pause = monotonic() + seconds, Pause()
    while True:
        try:
            return await ask(partial(own_trace, visit))  # type: ignore[no-any-return]
        except Problem:
            if monotonic() >= deadline:
                raise
        await asyncio.sleep(pause.next(came=False, rings=False))


async def followed_by(visit: Visit, reader: Reader) -> HttpResponseBase:
    """Return what a reader finds in the log of a run that the user may read."""
    if visit.is_async:
        ask = await asker_of(reader.alias)
        await aknown(reader, ask)
        if reader.cursor != BEGINNING and await ask(reader.is_at_end):
            return nothing_more()
        return streaming(Frames(frames_of(reader)))
    if await in_thread(is_at_end, reader):
        return nothing_more()
    return streaming(plain_frames_of(reader))


def cursor_of(visit: Visit) -> str | None:
    """Return the id of the event that was read last; the header goes before the URL."""
    header = visit.request.headers.get("Last-Event-ID", "")
    return header or visit.request.GET.get("after") or None


def is_at_end(reader: Reader) -> bool:
    """Wait until the log has come to the cursor; return whether nothing comes behind it."""
    known(reader)
    return reader.cursor != BEGINNING and reader.is_at_end()


def nothing_more() -> HttpResponse:
    """Return what tells an EventSource not to come back."""
    return HttpResponse(status=204)


def frames(told: list[Told]) -> bytes:
    """Return events as they go over the wire."""
    return b"".join(frame(each.cursor, each.kind, each.data) for each in told)


def frames_of(reader: Reader) -> AsyncGenerator[bytes]:
    """Yield the events of a run, and heartbeats while nothing happens."""
    return with_heartbeats(afollowed(reader), frames)


def plain_frames_of(reader: Reader) -> Iterator[bytes]:
    """Yield the events of a run for a while, and a heartbeat for each look that brings none."""
    for told in followed(reader, WSGI_SECONDS):
        yield frames(told) or HEARTBEAT
