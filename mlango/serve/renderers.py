"""The types of answers, as far as the Accept header is concerned."""

from __future__ import annotations

from typing import Any

from rest_framework.renderers import BaseRenderer


class EventStreamRenderer(BaseRenderer):  # type: ignore[misc]
    """Stands for server-sent events, which are written while they happen."""

    media_type = "text/event-stream"
    format = "sse"

    def render(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


class AnyRenderer(BaseRenderer):  # type: ignore[misc]
    """Stands for a file, which is of the type that it is."""

    media_type = "*/*"
    format = "file"

    def render(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError
