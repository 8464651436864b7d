"""Streams without Django's handler in between: ``application = Direct(get_asgi_application())``.

Each middleware costs a stream more than a hundred of its events do. The views are the same, and
so is what they ask for; the rest of a site goes on as it was.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import aclosing
from tempfile import SpooledTemporaryFile
from typing import IO, Any, TypeVar

from django.conf import settings as django_settings
from django.core.exceptions import DisallowedHost
from django.core.handlers.asgi import ASGIRequest, get_script_prefix
from django.http.response import HttpResponseBase
from django.middleware.security import SecurityMiddleware
from django.urls import Resolver404, ResolverMatch, resolve, set_script_prefix

from mlango.conf import settings
from mlango.core.threads import in_thread
from mlango.serve.asgi import (
    Application,
    Receive,
    Scope,
    Send,
    readable,
    refuse,
    send_whole,
    start_of,
)
from mlango.serve.body import too_large
from mlango.serve.keepers import Keepers
from mlango.serve.problems import Problem
from mlango.serve.scopes import nothing, request_of, sessions

logger = logging.getLogger("mlango.serve")

V = TypeVar("V", bound=Callable[..., Any])

# What these do for a stream is done here, or a stream has no use for it.
SPARED = (
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.auth.middleware.LoginRequiredMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csp.ContentSecurityPolicyMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.middleware.gzip.GZipMiddleware",
    "django.middleware.http.ConditionalGetMiddleware",
    "django.middleware.security.SecurityMiddleware",
)


class ClientLeft(Exception):
    """The client left before its request was read."""


def streams(view: V, method: str) -> V:
    """Mark a view that answers requests of a method with a stream."""
    view.streams = method  # type: ignore[attr-defined]
    return view


class Direct:
    """Answers streams by itself and has ``application`` answer the rest.

    Middleware that it does not know of must not be left out unseen, so with any such in
    MIDDLEWARE it answers nothing; ``sparing`` names those that streams can do without.
    """

    def __init__(self, application: Application, *, sparing: Iterable[str] = ()) -> None:
        self._application = application
        needed = [path for path in django_settings.MIDDLEWARE if path not in (*SPARED, *sparing)]
        self._is_on = not needed
        if needed:
            logger.info("Streams go through Django's handler for %s.", ", ".join(needed))
        self._keepers = Keepers()
        self._security = SecurityMiddleware(nothing) if _has_security() else None

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        match = match_of(scope) if self._is_on else None
        if match is None:
            await self._application(scope, receive, send)
            return
        try:
            body = await body_of(receive)
        except ClientLeft:
            return
        except Problem as problem:
            await refuse(problem, scope, send)
            return
        exchange = asyncio.ensure_future(self._answer(match, scope, body, send))
        leaving = asyncio.ensure_future(left(receive))
        try:
            await asyncio.wait([exchange, leaving], return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            exchange.cancel()
            await asyncio.wait([exchange])
        if not exchange.cancelled():
            exchange.result()

    async def _answer(
        self, match: ResolverMatch, scope: Scope, body: IO[bytes], send: Send
    ) -> None:
        with body:
            set_script_prefix(get_script_prefix(scope))
            request = request_of(scope, body)
            request.resolver_match = match
            response = await self._response(request, match)
        await send_response(response, send)

    async def _response(self, request: ASGIRequest, match: ResolverMatch) -> Any:
        try:
            request.get_host()
        except DisallowedHost:
            problem = Problem(400, "The header Host names no host of this site.")
            return readable(problem, request)
        if self._security is None:
            return await self._viewed(request, match)
        response = self._security.process_request(request) or await self._viewed(request, match)
        return self._security.process_response(request, response)

    async def _viewed(self, request: ASGIRequest, match: ResolverMatch) -> Any:
        # Not a thread and a connection for each request, as Django has it.
        async with self._keepers.next().works():
            response = await match.func(request, *match.args, **match.kwargs)
            if request.session.modified:  # such as for a new SECRET_KEY
                store = sessions(django_settings.SESSION_ENGINE).process_response
                response = await in_thread(store, request, response)
            return response


def _has_security() -> bool:
    return "django.middleware.security.SecurityMiddleware" in django_settings.MIDDLEWARE


def match_of(scope: Scope) -> ResolverMatch | None:
    """Return the view of a stream that a request asks for; None for all else."""
    if scope["type"] != "http":
        return None
    try:
        match = resolve(scope["path"].removeprefix(get_script_prefix(scope).rstrip("/")))
    except Resolver404:
        return None
    return match if getattr(match.func, "streams", "") == scope["method"] else None


async def body_of(receive: Receive) -> IO[bytes]:
    """Return the body of a request; raise a Problem if it is too large."""
    limit = settings.MAX_HTTP_BODY_BYTES
    size = django_settings.FILE_UPLOAD_MAX_MEMORY_SIZE
    body = SpooledTemporaryFile(max_size=size)  # noqa: SIM115 - it is the caller's
    try:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientLeft
            body.write(message.get("body") or b"")
            if limit is not None and body.tell() > limit:
                raise too_large(limit)
            if not message.get("more_body"):
                break
    except BaseException:
        body.close()
        raise
    body.seek(0)
    return body


async def left(receive: Receive) -> None:
    """Wait until the client leaves."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_response(response: HttpResponseBase, send: Send) -> None:
    """Send a response, and close it however that ended."""
    try:
        if response.streaming:
            await send_stream(response, send)
        else:
            await send_whole(response, send)
    finally:
        # Not response.close(): what hears of the end of a request did not hear of its begin.
        for close in response._resource_closers:  # type: ignore[attr-defined]
            close()


async def send_stream(response: Any, send: Send) -> None:
    """Send the parts of a response as they come."""
    await send(start_of(response))
    async with aclosing(response.streaming_content) as parts:
        async for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body"})
