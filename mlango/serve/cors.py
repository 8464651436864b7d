"""Cross-origin requests: which pages of other sites may read an answer."""

from __future__ import annotations

import logging

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.cache import patch_vary_headers

from mlango.conf import settings

logger = logging.getLogger("mlango.serve")

ANY = "*"
SENT = (
    "Accept",
    "Authorization",
    "Content-Type",
    "Idempotency-Key",
    "Last-Event-ID",
    "X-CSRFToken",
)
READ = ("Content-Disposition", "Location", "Retry-After", "WWW-Authenticate")
PREFLIGHT_SECONDS = 600


def is_preflight(request: HttpRequest) -> bool:
    """Return whether a browser asks before it sends what a page wants to."""
    return (
        request.method == "OPTIONS"
        and "HTTP_ORIGIN" in request.META
        and "HTTP_ACCESS_CONTROL_REQUEST_METHOD" in request.META
    )


def preflight(request: HttpRequest, methods: list[str]) -> HttpResponse:
    """Return what a page may send, if its origin is allowed to."""
    response = HttpResponse(status=204, headers={"Allow": ", ".join(methods)})
    if origin_for(request):
        response["Access-Control-Allow-Methods"] = ", ".join(methods)
        response["Access-Control-Allow-Headers"] = ", ".join(SENT)
        response["Access-Control-Max-Age"] = str(PREFLIGHT_SECONDS)
    return response


def share(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
    """Let the page that asks read the response, if its origin is allowed to."""
    if not settings.CORS_ORIGINS:
        return response
    origin = origin_for(request)
    if origin != ANY:
        patch_vary_headers(response, ["Origin"])
    if origin:
        response["Access-Control-Allow-Origin"] = origin
        response["Access-Control-Expose-Headers"] = ", ".join(READ)
        if settings.CORS_ALLOW_CREDENTIALS:
            response["Access-Control-Allow-Credentials"] = "true"
    return response


def origin_for(request: HttpRequest) -> str:
    """Return the origin that may read the answer, ``*`` for all, or an empty string."""
    origin, allowed = request.META.get("HTTP_ORIGIN", ""), settings.CORS_ORIGINS
    if ANY not in allowed:
        return origin if origin in allowed else ""
    if settings.CORS_ALLOW_CREDENTIALS:
        # Any page could read what its visitor's cookies open.
        logger.error("CORS_ORIGINS has '*' and CORS_ALLOW_CREDENTIALS is True: no origin may.")
        return ""
    return ANY
