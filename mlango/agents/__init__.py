"""Everything that an app's ``agents.py`` needs."""

from typing import TYPE_CHECKING

from mlango.lazy import exports

if TYPE_CHECKING:
    from mlango.agents.agent import Agent
    from mlango.agents.memory import (
        BufferMemory,
        History,
        Memory,
        MetastoreMemory,
        NullMemory,
        SessionKey,
        WindowMemory,
    )
    from mlango.agents.providers import RecordingProvider, ReplayProvider
    from mlango.agents.toolsets.builtin import current_date, day_name, http_request
    from mlango.agents.traces import get_trace, recent_traces
    from mlango.core.context import Context
    from mlango.core.events import (
        ArtifactAdded,
        Event,
        Failed,
        Finished,
        FollowedUp,
        ReasoningChunk,
        Retrying,
        Started,
        Steered,
        StepFinished,
        TextChunk,
        Thinking,
        ToolCallChunk,
        ToolCalled,
        ToolFinished,
        ToolProgress,
    )
    from mlango.core.run import AgentRun
    from mlango.core.tools import Tool, ToolResult, Toolset, tool
    from mlango.exceptions import ProviderError, RunError, ToolError

__all__ = [
    "Agent",
    "AgentRun",
    "ArtifactAdded",
    "BufferMemory",
    "Context",
    "Event",
    "Failed",
    "Finished",
    "FollowedUp",
    "History",
    "Memory",
    "MetastoreMemory",
    "NullMemory",
    "ProviderError",
    "ReasoningChunk",
    "RecordingProvider",
    "ReplayProvider",
    "Retrying",
    "RunError",
    "SessionKey",
    "Started",
    "Steered",
    "StepFinished",
    "TextChunk",
    "Thinking",
    "Tool",
    "ToolCallChunk",
    "ToolCalled",
    "ToolError",
    "ToolFinished",
    "ToolProgress",
    "ToolResult",
    "Toolset",
    "WindowMemory",
    "current_date",
    "day_name",
    "get_trace",
    "http_request",
    "recent_traces",
    "tool",
]

_MODULES = {
    "mlango.agents.agent": ["Agent"],
    "mlango.agents.memory": [
        "BufferMemory",
        "History",
        "Memory",
        "MetastoreMemory",
        "NullMemory",
        "SessionKey",
        "WindowMemory",
    ],
    "mlango.agents.providers": ["RecordingProvider", "ReplayProvider"],
    "mlango.agents.toolsets.builtin": ["current_date", "day_name", "http_request"],
    "mlango.agents.traces": ["get_trace", "recent_traces"],
    "mlango.core.context": ["Context"],
    "mlango.core.run": ["AgentRun"],
    "mlango.core.tools": ["Tool", "ToolResult", "Toolset", "tool"],
    "mlango.exceptions": ["ProviderError", "RunError", "ToolError"],
}
_PLACES = {name: module for module, names in _MODULES.items() for name in names}
_PLACES |= {name: "mlango.core.events" for name in __all__ if name not in _PLACES}

__getattr__, __dir__ = exports(__name__, _PLACES)
