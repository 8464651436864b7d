"""mlango makes LLM agents part of a Django site, the way Django does things."""

from typing import TYPE_CHECKING

from mlango.lazy import exports

if TYPE_CHECKING:
    from mlango.agents import Agent, AgentRun, Context, ToolError, get_trace, recent_traces, tool

__all__ = ["Agent", "AgentRun", "Context", "ToolError", "get_trace", "recent_traces", "tool"]

__getattr__, __dir__ = exports(__name__, dict.fromkeys(__all__, "mlango.agents"))
