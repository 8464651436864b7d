"""The endpoint from which the owner of a run downloads a file that it made."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from django.http import FileResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.utils.http import content_disposition_header

from mlango.core.threads import in_pool, in_thread
from mlango.models import Artifact
from mlango.runtime.sync import close_connections
from mlango.serve.base import View, Visit, visited
from mlango.serve.owned import ID, own_trace
from mlango.serve.problems import Problem
from mlango.serve.renderers import AnyRenderer
from mlango.serve.uploads import safe_name

if TYPE_CHECKING:
    from mlango.agents.agent import Agent
    from mlango.serve.policy import Policy

CHUNK = 256 * 1024


def endpoint(agent: Agent | None, policy: Policy) -> View:
    """Return a view that answers with the file that its URL names."""
    return visited(
        answer, agent, policy, ("GET",), renderer_classes=(AnyRenderer,), kind="artifact"
    )


async def answer(visit: Visit) -> HttpResponseBase:
    """Answer with a file, to be saved and not to be shown."""
    row, file = await in_thread(found, visit)
    response = StreamingHttpResponse(Chunks(file)) if visit.is_async else FileResponse(file)
    for name, value in headers_of(row).items():
        response[name] = value
    return response


def found(visit: Visit) -> tuple[Artifact, Any]:
    """Return the row and the open file; raise a Problem if it is not there for the user."""
    match = visit.request.resolver_match
    uuid = match.kwargs.get("artifact", "") if match else ""
    try:
        # PostgreSQL takes no NUL, which a URL may have.
        rows = own_trace(visit).artifacts.filter(pk=uuid if ID.fullmatch(uuid) else "")
        row = rows.get()
        return row, row.open()
    except (Artifact.DoesNotExist, OSError):
        raise Problem(404, "There is no such file.") from None
    finally:
        if visit.is_async:
            close_connections()


def headers_of(row: Artifact) -> dict[str, str]:
    """Return headers by which no browser runs what a tool made."""
    return {
        "Content-Type": row.safe_type,
        "Content-Length": str(row.size),
        "Content-Disposition": content_disposition_header(True, safe_name(row.name)) or "",
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "X-Content-Type-Options": "nosniff",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cache-Control": "private, no-cache",
    }


class Chunks:
    """A file in pieces that are read off the event loop; Django closes it with the response."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.close = file.close

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        while chunk := await in_pool(self._file.read, CHUNK):
            yield chunk
