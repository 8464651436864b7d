"""Requests made from an ASGI scope, where Django's handler and middleware do not make them."""

from __future__ import annotations

from collections.abc import MutableMapping
from functools import cache
from io import BytesIO
from typing import IO, Any

from django.conf import settings
from django.contrib.auth.middleware import AuthenticationMiddleware
from django.contrib.sessions.middleware import SessionMiddleware
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse

Scope = MutableMapping[str, Any]

SCHEMES = {"ws": "http", "wss": "https"}


def request_of(scope: Scope, body: IO[bytes] | None = None) -> ASGIRequest:
    """Return the request of a connection, with its session and its user, read when asked for.

    A user that an application further out has put into the scope goes before the session's.
    """
    request = ASGIRequest(_as_http(scope), body or BytesIO())
    sessions(settings.SESSION_ENGINE).process_request(request)
    if "user" in scope:
        request.user = scope["user"]
    else:
        _users.process_request(request)
    return request


def _as_http(scope: Scope) -> Scope:
    """Return the scope of the request that a WebSocket begins with."""
    if scope["type"] == "http":
        return scope
    scheme = SCHEMES.get(scope.get("scheme", "ws"), "http")
    return {**scope, "type": "http", "method": "GET", "scheme": scheme}


def nothing(request: HttpRequest) -> HttpResponse:
    """Stand where middleware expects the rest of the site."""
    return HttpResponse()


@cache
def sessions(engine: str) -> SessionMiddleware:
    """Return what reads and stores sessions by ``settings.SESSION_ENGINE``."""
    return SessionMiddleware(nothing)


_users = AuthenticationMiddleware(nothing)
