"""Everything that an app's ``agents.py`` needs."""

from typing import TYPE_CHECKING

from mlango.lazy import exports

if TYPE_CHECKING:
    from mlango.agents.agent import Agent
    from mlango.agents.compaction import Compaction
    from mlango.agents.guardrails import (
        DenyTopics,
        LLMJudge,
        MaxLength,
        Regex,
        SecretScan,
    )
    from mlango.agents.hooks import Hooks
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
    from mlango.agents.schedules import Cron, Target
    from mlango.agents.scopes import scope
    from mlango.agents.toolsets.builtin import current_date, day_name, http_request
    from mlango.agents.traces import get_trace, recent_traces
    from mlango.core.context import Context
    from mlango.core.controls import Halt
    from mlango.core.durability import Durable
    from mlango.core.events import (
        ApprovalDecided,
        ApprovalRequested,
        ArtifactAdded,
        BudgetExceeded,
        Compacted,
        Event,
        Failed,
        FellBack,
        Finished,
        FollowedUp,
        GuardrailRewrote,
        GuardrailTripped,
        HandedOff,
        QuestionAsked,
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
    from mlango.core.guardrails import Block, Guardrail, GuardrailContext, Rewrite
    from mlango.core.limits import Limits
    from mlango.core.lookups import Lookup
    from mlango.core.policy import Approval, allow, ask, deny
    from mlango.core.quota import Quota
    from mlango.core.retry import Retry
    from mlango.core.run import AgentRun
    from mlango.core.tools import Tool, ToolResult, Toolset, tool
    from mlango.exceptions import ProviderError, RunError, SignInRequired, ToolError

__all__ = [
    "Agent",
    "AgentRun",
    "Approval",
    "ApprovalDecided",
    "ApprovalRequested",
    "ArtifactAdded",
    "Block",
    "BudgetExceeded",
    "BufferMemory",
    "Compacted",
    "Compaction",
    "Context",
    "Cron",
    "DenyTopics",
    "Durable",
    "Event",
    "Failed",
    "FellBack",
    "Finished",
    "FollowedUp",
    "Guardrail",
    "GuardrailContext",
    "GuardrailRewrote",
    "GuardrailTripped",
    "Halt",
    "HandedOff",
    "History",
    "Hooks",
    "LLMJudge",
    "Limits",
    "Lookup",
    "MaxLength",
    "Memory",
    "MetastoreMemory",
    "NullMemory",
    "ProviderError",
    "QuestionAsked",
    "Quota",
    "ReasoningChunk",
    "RecordingProvider",
    "Regex",
    "ReplayProvider",
    "Retry",
    "Retrying",
    "Rewrite",
    "RunError",
    "SecretScan",
    "SessionKey",
    "SignInRequired",
    "Started",
    "Steered",
    "StepFinished",
    "Target",
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
    "allow",
    "ask",
    "current_date",
    "day_name",
    "deny",
    "get_trace",
    "http_request",
    "recent_traces",
    "scope",
    "tool",
]

_MODULES = {
    "mlango.agents.agent": ["Agent"],
    "mlango.agents.guardrails": ["DenyTopics", "LLMJudge", "MaxLength", "Regex", "SecretScan"],
    "mlango.agents.compaction": ["Compaction"],
    "mlango.agents.hooks": ["Hooks"],
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
    "mlango.agents.schedules": ["Cron", "Target"],
    "mlango.agents.scopes": ["scope"],
    "mlango.agents.traces": ["get_trace", "recent_traces"],
    "mlango.core.context": ["Context"],
    "mlango.core.controls": ["Halt"],
    "mlango.core.guardrails": ["Block", "Guardrail", "GuardrailContext", "Rewrite"],
    "mlango.core.durability": ["Durable"],
    "mlango.core.limits": ["Limits"],
    "mlango.core.lookups": ["Lookup"],
    "mlango.core.policy": ["Approval", "allow", "ask", "deny"],
    "mlango.core.quota": ["Quota"],
    "mlango.core.retry": ["Retry"],
    "mlango.core.run": ["AgentRun"],
    "mlango.core.tools": ["Tool", "ToolResult", "Toolset", "tool"],
    "mlango.exceptions": ["ProviderError", "RunError", "SignInRequired", "ToolError"],
}
_PLACES = {name: module for module, names in _MODULES.items() for name in names}
_PLACES |= {name: "mlango.core.events" for name in __all__ if name not in _PLACES}

__getattr__, __dir__ = exports(__name__, _PLACES)
