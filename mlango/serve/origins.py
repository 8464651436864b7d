"""From which pages a WebSocket may be opened; browsers send cookies along whoever asks."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from django.conf import settings as django_settings
from django.http import HttpRequest
from django.http.request import validate_host
from django.middleware.csrf import CsrfViewMiddleware

from mlango.serve.problems import Problem
from mlango.serve.scopes import nothing


def check_origin(request: HttpRequest) -> None:
    """Raise a Problem unless a page of this site asks, or no page but a program.

    A page of this site is one of the same host, of a host in ALLOWED_HOSTS by its name, or of
    one in CSRF_TRUSTED_ORIGINS. The ``*`` in ALLOWED_HOSTS lets no page in: it says by which
    names the site is called, not whom it trusts. A program sends a token and no Origin.
    """
    origin = request.META.get("HTTP_ORIGIN")
    if origin is None and "HTTP_AUTHORIZATION" in request.META:
        return
    if origin is None:
        raise Problem(403, "Send the header Origin, as browsers do, or a token.")
    if not (_is_allowed_host(origin) or _is_trusted(request)):
        raise Problem(
            403,
            f"The origin {origin!r:.200} is not allowed. Its host must be in ALLOWED_HOSTS, or "
            f"the origin in CSRF_TRUSTED_ORIGINS.",
        )


def _is_allowed_host(origin: str) -> bool:
    hosts = [host for host in django_settings.ALLOWED_HOSTS if host != "*"]
    try:
        host = urlsplit(origin).hostname
    except ValueError:
        return False
    return host is not None and validate_host(host, hosts)


def _is_trusted(request: HttpRequest) -> bool:
    """Return what Django's own check of a POST would say of the header."""
    check: Any = CsrfViewMiddleware(nothing)
    return bool(check._origin_verified(request))
