"""Handoffs: the rest of a run goes on as another agent.

The other agent brings its prompt, tools, model, provider and controls. The conversation, the
session, the bounds and the limits stay those of the run.
"""

from __future__ import annotations

from functools import partial
from time import time
from typing import TYPE_CHECKING, Any

from mlango.agents.defaults import defaults_of
from mlango.agents.references import agent_of, name_of, passed_on
from mlango.agents.resolve import RUN_OPTIONS, bind
from mlango.core.context import Context, run_of
from mlango.core.controls import Controls
from mlango.core.events import HandedOff
from mlango.core.journal import AGENT, Entry
from mlango.core.limits import Limiting
from mlango.core.run import Run
from mlango.core.tools import Tool, tool
from mlango.exceptions import ToolError

if TYPE_CHECKING:
    from mlango.agents.agent import Agent

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
    stays = [control for control in run.controls.all if isinstance(control, Limiting)]
    for end in Controls([each for each in run.controls.all if each not in stays]).end:
        await end(run)
    await _become(run, agent)
    own = run.controls
    run.controls = Controls((*stays, *own.all))
    run.handoffs.append(after)
    run.journal.write(
        Entry(
            AGENT,
            "handoff",
            run.next_ordering(),
            run.step,
            time(),
            0.0,
            {"from": before, "to": after},
            [],
        )
    )
    run.note(HandedOff, before, after)
    for look in (*own.begin, *own.before_model):
        await look(run)


async def _become(run: Run, agent: Agent) -> None:
    defaults = defaults_of(type(agent))
    given = dict.fromkeys(RUN_OPTIONS) | passed_on(run, agent)
    run.agent, run.view, run.resolve = agent, None, None
    run.request_options = defaults.request_options
    run.capture_content = run.capture_content and defaults.capture_content
    bind(run, agent, given, None)
    if run.resolve is not None:
        await run.resolve(run)
