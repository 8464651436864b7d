"""How an endpoint finds out who asks."""

from __future__ import annotations

import logging
from typing import Any

from django.contrib.auth import get_user_model
from rest_framework import authentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from mlango.conf import settings
from mlango.runtime.tokens import Service, Token, token_with

logger = logging.getLogger("mlango.serve")


class SessionAuthentication(authentication.SessionAuthentication):  # type: ignore[misc]
    """The session of a user who is logged in, with Django's CSRF token where it is due."""

    def authenticate_header(self, request: Request) -> str:
        # With a name for it the answer is 401, and not 403.
        return "Session"

    def enforce_csrf(self, request: Request) -> None:
        # Django's request reads a form for the token, and leaves JSON alone.
        super().enforce_csrf(request._request)


class BearerAuthentication(authentication.BaseAuthentication):  # type: ignore[misc]
    """A token of ``MLANGO["API_BEARER_TOKENS"]``, in the header ``Authorization: Bearer …``.

    Who sends one is asked for no CSRF token, and no cookie is looked at, right or wrong.
    """

    def authenticate(self, request: Request) -> tuple[Any, Token] | None:
        scheme, _, secret = request.META.get("HTTP_AUTHORIZATION", "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        token = token_with(secret.strip()) if secret.isascii() else None
        if token is None:
            raise AuthenticationFailed("The token is not valid.")
        return who(token), token

    def authenticate_header(self, request: Request) -> str:
        if "HTTP_AUTHORIZATION" in request.META:
            return 'Bearer realm="mlango", error="invalid_token"'
        return 'Bearer realm="mlango"' if settings.API_BEARER_TOKENS else ""


def who(token: Token) -> Any:
    """Return the user of a token, or the program that has it."""
    if not token.user:
        return Service(token)
    users = get_user_model()._default_manager
    user = users.filter(**{get_user_model().USERNAME_FIELD: token.user}).first()
    if user is None or not user.is_active:
        logger.warning("The token of %r is refused: there is no such active user.", token.user)
        raise AuthenticationFailed("The token is not valid.")
    return user
