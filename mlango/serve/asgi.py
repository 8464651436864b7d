"""What stands between an ASGI server and Django: ``application = Guard(get_asgi_application())``.

Django reads a request to its end before any view can refuse it, and learns nothing of the
end of its process.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from django.core.handlers.asgi import get_script_prefix
from django.urls import Resolver404, resolve

from mlango.conf import settings
from mlango.serve.body import too_large
from mlango.serve.drain import drain
from mlango.serve.problems import CONTENT_TYPE

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
            await refuse(limit, send)


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


async def refuse(limit: int, send: Send) -> None:
    """Answer that a body is too large, and that the rest of it will not be read."""
    problem = too_large(limit)
    response = problem.response()
    await send(
        {
            "type": "http.response.start",
            "status": response.status_code,
            "headers": [
                (b"content-type", CONTENT_TYPE.encode()),
                (b"content-length", str(len(response.content)).encode()),
                (b"connection", b"close"),
            ],
        }
    )
    await send({"type": "http.response.body", "body": response.content})
