"""Sub-agents: agents that are tools of others.

A call of one is a run of its own, in the run that called it: it works for the same user, in
the same thread and transaction, spends from the same limits, tells its events among that
run's, and ends with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from mlango.agents.references import agent_of, name_of, passed_on
from mlango.agents.resolve import run_for
from mlango.agents.resume import aresumed
from mlango.agents.streams import AsyncRunStream
from mlango.core.context import Context, run_of
from mlango.core.controls import Parked
from mlango.core.events import Event
from mlango.core.limits import Limits
from mlango.core.options import WANTED
from mlango.core.run import FINISHED, LEFT, WAITING, Run
from mlango.core.slots import slots
from mlango.core.tools import Tool, ToolResult, tool
from mlango.core.values import dumps, to_json
from mlango.core.wanted import check
from mlango.core.watch import NEVER
from mlango.exceptions import ToolError

if TYPE_CHECKING:
    from mlango.agents.agent import Agent
    from mlango.models import Trace


T = TypeVar("T")


class AsTool:
    """``as_tool`` of a class means the agent as it is declared, of an instance that one."""

    def __get__(self, instance: Agent | None, owner: type[Agent]) -> Callable[..., Tool]:
        return partial(tool_of, owner if instance is None else instance)


def tool_of(
    reference: Any,
    *,
    name: str = "",
    description: str = "",
    budget: Limits | None = None,
    **options: Any,
) -> Tool:
    """Return a tool that has an agent answer a message.

    ``budget`` limits each call; the limits of the run that calls it hold too. The options
    are those of ``@tool``, such as ``permission`` and ``approval``.
    """
    check("{} of as_tool()", {"budget": budget}, {"budget": WANTED["limits"]})
    agent = agent_of(reference)
    meta = agent._meta

    async def ask(message: str, context: Context) -> ToolResult:
        """Ask the agent.

        Args:
            message: What to do, with all that is needed for it. The agent sees nothing else.
        """
        return await delegate(agent, message, context, budget)

    made = tool(
        ask,
        name=name or name_of(agent),
        description=description or meta.description or f"Ask the agent {meta.verbose_name}.",
        # The sub-agent's run has a time of its own, and the run that calls it has another.
        **{"timeout": NEVER, "permission": meta.permission or None, **options},
    )
    return replace(made, goes_on=True)


async def delegate(
    agent: Agent, message: str, context: Context, budget: Limits | None = None
) -> ToolResult:
    """Run an agent for the run that a tool was called in, and return its answer."""
    lead = run_of(context)
    check_depth(lead)
    begun = None
    if lead.is_resumed:
        begun = await _ask_database(child_of, lead, context.tool_call_id)
    if begun is not None and begun.status == FINISHED:
        return ToolResult(begun.output, _details(begun.agent, begun.uuid, FINISHED))
    options: dict[str, Any] = {
        "user": lead.user,
        "request": lead.request,
        "state": lead.state,
        "limits": budget,
        **passed_on(lead, agent),
    }
    if begun is not None:
        child = await aresumed(agent, begun, options, lead)
    else:
        options["metadata"] = {"tool_call_id": context.tool_call_id}
        child = run_for(agent, message, options, lead=lead)
    # What waits for others must not keep them waiting for its place.
    with slots.lent():
        await follow(child)
    return answer_of(child)


async def _ask_database(function: Callable[..., T], *arguments: Any) -> T:
    # Rows can be imported only once the apps are loaded.
    from mlango.runtime.database import ask

    return await ask(function, *arguments)


def child_of(lead: Run, tool_call_id: str) -> Trace | None:
    """Return the trace that an earlier call of the same id began; asks the database."""
    from mlango.models import Trace

    rows = Trace.objects.filter(parent=lead.uuid)
    return next((row for row in rows if row.metadata.get("tool_call_id") == tool_call_id), None)


def check_depth(lead: Run) -> None:
    """Raise ToolError if a sub-agent of this run would be nested too deeply for any above."""
    depth, run = 1, lead
    while True:
        limit = run.agent._meta.max_subagent_depth
        if depth > limit:
            raise ToolError(
                f"Sub-agents of {run.label} may be nested {limit} deep (max_subagent_depth). "
                f"Do without this one."
            )
        if run.lead is None:
            return
        depth, run = depth + 1, run.lead


async def follow(child: Run) -> None:
    """Run a sub-agent to its end and tell its events among those of its lead."""
    lead = child.lead
    task = asyncio.current_task()
    assert lead is not None
    assert task is not None
    lead.wait_for(task)  # also when it has cancelled it: the child still has to be stored

    def tell(event: Event) -> None:
        if child.log is None and lead.log is not None:
            lead.log.add(event)
        lead.outbox.append(event)
        lead.watch.wake()

    try:
        async with aclosing(AsyncRunStream(child)) as events:
            async for event in events:
                tell(event)
    except asyncio.CancelledError:
        for event in child.ending:
            tell(event)
        if child.status == WAITING:  # it had asked when its lead was cancelled
            _end_together(child)
        raise
    finally:
        lead.artifacts += child.artifacts
        lead.approvals += child.approvals


def _end_together(child: Run) -> None:
    """Have a sub-agent's run that waits be given up if its lead ends without waiting."""
    lead = child.lead
    assert lead is not None
    former = lead.release

    async def release(run: Run) -> None:
        if run.status not in (WAITING, *LEFT):  # else it is gone on with, as its lead is
            await _ask_database(give_up, child.uuid)
        if former is not None:
            await former(run)

    lead.release = release


def give_up(uuid: str) -> None:
    """Cancel a run that waits, with what it asks and the runs that it waits for."""
    from mlango.models import Trace

    Trace.objects.get(pk=uuid).give_up()


def answer_of(child: Run) -> ToolResult:
    """Return what a lead's model reads of a sub-agent's run. Raise Parked if it waits."""
    details = _details(child.label, child.uuid, child.status)
    if child.status == WAITING:
        _end_together(child)
        raise Parked
    if child.status != FINISHED:
        said = f"\nIt had said: {child.text}" if child.text else ""
        text = f"The agent {child.label} {child.status} ({child.stop_reason}): {child.error}"
        return ToolResult(text + said, details, is_error=True)
    output = child.result().output
    return ToolResult(output if isinstance(output, str) else dumps(to_json(output)), details)


def _details(agent: str, trace: str, status: str) -> dict[str, str]:
    return {"agent": agent, "trace": trace, "status": status}
