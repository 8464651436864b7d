"""System checks of what a site runs on: its server, its databases, its storage."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Tags, Warning, register
from django.core.files.storage import default_storage
from django.db import connections
from django.urls import URLPattern, get_resolver

from mlango.agents.checks import TAG
from mlango.agents.prices import price
from mlango.agents.providers.routing import resolve
from mlango.core.options import UNSET
from mlango.core.usage import Usage
from mlango.exceptions import Misconfigured
from mlango.models.artifact import storage
from mlango.runtime.registry import registry
from mlango.serve.checks import served

# The first versions in which a known hole is closed.
FLOORS = {
    "daphne": ("4.2.2", "frames of WebSockets are unlimited before it (CVE-2026-44545)"),
    "litellm": ("1.84", "its proxy can be entered without a key before it"),
    "mcp": ("1.28.1", "it takes WebSockets of any origin before it (CVE-2026-59950)"),
}


@register(Tags.security, TAG, deploy=True)
def check_deployment(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Check what the site runs on."""
    return [
        *_check_atomic_requests(),
        *_check_connections(),
        *_check_streams(),
        *_check_versions(),
        *_check_storage(),
        *(message for agent in registry.all() for message in _check_price(agent)),
    ]


def _check_atomic_requests() -> Iterator[CheckMessage]:
    aliases = {
        alias
        for alias, database in connections.settings.items()
        if database.get("ATOMIC_REQUESTS")
    }
    for route, view in views():
        atomic = aliases - set(getattr(view, "_non_atomic_requests", ()))
        if atomic and iscoroutinefunction(view):
            yield Warning(
                f"The view {route!r} is async, and Django refuses those in ATOMIC_REQUESTS.",
                hint="Decorate it with django.db.transaction.non_atomic_requests.",
                obj=", ".join(sorted(atomic)),
                id="mlango.W050",
            )


def views(patterns: Any = None, prefix: str = "/") -> Iterator[tuple[str, Any]]:
    """Yield the route and the view of everything in the URLconf."""
    for pattern in get_resolver().url_patterns if patterns is None else patterns:
        route = f"{prefix}{pattern.pattern}"
        if isinstance(pattern, URLPattern):
            yield route, pattern.callback
        else:
            yield from views(pattern.url_patterns, route)


def _check_connections() -> Iterator[CheckMessage]:
    for alias, database in connections.settings.items():
        if getattr(django_settings, "ASGI_APPLICATION", None) and database["CONN_MAX_AGE"] != 0:
            yield Warning(
                f"Database {alias!r} has CONN_MAX_AGE, and the site has an ASGI_APPLICATION.",
                hint="Under ASGI each thread would keep a connection. Set it to 0, and use "
                "OPTIONS['pool'] or PgBouncer.",
                obj=alias,
                id="mlango.W051",
            )


def _check_streams() -> Iterator[CheckMessage]:
    if getattr(django_settings, "ASGI_APPLICATION", None) or not django_settings.WSGI_APPLICATION:
        return
    from mlango.serve.renderers import EventStreamRenderer

    for route, view in served():
        if EventStreamRenderer in view.initkwargs["renderer_classes"]:
            yield Warning(
                f"The endpoint {route!r} streams, and the site has a WSGI_APPLICATION only.",
                hint="Under WSGI each open stream holds a worker. Serve the site by ASGI, and "
                "set ASGI_APPLICATION.",
                obj=route,
                id="mlango.W052",
            )


def _check_versions() -> Iterator[CheckMessage]:
    for package, (floor, reason) in FLOORS.items():
        installed = _installed(package)
        if installed and _numbers(installed) < _numbers(floor):
            yield Warning(
                f"{package} {installed} has a known hole.",
                hint=f"Install {package}>={floor}: {reason}.",
                obj=package,
                id="mlango.W053",
            )


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:3])


def _check_price(agent: Any) -> Iterator[CheckMessage]:
    meta = agent._meta
    limits = [each for each in (meta.limits, meta.session_limits) if each]
    if not any(each.max_cost_usd is not None and not each.allow_unpriced for each in limits):
        return
    provider = None if meta.provider is UNSET else meta.provider
    for named in (meta.model, *meta.fallback_models):
        try:
            chosen, model = resolve(named or "", provider)
            cost = price(chosen.name, model, Usage(1, 1))
        except Misconfigured:  # said by other checks, or when it is run
            continue
        if not chosen.is_free and cost is None:
            yield Warning(
                f"The price of {chosen.name}/{model} is unknown, but its cost is limited.",
                hint="Runs will be refused. Add it to MLANGO['PRICES'], or set allow_unpriced.",
                obj=meta.label,
                id="mlango.W054",
            )


def _check_storage() -> Iterator[CheckMessage]:
    is_public = storage() is default_storage and django_settings.MEDIA_URL not in ("", "/")
    if is_public and any(agent._meta.tools or agent._meta.methods for agent in registry.all()):
        yield Warning(
            "Files that tools make are kept where MEDIA_URL hands them out to anybody.",
            hint="Add a storage of its own to STORAGES, with the alias 'mlango'.",
            obj="STORAGES",
            id="mlango.W055",
        )
