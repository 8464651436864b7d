"""What every endpoint does first: who asks, what is asked, and is it allowed.

To add an endpoint that runs the agent, write the coroutine that answers an Ask, and give it
to ``view``; for any other, one that answers a Visit, and give it to ``visited``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from django.db import connections, transaction
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from mlango.core.memory import owner_key
from mlango.serve import body
from mlango.serve.body import FORM_TYPE, JSON_TYPE
from mlango.serve.gate import Endpoint, is_asgi
from mlango.serve.idempotency import key_of
from mlango.serve.limits import admitted
from mlango.serve.problems import Problem
from mlango.serve.renderers import renderers

if TYPE_CHECKING:
    from mlango.agents.agent import Agent
    from mlango.serve.policy import Policy

View = Callable[..., Coroutine[Any, Any, HttpResponseBase]]
V = TypeVar("V", bound=View)


@dataclass(frozen=True, slots=True)
class Visit:
    """A request about ``agent``, or about those of the site, by a user who may make it."""

    agent: Agent | None
    request: HttpRequest
    user: Any

    @property
    def is_async(self) -> bool:
        """Whether the server reads the answer on its event loop."""
        return is_asgi(self.request)


@dataclass(frozen=True, slots=True)
class Ask(Visit):
    """A checked request: run ``agent`` with ``message`` for the user of ``request``."""

    agent: Agent
    message: str
    session_id: str = ""
    buffered: bool | None = None
    files: Sequence[Any] = ()
    images: Sequence[Any] = ()
    idempotency_key: str | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The options of the run; sessions and traces belong to the user."""
        names = (
            "user",
            "request",
            "session_id",
            "buffered",
            "files",
            "images",
            "idempotency_key",
        )
        return {name: getattr(self, name) for name in names}


def view(
    answer: Callable[[Ask], Awaitable[HttpResponseBase]],
    agent: Agent,
    policy: Policy,
    renderer_classes: tuple[type[Any], ...] = (),
    *,
    kind: str = "",
) -> View:
    """Return a view that has the agent run with what was posted."""

    async def asked(visit: Visit) -> HttpResponseBase:
        fields = await body.asked(visit.request)
        check_session(visit, fields)
        key = key_of(visit)
        ask = Ask(agent, visit.request, visit.user, **fields, idempotency_key=key)
        return await admitted(answer, ask)

    return visited(
        asked,
        agent,
        policy,
        content_types=(JSON_TYPE, FORM_TYPE),
        renderer_classes=renderer_classes,
        kind=kind,
    )


def visited(
    answer: Callable[[Visit], Awaitable[HttpResponseBase]],
    agent: Agent | None,
    policy: Policy,
    methods: tuple[str, ...] = ("POST",),
    content_types: tuple[str, ...] = (JSON_TYPE,),
    renderer_classes: tuple[type[Any], ...] = (),
    *,
    kind: str = "",
) -> View:
    """Return a view that checks a request, has it answered, and tells what is wrong with it.

    Without an ``agent`` it is about those of the whole site. ``kind`` is its name in
    OPERATIONS, which describe it.
    """
    meta = agent._meta if agent else None
    name = meta.object_name if meta else "Runs"
    needed = [meta.permission if meta else None, policy.permission]

    async def answered(request: HttpRequest, user: Any) -> HttpResponseBase:
        return await answer(Visit(agent, request, user))

    endpoint = Endpoint.as_view(
        agent=agent,
        answer=answered,
        needed=tuple(filter(None, needed)),
        name=name,
        description=meta.description if meta else "The runs of a user.",
        http_method_names=[method.lower() for method in (*methods, "OPTIONS")],
        authentication_classes=policy.authentication(),
        permission_classes=policy.permissions(),
        throttle_classes=policy.throttles(),
        throttle_scope=policy.throttle_scope,
        content_types=content_types,
        renderer_classes=renderer_classes or renderers(),
        kind=kind,
    )
    endpoint.__name__ = endpoint.__qualname__ = name
    endpoint.__doc__ = meta.description if meta else None
    return never_atomic(endpoint)


def never_atomic(view: V) -> V:
    """Keep ATOMIC_REQUESTS off: Django refuses async views in it, and a run would hold it long."""
    for alias in connections:
        view = transaction.non_atomic_requests(using=alias)(view)
    return view


def check_session(visit: Visit, fields: dict[str, Any]) -> None:
    """Raise a Problem where anybody who guesses the id could go on with a session."""
    if fields.get("session_id") and not owner_key(visit.user):
        raise Problem(400, "A session belongs to a user. Log in, or leave out 'session_id'.")
