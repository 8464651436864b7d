"""How an endpoint finds out who asks."""

from __future__ import annotations

from rest_framework import authentication
from rest_framework.request import Request


class SessionAuthentication(authentication.SessionAuthentication):  # type: ignore[misc]
    """The session of a user who is logged in, with Django's CSRF token where it is due."""

    def authenticate_header(self, request: Request) -> str:
        # With a name for it the answer is 401, and not 403.
        return "Session"
