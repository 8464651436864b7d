"""Where the endpoints of an agent are found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.urls import URLPattern, path

if TYPE_CHECKING:
    from mlango.agents.agent import Agent


def urls_of(agent: type[Agent]) -> list[URLPattern]:
    """Return an agent's patterns; those of ``Support`` are named ``support-run`` and so on."""
    name = agent._meta.object_name.lower()
    return [
        path("run/", agent.as_endpoint(), name=f"{name}-run"),
        path("stream/", agent.as_stream_endpoint(), name=f"{name}-stream"),
        path("approvals/", agent.as_approvals_endpoint(), name=f"{name}-approvals"),
    ]
