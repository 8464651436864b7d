"""Django signals about runs; sent by whoever reads the events, never by the loop.

``sender`` is the agent's class. ``agent_started(agent, run, event)``,
``agent_step(agent, run, event)``, ``tool_called(agent, tool, arguments, run, event)`` and
``agent_finished(agent, result, run, event)``. A receiver that raises is logged.
"""

from __future__ import annotations

from django.dispatch import Signal

agent_started = Signal()
agent_step = Signal()
tool_called = Signal()
agent_finished = Signal()
