"""Agents as other agents name them: by class, by instance, or by label."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from mlango.agents.providers.registry import get_provider
from mlango.core.options import UNSET, Options
from mlango.exceptions import Misconfigured
from mlango.runtime.registry import registry

if TYPE_CHECKING:
    from mlango.agents.agent import Agent
    from mlango.core.run import Run

WORD_BREAK = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def agent_of(reference: Any) -> Agent:
    """Return the agent that is meant; a class or a label means it as it is declared."""
    kind = registry.get(reference) if isinstance(reference, str) else reference
    agent: Agent = kind() if isinstance(kind, type) else kind
    return agent


def name_of(reference: Any) -> str:
    """Return the agent's name as tools are named: that of BillingDesk is ``billing_desk``."""
    label = reference if isinstance(reference, str) else reference._meta.object_name
    return WORD_BREAK.sub("_", label.rpartition(".")[2]).lower()


def successors_of(meta: Options) -> list[Any]:
    """Return whom an agent may hand over to; a list that it shares with others may name it."""
    return [each for each in meta.handoffs if each != meta.label]


def check_references(meta: Options, option: str) -> None:
    """Raise Misconfigured for what is no agent. Labels may name agents that come later."""
    owner = f"{meta.object_name}.Meta.{option}"
    for reference in getattr(meta, option):
        if isinstance(reference, str) and reference:
            continue
        _check_agent(owner, reference)


def _check_agent(owner: str, reference: Any) -> None:
    meta = getattr(reference, "_meta", None)
    if not isinstance(meta, Options) or meta.abstract:
        what = "an abstract agent" if isinstance(meta, Options) else "not an agent"
        raise Misconfigured(
            f"{owner} holds {reference!r}, which is {what}. It takes agent classes, instances, "
            f"and labels such as 'shop.Billing'."
        )


def passed_on(run: Run, agent: Agent) -> dict[str, Any]:
    """Return the options of a run that also hold for an agent which works in it.

    A run that was given an offline provider asks no other: a test that scripts a run never
    reaches the network through another agent.
    """
    options = {"approve": run.options.get("approve")}
    given = run.options.get("provider")
    if given and run.provider.offline and not _is_offline(agent._meta.provider):
        options["provider"] = given
    return options


def _is_offline(declared: Any) -> bool:
    return declared is not UNSET and get_provider(declared).offline
