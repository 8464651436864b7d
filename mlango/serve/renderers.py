"""The types of answers, as far as the Accept header is concerned."""

from __future__ import annotations

from typing import Any

from django.apps import apps
from rest_framework.renderers import BaseRenderer, BrowsableAPIRenderer, JSONRenderer
from rest_framework.settings import api_settings

from mlango.core.values import dumps
from mlango.serve.operations import OPERATIONS


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


class PageRenderer(BrowsableAPIRenderer):  # type: ignore[misc]
    """The browsable API, whose form for a POST begins with an example."""

    def get_raw_data_form(self, data: Any, view: Any, method: str, request: Any) -> Any:
        form = super().get_raw_data_form(data, view, method, request)
        known = OPERATIONS.get((view.kind, method))
        if form is not None and known is not None:
            form.fields["_content"].initial = dumps(known.example or {})
        return form


def renderers() -> tuple[type[Any], ...]:
    """Return what writes JSON: as it is and, where the site has the browsable API, as a page."""
    is_browsable = apps.is_installed("rest_framework") and any(
        issubclass(each, BrowsableAPIRenderer) for each in api_settings.DEFAULT_RENDERER_CLASSES
    )
    return (JSONRenderer, PageRenderer) if is_browsable else (JSONRenderer,)
