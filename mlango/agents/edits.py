"""What somebody may make of the arguments of a tool call that waits for him."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlango.agents.durability import digest_of
from mlango.agents.references import agent_of, successors_of
from mlango.agents.resolve import fixed_tools
from mlango.exceptions import InvalidArguments, Misconfigured, Misused, did_you_mean

if TYPE_CHECKING:
    from mlango.agents.agent import Agent
    from mlango.core.tools import Tool
    from mlango.models import Approval


def edited(approval: Approval, changes: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call with changes; raise Misused where it cannot be made so."""
    arguments = {**approval.arguments, **changes}
    found = tool_of(approval)
    if found is None:
        _check_names(approval.arguments, changes)
    else:
        _check(found, arguments)
    return arguments


def _check(found: Tool, arguments: dict[str, Any]) -> None:
    try:
        found.parameters.validate(arguments)
    except InvalidArguments as error:
        raise Misused(f"The tool {found.name!r} cannot be called so. {error}") from None


def _check_names(known: dict[str, Any], changes: dict[str, Any]) -> None:
    """Raise Misused for an argument that nobody was shown, of a tool that is known elsewhere."""
    for name in changes:
        if name not in known:
            raise Misused(
                f"The call has no argument {name!r}.{did_you_mean(name, known)} "
                f"Its arguments are: {', '.join(known) or 'none'}."
            )


def tool_of(approval: Approval) -> Tool | None:
    """Return the tool that is to be called; None where this process does not know it.

    It is one of the run's agent, or of one that the run was handed over to.
    """
    agents, seen = [approval.agent], set[str]()
    while agents:
        agent = _declared(agents.pop())
        if agent is None or agent._meta.label in seen:
            continue
        seen.add(agent._meta.label)
        agents += successors_of(agent._meta)
        tools = fixed_tools(agent)
        found = tools.get(approval.tool) if tools is not None else None
        if found is not None and digest_of(found) == approval.tool_digest:
            return found
    return None


def _declared(reference: Any) -> Agent | None:
    try:
        return agent_of(reference)
    except (Misconfigured, Misused, TypeError):  # it is gone, or takes arguments
        return None
