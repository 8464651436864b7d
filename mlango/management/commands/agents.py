"""``manage.py agents``: the agents of this site."""

from __future__ import annotations

from typing import Any

from mlango.agents.agent import Agent
from mlango.core.tools import Tool
from mlango.management.base import TerminalCommand
from mlango.management.endings import OK
from mlango.management.terminal import one_line
from mlango.runtime.registry import registry


class Command(TerminalCommand):
    """Lists the agents with their models, tools and descriptions."""

    help = "List the agents of this site."

    def perform(self, options: dict[str, Any]) -> int:
        agents = registry.all()
        if not agents:
            self.err.line("This site has no agents. Write one in an app's agents.py.")
        for agent in agents:
            self._show(agent)
        return OK

    def _show(self, agent: type[Agent]) -> None:
        meta = agent._meta
        tools = [each.name for each in (*meta.tools, *meta.methods) if isinstance(each, Tool)]
        self.out.line(meta.label)
        if meta.description:
            self.out.short_line(f"  {one_line(meta.description)}")
        self.out.line(f"  model: {meta.model or 'the default'}")
        self.out.line(f"  tools: {', '.join(tools) or 'none'}")
