"""Handoffs: the rest of a run goes on as another agent.

The other agent brings its prompt, tools, model, provider and controls. The conversation, the
session, the bounds and the limits stay those of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from time import time
from typing import TYPE_CHECKING, Any

from mlango.agents.arguments import RUN_OPTIONS
from mlango.agents.defaults import defaults_of
from mlango.agents.references import agent_of, name_of, passed_on, successors_of
from mlango.agents.resolve import bind
from mlango.core.context import Context, run_of
from mlango.core.controls import Control, Controls
from mlango.core.events import HandedOff
from mlango.core.journal import AGENT, TOOL, Entry
from mlango.core.limits import Limiting
from mlango.core.run import Run
from mlango.core.tools import Tool, tool
from mlango.exceptions import ToolError

if TYPE_CHECKING:
    from mlango.agents.agent import Agent
    from mlango.models import Span

Resolve = Callable[[Run], Coroutine[Any, Any, None]]

HANDOFF = "handoff"  # the name of the span
MAX_HANDOFFS = 5  # of one run


def handoff_tool(reference: Any) -> Tool:
    """Return the tool that hands a conversation over to an agent."""
    agent = agent_of(reference)
    meta = agent._meta

    async def transfer(context: Context) -> str:
        return announce(run_of(context), agent)

    return tool(
        transfer,
        name=f"transfer_to_{name_of(reference)}",
        description=(
            f"Hand the conversation over to the agent {meta.verbose_name}, which goes on with "
            f"it in your place. {meta.description}"
        ).strip(),
        permission=meta.permission or None,
        effect="read",
        parallel=False,
    )


def announce(run: Run, agent: Agent) -> str:
    """Note that ``agent`` takes over once the calls of this step are done."""
    if run.successor is not None:
        raise ToolError("The conversation is handed over already. This call did nothing.")
    if len(run.handoffs) >= MAX_HANDOFFS:
        raise ToolError(
            f"The conversation was handed over {MAX_HANDOFFS} times, which is the most. "
            f"Answer with what you have."
        )
    run.successor = partial(hand_over, agent=agent)
    return f"The agent {agent._meta.verbose_name} goes on with the conversation from here."


async def hand_over(run: Run, *, agent: Agent) -> None:
    """Make the rest of ``run`` go on as ``agent``."""
    run.successor = None
    before, after = run.agent._meta.label, agent._meta.label
    leaving = [control for control in run.controls.all if not _stays(control)]
    for end in Controls(leaving).end:
        await end(run)
    own = await _become(run, agent)
    run.handoffs.append(after)
    labels = {"from": before, "to": after}
    run.journal.write(
        Entry(AGENT, HANDOFF, run.next_ordering(), run.step, time(), 0.0, labels, [])
    )
    run.note(HandedOff, before, after)
    for control in run.controls.all:
        if isinstance(control, Limiting):
            control.refuse_unpriced(run)
    for look in (*own.begin, *own.before_model):
        await look(run)


async def _become(run: Run, agent: Agent) -> Controls:
    """Give the run what the agent brings; return the controls among that."""
    staying = [control for control in run.controls.all if _stays(control)]
    defaults = defaults_of(type(agent))
    given = dict.fromkeys(RUN_OPTIONS) | passed_on(run, agent)
    run.agent, run.view, run.resolve = agent, None, None
    run.request_options = defaults.request_options
    run.capture_content = run.capture_content and defaults.capture_content
    bind(run, agent, given, None)
    if run.resolve is not None:
        await run.resolve(run)
    own = run.controls
    run.controls = Controls((*staying, *own.all))
    return own


def _stays(control: Control) -> bool:
    """Return whether a control is of the run and not of the agent: nothing resets limits."""
    return isinstance(control, Limiting)


# -- going on with a run that was recorded --------------------------------------------------


def go_on_as_last(run: Run, spans: list[Span]) -> None:
    """Have a run that goes on from its spans do so as the agent that had it last."""
    last, agent = 0, run.agent
    for span in spans:
        if span.kind == AGENT and span.name == HANDOFF:
            last, agent = span.ordering, _successor_of(agent, span.input["to"])
            run.handoffs.append(agent._meta.label)
    if agent is not run.agent:
        run.resolve = partial(_go_on_as, agent=agent, first=run.resolve)
    for span in spans:
        if span.ordering > last and span.kind == TOOL and not span.error_type:
            others = successors_of(agent._meta)
            announced = [each for each in others if _transfers(span.name, each)]
            if announced:
                run.successor = partial(hand_over, agent=agent_of(announced[0]))


async def _go_on_as(run: Run, *, agent: Agent, first: Resolve | None) -> None:
    if first is not None:
        await first(run)
    await _become(run, agent)


def _transfers(name: str, reference: Any) -> bool:
    return name == f"transfer_to_{name_of(reference)}"


def _successor_of(agent: Agent, label: str) -> Agent:
    """Return the agent of a label as ``agent`` names it, or as it is declared."""
    named = [agent_of(each) for each in agent._meta.handoffs]
    return next((each for each in named if each._meta.label == label), None) or agent_of(label)
