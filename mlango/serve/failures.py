"""What a client reads of an exception; the log has the rest."""

from __future__ import annotations

import logging
from math import ceil
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.exceptions import (
    BadRequest,
    PermissionDenied,
    RequestDataTooBig,
    SuspiciousOperation,
)
from django.core.signals import got_request_exception
from django.http import Http404
from django.http.multipartparser import MultiPartParserError
from rest_framework import exceptions

from mlango.core.values import dumps
from mlango.exceptions import IdempotencyConflict, Misconfigured, Misused, WrongStatus
from mlango.serve.problems import Problem

if TYPE_CHECKING:
    from mlango.serve.gate import Endpoint

logger = logging.getLogger("mlango.serve")


def problem_of(error: Exception, view: Endpoint) -> Problem:
    """Return the Problem of what was raised in a view; under DEBUG raise what nobody expected."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, Misused):
        return misuse(error)
    if isinstance(error, IdempotencyConflict):
        return Problem(409, str(error))
    if isinstance(error, Http404):
        return Problem(404, "There is no such page.")
    if isinstance(error, PermissionDenied):
        return Problem(403, "You may not do this.")
    if isinstance(error, RequestDataTooBig):
        return Problem(413, str(error))
    if isinstance(error, BadRequest | SuspiciousOperation | MultiPartParserError):
        return Problem(400, "The body cannot be read as what its content type says.")
    if isinstance(error, exceptions.APIException):
        return refused(error, view)
    if isinstance(error, Misconfigured):
        problem = Problem(500, "The agent is not set up; the server's log tells why.")
        label = view.agent._meta.label if view.agent else "The site"
        logger.error("%s: %s is not set up.", problem.id, label, exc_info=error)
        return problem
    return unexpected(error, view)


def misuse(error: Misused) -> Problem:
    """Return the Problem of a request that is wrong, or only comes too late."""
    return Problem(409 if isinstance(error, WrongStatus) else 400, str(error))


def unexpected(error: Exception, view: Endpoint) -> Problem:
    """Log what is a fault of the site, and tell those who listen for such."""
    if settings.DEBUG:
        raise error
    problem = Problem(500, "The server failed; its log tells why.")
    logger.error("%s: %s", problem.id, type(error).__name__, exc_info=error)
    got_request_exception.send(type(view), request=view.request)
    return problem


def refused(error: exceptions.APIException, view: Endpoint) -> Problem:
    """Return the Problem of what Django REST framework refused."""
    return Problem(error.status_code, _detail(error, view), headers=_headers(error, view))


def _detail(error: exceptions.APIException, view: Endpoint) -> str:
    if isinstance(error, exceptions.NotAuthenticated):
        return "Log in first."
    if isinstance(error, exceptions.MethodNotAllowed):
        others = [each for each in view.allowed_methods if each != "OPTIONS"]
        return f"{view.request.method} is not allowed here. Use {' or '.join(others)}."
    if isinstance(error, exceptions.UnsupportedMediaType):
        kind = view.request._request.content_type
        return f"The content type must be {' or '.join(view.content_types)}, not {kind!r:.100}."
    if isinstance(error, exceptions.NotAcceptable):
        kinds = " or ".join(each.media_type for each in view.get_renderers())
        return f"The answer is {kinds}, which the Accept header does not allow."
    return error.detail if isinstance(error.detail, str) else dumps(error.detail)


def _headers(error: exceptions.APIException, view: Endpoint) -> dict[str, str]:
    headers: dict[str, Any] = {}
    if error.status_code == 401:
        headers["WWW-Authenticate"] = view.get_authenticate_header(view.request)
    if error.status_code == 405:
        headers["Allow"] = ", ".join(view.allowed_methods)
    if getattr(error, "wait", None) is not None:
        headers["Retry-After"] = str(ceil(error.wait))
    return headers
