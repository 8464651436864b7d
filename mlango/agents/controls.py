"""Which controls watch over a run: those that its agent declares, in the order of their say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlango.core.controls import NO_CONTROLS, Control, Controls

if TYPE_CHECKING:
    from mlango.agents.agent import Agent


def controls_for(agent: Agent, given: dict[str, Any]) -> Controls:
    """Return the controls of a run of ``agent`` with the options it was ``given``."""
    controls: list[Control] = []
    return Controls(tuple(controls)) if controls else NO_CONTROLS
