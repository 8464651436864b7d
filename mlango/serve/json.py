"""The endpoint that answers with JSON when the run has ended."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from django.http import HttpResponse

from mlango.core.run import LEFT
from mlango.core.threads import in_thread
from mlango.core.values import dumps
from mlango.exceptions import ProviderError, RunError, SessionBusy
from mlango.serve.base import Ask, View, view
from mlango.serve.problems import Problem

if TYPE_CHECKING:
    from mlango.agents.agent import Agent
    from mlango.core.run import AgentRun
    from mlango.serve.policy import Policy

logger = logging.getLogger("mlango.serve")

FIELDS = (
    "agent",
    "output",
    "status",
    "stop_reason",
    "steps",
    "trace",
    "session_id",
    "tools_used",
    "usage",
    "cost",
    "error",
    "approvals",
    "artifacts",
)


def endpoint(agent: Agent, policy: Policy) -> View:
    """Return a view that runs ``agent`` and answers with what came of it."""
    return view(answer, agent, policy, kind="run")


async def answer(ask: Ask) -> HttpResponse:
    """Run to the end and return how the run ended."""
    try:
        run = await run_of(ask)
    except (RunError, SessionBusy) as error:
        raise problem_of(ask, error) from error
    return document(shown(run))


def shown(run: AgentRun) -> dict[str, Any]:
    """Return what a client reads of a run."""
    described = run.describe()
    return {name: described[name] for name in FIELDS}


def document(value: Any) -> HttpResponse:
    """Return a response with strict JSON."""
    return HttpResponse(dumps(value), content_type="application/json")


async def run_of(ask: Ask) -> AgentRun:
    """Run here, or under WSGI in the request's thread, on the loop that plain code shares."""
    if ask.is_async:
        return await ask.agent.arun(ask.message, **ask.options)
    run: AgentRun = await in_thread(ask.agent.run, ask.message, **ask.options)
    return run


def problem_of(ask: Ask, error: RunError | SessionBusy) -> Problem:
    """Return what a client may know about a failed run; the log has the rest."""
    cause = error.__cause__ if type(error) is RunError else error
    trace = error.run.trace_uuid if error.run else ""
    if cause is None:
        return Problem(500, _told_again(error), id=trace)
    if isinstance(cause, SessionBusy):
        return Problem(409, str(cause), id=trace)
    label, name = ask.agent._meta.label, type(cause).__name__
    logger.error("The run %s of %s failed.", trace, label, exc_info=cause)
    if isinstance(cause, ProviderError):
        return Problem(502, f"The model did not answer ({name}).", id=trace)
    return Problem(500, f"The run failed with {name}.", id=trace)


def _told_again(error: RunError | SessionBusy) -> str:
    """Return what is left to tell of a run that did not fail here and now."""
    if error.run is not None and error.run.status in LEFT:
        return "Another process goes on with the run. Read it by its trace."
    return "The run failed; its trace tells why."
