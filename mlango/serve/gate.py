"""The gate before every endpoint: Django REST framework's checks, for async answers too."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import TYPE_CHECKING, Any

from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from rest_framework.exceptions import MethodNotAllowed, UnsupportedMediaType
from rest_framework.parsers import BaseParser, MultiPartParser
from rest_framework.renderers import BrowsableAPIRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.schemas import DefaultSchema
from rest_framework.views import APIView

from mlango.core.threads import in_thread
from mlango.core.values import parse_json
from mlango.runtime.sync import close_connections
from mlango.serve import cors
from mlango.serve.body import JSON_TYPE, check_length
from mlango.serve.failures import problem_of

if TYPE_CHECKING:
    from mlango.agents.agent import Agent

Answer = Callable[[HttpRequest, Any], Awaitable[HttpResponseBase]]


class Described(DefaultSchema):  # type: ignore[misc]
    """Has an endpoint described where the site has drf-spectacular describe its views."""

    def __get__(self, view: Any, owner: type[Any]) -> Any:
        found = super().__get__(view, owner)
        kinds = [kind.__module__ for kind in type(found).__mro__]
        if "drf_spectacular.openapi" not in kinds:
            return found
        from mlango.serve.openapi import described  # of the extra "openapi"

        return described(type(found), view)


class Unread(BaseParser):  # type: ignore[misc]
    """Leaves JSON to the endpoint, which is stricter and has limits of its own.

    The framework's check of CSRF tokens has every body parsed.
    """

    media_type = JSON_TYPE

    def parse(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return {}


class Endpoint(APIView):  # type: ignore[misc]
    """A view of Django REST framework whose answer is a coroutine.

    All that may ask the database before the answer is done in one go, in one thread. ``answer``
    gets the request and who asks; errors of any kind go out as a problem document.
    """

    # What as_view() takes must be here as well.
    agent: Agent | None = None
    answer: Answer = None  # type: ignore[assignment]
    needed: tuple[str, ...] = ()
    content_types: tuple[str, ...] = ()
    throttle_scope = ""
    kind = ""
    schema = Described()
    parser_classes = (Unread, MultiPartParser)
    name = description = ""

    @classmethod
    def as_view(cls, **initkwargs: Any) -> Callable[..., Coroutine[Any, Any, HttpResponseBase]]:
        """Return an async view that the framework and its tools know as one of theirs."""
        plain = super().as_view(**initkwargs)

        @wraps(plain)
        async def view(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            return await cls(**initkwargs).respond(request, *args, **kwargs)

        return view

    async def respond(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Return the answer to a request, and let pages of allowed origins read it."""
        self.setup(request, *args, **kwargs)
        if cors.is_preflight(request):
            response: HttpResponseBase = cors.preflight(request, self.allowed_methods)
        elif request.method == "OPTIONS":
            response = HttpResponse(headers={"Allow": ", ".join(self.allowed_methods)})
        else:
            response = await self.answered(request)
            if self.is_browsed:
                response = await in_thread(self.page, response)
        return cors.share(request, response)

    async def answered(self, request: HttpRequest) -> HttpResponseBase:
        """Return the answer, or what is wrong with the request, as a problem."""
        try:
            user = await in_thread(self.admit, request)
            return await self.answer(request, user)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client reads no text of it
            return problem_of(error, self).response()

    @property
    def is_browsed(self) -> bool:
        """Whether a person in a browser asks, for the browsable API."""
        return getattr(self.request, "accepted_renderer", None) is not None and isinstance(
            self.request.accepted_renderer, BrowsableAPIRenderer
        )

    def page(self, response: HttpResponse) -> HttpResponseBase:
        """Return an answer, or a problem, as a page of the browsable API."""
        headers = {name: value for name, value in response.items() if name != "Content-Type"}
        page = Response(parse_json(response.content), response.status_code, headers=headers)
        self.headers = self.default_response_headers
        try:
            return self.finalize_response(self.request, page).render()  # type: ignore[no-any-return]
        finally:
            if is_asgi(self.request._request):
                close_connections()

    def admit(self, request: HttpRequest) -> Any:
        """Return who asks; raise unless he may, and asks in the right way.

        Asks the database, so call it where the ORM may be used.
        """
        try:
            # Who asks may depend on a token in a form, which is read to its end for that.
            check_length(request)
            self.request = self.initialize_request(request, *self.args, **self.kwargs)
            self.initial(self.request, *self.args, **self.kwargs)
            self.check_head(self.request)
            return self.request.user
        finally:
            # The run has a thread of its own. This one waits, for minutes perhaps, and should
            # not hold a connection meanwhile.
            if is_asgi(request):
                close_connections()

    def check_permissions(self, request: Request) -> None:
        """Raise unless the permission classes agree and the user has what is needed."""
        super().check_permissions(request)
        for permission in self.needed:
            if not getattr(request.user, "has_perm", _nothing)(permission):
                self.permission_denied(request, f"This needs the permission {permission!r}.")

    def check_head(self, request: Request) -> None:
        """Raise for a method, or a type of the body, that is not taken here."""
        if request.method not in self.allowed_methods:
            raise MethodNotAllowed(request.method)
        if request.method == "POST" and request._request.content_type not in self.content_types:
            raise UnsupportedMediaType(request._request.content_type)

    def get_authenticate_header(self, request: Request) -> str:
        """Return every way to say who asks; a 401 without one is not allowed."""
        headers = [each.authenticate_header(request) for each in self.get_authenticators()]
        return ", ".join(header for header in headers if header) or "Session"

    def get(self, request: Request) -> None:
        """Stand for the answer, which respond() awaits, where the methods are looked up."""

    post = delete = get


def is_asgi(request: HttpRequest) -> bool:
    """Return whether an ASGI server sent this request."""
    return isinstance(request, ASGIRequest)


def _nothing(permission: str) -> bool:
    return False
