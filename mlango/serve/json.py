"""The endpoint that answers with JSON when the run has ended."""

from __future__ import annotations

import logging
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from django.http import HttpResponse

from mlango.agents.detached import begin
from mlango.agents.enqueue import asked
from mlango.agents.requests import is_durable
from mlango.core.run import FAILED, LEFT
from mlango.core.threads import in_thread
from mlango.core.values import dumps
from mlango.exceptions import RunError, SessionBusy, provider_error
from mlango.runtime.following import afollow
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
    """Run to the end and return how the run ended.

    A durable run is followed to its end: a client who leaves changes nothing for it.
    """
    if is_durable(ask.agent, ask.options) and (uuid := await begun(ask)) is not None:
        return document(chosen(await followed(ask, uuid)))
    try:
        run = await run_of(ask)
    except (RunError, SessionBusy) as error:
        raise problem_of(ask, error) from error
    return document(shown(run))


async def begun(ask: Ask) -> str | None:
    """Begin a run that goes on without its reader, and return its uuid; see ``begin``."""
    return await begin(asked(ask.agent, ask.message, ask.options, here=True))


async def followed(ask: Ask, uuid: str) -> dict[str, Any]:
    """Return what the last event of a run tells; raise a Problem if the run has failed."""
    async with aclosing(afollow(uuid)) as log:
        *_, last = [told async for told in log]
    described = last.describe()
    if described["status"] == FAILED:
        raise failure(ask, uuid, described["exception_type"])
    return described


def shown(run: AgentRun) -> dict[str, Any]:
    """Return what a client reads of a run."""
    return chosen(run.describe())


def chosen(described: dict[str, Any]) -> dict[str, Any]:
    """Return what a client reads of all that is told of a run."""
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
    return failure(ask, trace, type(cause).__name__, cause)


def failure(ask: Ask, trace: str, name: str, cause: BaseException | None = None) -> Problem:
    """Log that a run failed by an exception of this name, and return what a client may know."""
    logger.error("The run %s of %s failed.", trace, ask.agent._meta.label, exc_info=cause)
    if provider_error(name) is not None:
        return Problem(502, f"The model did not answer ({name}).", id=trace)
    return Problem(500, f"The run failed with {name}.", id=trace)


def _told_again(error: RunError | SessionBusy) -> str:
    """Return what is left to tell of a run that did not fail here and now."""
    if error.run is not None and error.run.status in LEFT:
        return "Another process goes on with the run. Read it by its trace."
    return "The run failed; its trace tells why."
