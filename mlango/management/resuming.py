"""Going on with runs that waited for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.core.management.base import CommandError

from mlango.agents.agent import Agent
from mlango.agents.streams import RunStream
from mlango.exceptions import MlangoError
from mlango.models import Approval, Trace
from mlango.runtime.registry import registry

WAITING = Trace.Status.WAITING


def agent_of(trace: Trace) -> Agent:
    """Return the agent that a run is of. Raise CommandError if the site has it no more."""
    try:
        agent: Agent = registry.get(trace.agent)()
    except MlangoError as error:
        raise CommandError(f"{error} The run {trace.uuid[:8]} cannot go on.") from error
    return agent


def resumed(agent: Agent, trace: Any, **options: Any) -> RunStream:
    """Return the further events of a run. Raise CommandError if it cannot go on."""
    try:
        return agent.resume_stream(trace, **options)
    except MlangoError as error:
        raise CommandError(str(error)) from error


def ready() -> Iterator[Trace]:
    """Yield the waiting runs about which all is decided, or too late to be, oldest first."""
    for trace in Trace.objects.filter(status=WAITING).order_by("started_at"):
        if trace.root == trace and not Approval.objects.open_in(trace).exists():
            yield trace
