"""Errors over HTTP, as ``application/problem+json`` (RFC 9457)."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any
from uuid import uuid4

from django.http import HttpResponse

from mlango.core.values import dumps

logger = logging.getLogger("mlango.serve")

CONTENT_TYPE = "application/problem+json"


class Problem(Exception):
    """A request that gets an error for an answer. ``detail`` is shown to the client.

    ``id`` names the case in the log and to the client; for a failed run it is the trace's.
    """

    def __init__(
        self, status: int, detail: str, *, id: str = "", headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.status = HTTPStatus(status)
        self.detail = detail
        self.id = id or uuid4().hex
        self.headers = headers

    def document(self) -> dict[str, Any]:
        """Log the problem and return what tells a client of it."""
        logger.info("%d (%s): %s", self.status, self.id, self.detail)
        return {
            "title": self.status.phrase,
            "status": self.status.value,
            "detail": self.detail,
            "id": self.id,
        }

    def response(self) -> HttpResponse:
        """Log the problem and return what the client reads."""
        return HttpResponse(
            dumps({"type": "about:blank", **self.document()}),
            content_type=CONTENT_TYPE,
            status=self.status,
            headers=self.headers,
        )
