"""Where the endpoints of an agent are found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.urls import URLPattern, path

from mlango.serve import artifacts, events, runs
from mlango.serve.policy import Policy

if TYPE_CHECKING:
    from mlango.agents.agent import Agent


def run_patterns(agent: Agent | None, policy: Policy, prefix: str = "") -> list[URLPattern]:
    """Return the patterns of runs that were begun: those of an agent, or of the site."""
    one = "runs/<str:trace>/"
    return [
        path("runs/", runs.listing(agent, policy), name=f"{prefix}runs"),
        path(one, runs.detail(agent, policy), name=f"{prefix}run-detail"),
        path(f"{one}events/", events.endpoint(agent, policy), name=f"{prefix}events"),
        path(f"{one}cancel/", runs.cancel(agent, policy), name=f"{prefix}cancel"),
        path(f"{one}steer/", runs.steer(agent, policy), name=f"{prefix}steer"),
        path(f"{one}follow-up/", runs.follow_up(agent, policy), name=f"{prefix}follow-up"),
        path(
            f"{one}artifacts/<str:artifact>/",
            artifacts.endpoint(agent, policy),
            name=f"{prefix}artifact",
        ),
    ]


def urls_of(agent: type[Agent]) -> list[URLPattern]:
    """Return an agent's patterns; those of ``Support`` are named ``support-run`` and so on."""
    name = agent._meta.object_name.lower()
    return [
        *run_patterns(agent(), Policy(), f"{name}-"),
        path("run/", agent.as_endpoint(), name=f"{name}-run"),
        path("stream/", agent.as_stream_endpoint(), name=f"{name}-stream"),
        path("approvals/", agent.as_approvals_endpoint(), name=f"{name}-approvals"),
    ]
