"""System checks of what is served: tokens, origins, and endpoints that are open."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.urls import URLPattern, get_resolver

from mlango.agents.checks import TAG
from mlango.conf import settings
from mlango.exceptions import Misconfigured
from mlango.runtime.tokens import MIN_CHARS, token_of
from mlango.serve.cors import ANY


@register(TAG)
def check_serving(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Check the settings of serving that are wrong anywhere."""
    try:
        return [*_check_tokens(), *_check_origins(), *_check_public_url()]
    except Misconfigured:  # said by the check of the settings
        return []


def _check_tokens() -> Iterator[CheckMessage]:
    for number, given in enumerate(settings.API_BEARER_TOKENS):
        try:
            token_of(number, given)
        except Misconfigured as error:
            yield Error(str(error), obj="MLANGO", id="mlango.E040")


def _check_origins() -> Iterator[CheckMessage]:
    for origin in settings.CORS_ORIGINS:
        if origin != ANY and not is_origin(origin):
            yield Error(
                f"MLANGO['CORS_ORIGINS'] has {origin!r}, which is not an origin.",
                hint="An origin is a scheme and a host, such as 'https://app.example.com'.",
                obj="MLANGO",
                id="mlango.E041",
            )
    if ANY in settings.CORS_ORIGINS and settings.CORS_ALLOW_CREDENTIALS:
        yield Error(
            "MLANGO['CORS_ORIGINS'] has '*' and CORS_ALLOW_CREDENTIALS is True.",
            hint="Any page could read what a visitor's login opens. Name the origins.",
            obj="MLANGO",
            id="mlango.E042",
        )


def is_origin(value: Any) -> bool:
    """Return whether a value is what browsers send as Origin."""
    if not isinstance(value, str):
        return False
    try:
        parts = urlsplit(value)
    except ValueError:
        return False
    return value == f"{parts.scheme}://{parts.netloc}" and bool(parts.scheme and parts.netloc)


def _check_public_url() -> Iterator[CheckMessage]:
    parts = urlsplit(settings.PUBLIC_URL)
    if settings.PUBLIC_URL and not (parts.scheme in ("http", "https") and parts.netloc):
        yield Error(
            f"MLANGO['PUBLIC_URL'] is {settings.PUBLIC_URL!r}, which is not a URL.",
            hint="Such as 'https://agents.example.com'.",
            obj="MLANGO",
            id="mlango.E043",
        )


@register(Tags.security, TAG, deploy=True)
def check_served(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Check what is served before strangers can reach it."""
    if check_serving(None):
        return []
    views = [*served()]
    try:
        return [
            *_check_strength(),
            *_check_wildcard(),
            *(message for route, view in views for message in _check_view(route, view)),
            *(_check_site() if views else ()),
        ]
    except Misconfigured:
        return []


def _check_strength() -> Iterator[CheckMessage]:
    for number, given in enumerate(settings.API_BEARER_TOKENS):
        chars = token_of(number, given).chars
        if chars is None:
            continue
        where = f"MLANGO['API_BEARER_TOKENS'][{number}]"
        if chars < MIN_CHARS:
            yield Warning(
                f"{where} has {chars} characters and can be guessed.",
                hint="Make one with manage.py apitoken.",
                obj="MLANGO",
                id="mlango.W040",
            )
        else:
            yield Warning(
                f"{where} is a secret in plain text.",
                hint="Keep its hash there instead: manage.py apitoken makes both.",
                obj="MLANGO",
                id="mlango.W041",
            )


def _check_wildcard() -> Iterator[CheckMessage]:
    if ANY in settings.CORS_ORIGINS:
        yield Warning(
            "MLANGO['CORS_ORIGINS'] has '*': a page of any site may ask your agents.",
            hint="Name the origins, such as 'https://app.example.com'.",
            obj="MLANGO",
            id="mlango.W042",
        )


def _check_view(route: str, view: Any) -> Iterator[CheckMessage]:
    agent = view.initkwargs["agent"]
    label = agent._meta.label if agent is not None else route
    if not _asks_for_login(view):
        yield Warning(
            f"The endpoint {route!r} asks nobody to log in.",
            hint="Leave out permission_classes, or add IsAuthenticated to them.",
            obj=label,
            id="mlango.W043",
        )
    if agent is not None and agent._meta.disclose_errors:
        yield Warning(
            f"The endpoint {route!r} tells the text of exceptions to its clients.",
            hint="Remove disclose_errors from the agent's Meta.",
            obj=label,
            id="mlango.W044",
        )
    if settings.API_BEARER_TOKENS and not _takes_tokens(view):
        yield Warning(
            f"The endpoint {route!r} takes no token of MLANGO['API_BEARER_TOKENS'].",
            hint="Add mlango.serve.authentication.BearerAuthentication to its classes.",
            obj=label,
            id="mlango.W045",
        )


def _asks_for_login(view: Any) -> bool:
    """Return whether anything but AllowAny stands before a view; what, is the site's matter."""
    from rest_framework.permissions import AllowAny, IsAuthenticatedOrReadOnly

    classes = view.initkwargs["permission_classes"]
    return bool(
        view.initkwargs["needed"]
        or [each for each in classes if each not in (AllowAny, IsAuthenticatedOrReadOnly)]
    )


def _takes_tokens(view: Any) -> bool:
    from mlango.serve.authentication import BearerAuthentication

    classes = view.initkwargs["authentication_classes"]
    return any(
        isinstance(each, type) and issubclass(each, BearerAuthentication) for each in classes
    )


def _check_site() -> Iterator[CheckMessage]:
    if django_settings.DEBUG:
        yield Warning(
            "DEBUG is True: clients of your agents read the text of exceptions.",
            hint="Set DEBUG = False.",
            obj="DEBUG",
            id="mlango.W046",
        )
    if not settings.PUBLIC_URL:
        yield Warning(
            "MLANGO['PUBLIC_URL'] is not set, so the site cannot say where it is.",
            hint="Set it to what clients type, such as 'https://agents.example.com'.",
            obj="MLANGO",
            id="mlango.W047",
        )


def served(patterns: Any = None, prefix: str = "/") -> Iterator[tuple[str, Any]]:
    """Yield the route and the view of every endpoint in the URLconf."""
    for pattern in get_resolver().url_patterns if patterns is None else patterns:
        route = f"{prefix}{pattern.pattern}"
        if not isinstance(pattern, URLPattern):
            yield from served(pattern.url_patterns, route)
        elif "needed" in getattr(pattern.callback, "initkwargs", {}):
            yield route, pattern.callback
