"""Which agent a WebSocket talks with: ``websockets([path("ws/", Support.as_consumer())])``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from channels.routing import URLRouter
from django.urls import re_path

from mlango.serve.asgi import Application, Receive, Scope, Send
from mlango.serve.consumer import deny
from mlango.serve.problems import Problem


def websockets(routes: Iterable[Any]) -> Application:
    """Return an application that answers WebSockets at ``routes``, and refuses all others.

    Channels' own router raises for those, of which any visitor can fill a log.
    """
    rest = re_path("", nowhere)  # type: ignore[arg-type]  # Channels routes to applications
    router: Application = URLRouter([*routes, rest])
    return router


async def nowhere(scope: Scope, receive: Receive, send: Send) -> None:
    """Refuse a socket to a path that has none."""
    await receive()  # that it wants to be opened, which some servers insist on
    await deny(Problem(404, "There is no WebSocket at this address."), scope, send)
