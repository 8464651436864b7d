"""What stands between an ASGI server and Django: ``application = Guard(get_asgi_application())``.

Django reads a request to its end before any view can refuse it, and learns nothing of the
end of its process.
"""

from __future__ import annotations

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

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class Guard:
    """Ends the body of a request to an agent where MAX_HTTP_BODY_BYTES does.

    The bodies of a site's other views are none of its business. It also notices SIGTERM, on
    which ``/healthz`` turns red.
    """

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        drain.watch()
        limit = settings.MAX_HTTP_BODY_BYTES
        if scope["type"] != "http" or limit is None:
            await self._application(scope, receive, send)
            return
        body = Body(scope, receive, limit)
        await self._application(scope, body.receive, send)
        if body.is_refused:
            await refuse(too_large(limit), scope, send)


class Body:
    """Passes a body on up to its limit, as though the client had left there."""

    def __init__(self, scope: Scope, receive: Receive, limit: int) -> None:
        self._scope = scope
        self._receive = receive
        self._limit: float = limit
        self._size = 0
        self.is_refused = False

    async def receive(self) -> Message:
        message = await self._receive()
        self._size += len(message.get("body") or b"")
        if self._size > self._limit:
            if is_for_agent(self._scope):
                self.is_refused = True
                return {"type": "http.disconnect"}
            self._limit = float("inf")
        return message


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
