"""``manage.py agents``: the agents of this site."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from mlango.runtime.registry import registry


class Command(BaseCommand):
    """Lists the agents with their models and tools."""

    help = "List the agents of this site."

    def handle(self, *args: Any, **options: Any) -> None:
        agents = registry.all()
        if not agents:
            self.stderr.write("This site has no agents. Write one in an app's agents.py.")
        for agent in agents:
            meta = agent._meta
            names = [tool.name for tool in (*meta.tools, *meta.methods) if hasattr(tool, "name")]
            self.stdout.write(f"{meta.label}  {meta.model or '-'}  {', '.join(names) or '-'}")
