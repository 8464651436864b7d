"""The agents of a site, by label."""

from __future__ import annotations

from typing import Any

from django.utils.module_loading import autodiscover_modules

from mlango.exceptions import Misconfigured, UnknownAgent, did_you_mean


class Registry:
    """Agent classes by their label, ``app_label.ClassName``."""

    def __init__(self) -> None:
        self._agents: dict[str, type[Any]] = {}
        self._discovered = False

    def register(self, agent: type[Any]) -> None:
        """Add a class. Two classes of one label in two ``agents`` modules are an error.

        A class made elsewhere, as in a test, never takes the label of one that is declared.
        """
        label = agent._meta.label
        other = self._agents.get(label)
        if other is None or not _is_declared(other) or _place(other) == _place(agent):
            self._agents[label] = agent
        elif _is_declared(agent):
            raise Misconfigured(
                f"Two agents have the label {label!r}: {_place(other)} and {_place(agent)}. "
                f"Rename one, or set Meta.app_label."
            )

    def discover(self) -> None:
        """Import ``agents.py`` and ``scopes.py`` of every installed app, once."""
        if not self._discovered:
            self._discovered = True
            autodiscover_modules("agents")
            autodiscover_modules("scopes")

    def all(self) -> list[type[Any]]:
        """Return the agents in the order of their labels."""
        self.discover()
        return [self._agents[label] for label in sorted(self._agents)]

    def get(self, label: str) -> type[Any]:
        """Return the agent with ``label``; a class name alone will do when only one has it."""
        self.discover()
        if label in self._agents:
            return self._agents[label]
        named = [agent for agent in self._agents.values() if agent.__name__ == label]
        if len(named) == 1:
            return named[0]
        known = sorted(self._agents)
        if not known:
            raise UnknownAgent(
                f"No agent is labelled {label!r}: this site has none. "
                f"Write one in an app's agents.py, or run manage.py startagent."
            )
        raise UnknownAgent(
            f"No agent is labelled {label!r}.{did_you_mean(label, known)} "
            f"Agents are: {', '.join(known)}."
        )


def _place(agent: type[Any]) -> str:
    return f"{agent.__module__}.{agent.__qualname__}"


def _is_declared(agent: type[Any]) -> bool:
    """Return whether a class stands in an ``agents`` module, outside any function."""
    return "agents" in agent.__module__.split(".") and "<locals>" not in agent.__qualname__


registry = Registry()
