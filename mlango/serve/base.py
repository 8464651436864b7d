"""What every endpoint does first: who asks, what is asked, and is it allowed.

To add an endpoint that runs the agent, write the coroutine that answers an Ask, and give it
to ``view``; for any other, one that answers a Visit, and give it to ``visited``.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from django.contrib.auth.decorators import login_not_required
from django.core.handlers.asgi import ASGIRequest
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.middleware.csrf import CsrfViewMiddleware
from django.views.decorators.csrf import csrf_exempt

from mlango.core.threads import in_thread
from mlango.exceptions import Misconfigured, Misused
from mlango.runtime.sync import close_connections
from mlango.serve.body import fields_of
from mlango.serve.problems import Problem

if TYPE_CHECKING:
    from mlango.agents.agent import Agent

logger = logging.getLogger("mlango.serve")

View = Callable[..., Awaitable[HttpResponseBase]]
V = TypeVar("V", bound=View)

JSON_TYPE = "application/json"


@dataclass(frozen=True, slots=True)
class Visit:
    """A request about ``agent`` by a user who may make it."""

    agent: Agent
    request: HttpRequest
    user: Any

    @property
    def is_async(self) -> bool:
        """Whether the server reads the answer on its event loop."""
        return is_asgi(self.request)


@dataclass(frozen=True, slots=True)
class Ask(Visit):
    """A checked request: run ``agent`` with ``message`` for the user of ``request``."""

    message: str
    session_id: str = ""

    @property
    def options(self) -> dict[str, Any]:
        """The options of the run; sessions and traces belong to the user."""
        return {"user": self.user, "request": self.request, "session_id": self.session_id}


def view(
    answer: Callable[[Ask], Awaitable[HttpResponseBase]], agent: Agent, permission: str
) -> View:
    """Return a view that has the agent run with what was posted."""

    async def asked(visit: Visit) -> HttpResponseBase:
        fields = fields_of(visit.request)
        return await answer(Ask(visit.agent, visit.request, visit.user, **fields))

    return visited(asked, agent, permission)


def visited(
    answer: Callable[[Visit], Awaitable[HttpResponseBase]],
    agent: Agent,
    permission: str,
    methods: tuple[str, ...] = ("POST",),
) -> View:
    """Return a view that checks a request, has it answered, and tells what is wrong with it."""
    needed = [each for each in (agent._meta.permission, permission) if each]

    async def endpoint(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        try:
            check_request(request, methods)
            user = await in_thread(user_of, request, needed)
            return await answer(Visit(agent, request, user))
        except Misused as error:
            return Problem(400, str(error)).response()
        except Misconfigured:
            problem = Problem(500, "The agent is not set up; the server's log tells why.")
            logger.exception("%s: %s is not set up.", problem.id, agent._meta.label)
            return problem.response()
        except Problem as problem:
            return problem.response()

    endpoint.__name__ = endpoint.__qualname__ = type(agent).__name__
    endpoint.__doc__ = agent._meta.description
    # Who is not logged in, or sends no token, gets a problem document from here, not a page
    # from the middleware; user_of() asks for both, with and without that middleware.
    return never_atomic(csrf_exempt(login_not_required(endpoint)))


def never_atomic(view: V) -> V:
    """Keep ATOMIC_REQUESTS off: Django refuses async views in it, and a run would hold it long."""
    for alias in connections:
        view = transaction.non_atomic_requests(using=alias)(view)
    return view


def is_asgi(request: HttpRequest) -> bool:
    """Return whether an ASGI server sent this request."""
    return isinstance(request, ASGIRequest)


def check_request(request: HttpRequest, methods: tuple[str, ...]) -> None:
    """Raise a Problem for a request whose head is wrong."""
    if request.method not in methods:
        detail = f"{request.method} is not allowed here. Use {' or '.join(methods)}."
        raise Problem(405, detail, headers={"Allow": ", ".join(methods)})
    if request.method == "POST" and request.content_type != JSON_TYPE:
        detail = f"The content type must be {JSON_TYPE!r}, not {request.content_type!r:.100}."
        raise Problem(415, detail)


def user_of(request: HttpRequest, needed: list[str]) -> Any:
    """Return who asks; raise a Problem unless logged in, by this site, and permitted.

    Asks the database, so call it where the ORM may be used.
    """
    try:
        return permitted(request, needed)
    finally:
        # The run has a thread of its own. This one waits, for minutes perhaps, and should
        # not hold a connection meanwhile.
        if is_asgi(request):
            close_connections()


def permitted(request: HttpRequest, needed: list[str]) -> Any:
    """Return the user of a session; raise a Problem if that is nobody or may not do this."""
    user = logged_in(request)
    check_csrf(request)
    check_permissions(user, needed)
    return user


def logged_in(request: HttpRequest) -> Any:
    """Return the user of a session; raise a Problem if that is nobody."""
    user = request.user
    if not user.is_authenticated:
        raise Problem(401, "Log in first.", headers={"WWW-Authenticate": "Session"})
    return user


def check_permissions(user: Any, needed: list[str]) -> None:
    """Raise a Problem unless the user has all permissions."""
    for permission in needed:
        if not user.has_perm(permission):
            raise Problem(403, f"This needs the permission {permission!r}.")


class Csrf(CsrfViewMiddleware):
    """Tells what is wrong instead of answering with a page."""

    def _reject(self, request: HttpRequest, reason: str) -> Any:
        raise Problem(403, f"CSRF check: {reason}")


def check_csrf(request: HttpRequest) -> None:
    """Raise a Problem unless a page of this site sent the request."""

    def nothing(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    check = Csrf(nothing)
    check.process_request(request)
    check.process_view(request, nothing, (), {})
