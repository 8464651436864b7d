"""Requests made from an ASGI scope, where Django's handler and middleware do not make them."""

from __future__ import annotations

from collections.abc import MutableMapping
from io import BytesIO
from typing import IO, Any

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
    SessionMiddleware(nothing).process_request(request)
    if "user" in scope:
        request.user = scope["user"]
    else:
        AuthenticationMiddleware(nothing).process_request(request)
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
