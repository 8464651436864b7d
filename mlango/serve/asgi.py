"""What stands between an ASGI server and Django: ``application = Guard(get_asgi_application())``.

Django reads a request to its end before any view can refuse it, and learns nothing of the
end of its process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from io import BytesIO
from typing import Any

from django.core.handlers.asgi import ASGIRequest, get_script_prefix
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import Resolver404, resolve

from mlango.conf import settings
from mlango.serve.body import too_large
from mlango.serve.cors import share
from mlango.serve.drain import drain
from mlango.serve.problems import Problem
from mlango.serve.streaming import hurried

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class Guard:
    """Ends the body of a request to an agent where MAX_HTTP_BODY_BYTES does.

    The bodies of a site's other views are none of its business. It drops who takes nothing of
    a stream of events, for no handler would, and notices SIGTERM, on which ``/healthz`` turns
    red.
    """

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        drain.watch()
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        limit = settings.MAX_HTTP_BODY_BYTES
        exchange = Exchange(scope, receive, send, limit)
        await self._application(scope, exchange.receive, exchange.send)
        if exchange.is_refused:
            await refuse(too_large(limit), scope, send)


class Exchange:
    """Passes a body on up to its limit, and events to who takes them, as though the client
    had left there."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, limit: int | None) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._limit = float("inf") if limit is None else limit
        self._size = 0
        self._listener: asyncio.Task[Any] | None = None
        self._is_stream = self._is_dropped = False
        self.is_refused = False

    async def receive(self) -> Message:
        message = await self._listen()
        self._size += len(message.get("body") or b"")
        if self._size > self._limit:
            if is_for_agent(self._scope):
                self.is_refused = True
                return {"type": "http.disconnect"}
            self._limit = float("inf")
        return message

    async def _listen(self) -> Message:
        """Return what the client says; that it has left, once it is dropped."""
        if self._is_dropped:
            return {"type": "http.disconnect"}
        self._listener = asyncio.current_task()
        try:
            return await self._receive()
        except asyncio.CancelledError:
            if not self._is_dropped:
                raise
            self._listener.uncancel()
            return {"type": "http.disconnect"}
        finally:
            self._listener = None

    async def send(self, message: Message) -> None:
        if not self._is_stream:
            self._is_stream = tells_events(message)
            await self._send(message)
            return
        with hurried(self._drop):
            await self._send(message)

    def _drop(self) -> None:
        """Have the handler know that the client has left, as good as."""
        self._is_dropped = True
        if self._listener is not None:
            self._listener.cancel()


def tells_events(message: Message) -> bool:
    """Return whether a stream of events begins."""
    headers = message.get("headers") or ()
    return any(
        name.lower() == b"content-type" and value.startswith(b"text/event-stream")
        for name, value in headers
    )


def is_for_agent(scope: Scope) -> bool:
    """Return whether a view of mlango would answer a request."""
    prefix = get_script_prefix(scope).rstrip("/")
    try:
        match = resolve(scope["path"].removeprefix(prefix))
    except Resolver404:
        return False
    return match.func.__module__.partition(".")[0] == "mlango"


async def refuse(problem: Problem, scope: Scope, send: Send) -> None:
    """Answer that a request is wrong, before the rest of it was read."""
    response = readable(problem, ASGIRequest(scope, BytesIO()))
    response["Content-Length"] = str(len(response.content))
    response["Connection"] = "close"
    await send_whole(response, send)


def readable(problem: Problem, request: HttpRequest) -> Any:
    """Return a problem as an answer that pages of allowed origins may read."""
    return share(request, problem.response())


async def send_whole(response: Any, send: Send) -> None:
    """Send a response that is all there."""
    await send(start_of(response))
    await send({"type": "http.response.body", "body": response.content})


def start_of(response: HttpResponseBase) -> Message:
    """Return the head of a response, as a server takes it."""
    headers = [
        (name.lower().encode(), value.encode("latin-1")) for name, value in response.items()
    ]
    headers += [(b"set-cookie", c.OutputString().encode()) for c in response.cookies.values()]
    return {"type": "http.response.start", "status": response.status_code, "headers": headers}
