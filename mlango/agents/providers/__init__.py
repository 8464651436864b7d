"""Who speaks to a model: the base class, what ships with mlango, and how to get one."""

from typing import TYPE_CHECKING

from mlango.core.provider import Completion, Provider, ReasoningDelta, ToolCall, ToolCallDelta
from mlango.core.usage import Usage
from mlango.lazy import exports

if TYPE_CHECKING:
    from mlango.agents.providers.cassette import Cassette
    from mlango.agents.providers.echo import EchoProvider
    from mlango.agents.providers.fallback import FallbackProvider
    from mlango.agents.providers.litellm import LiteLLMProvider
    from mlango.agents.providers.openai_compatible import OpenAICompatibleProvider
    from mlango.agents.providers.recording import RecordingProvider
    from mlango.agents.providers.registry import available_providers, get_provider
    from mlango.agents.providers.replay import ReplayProvider
    from mlango.agents.providers.scripted import ScriptedProvider

__all__ = [
    "CONTENT_FILTER",
    "END_TURN",
    "MAX_TOKENS",
    "PAUSE_TURN",
    "REFUSAL",
    "TOOL_USE",
    "Cassette",
    "Completion",
    "EchoProvider",
    "FallbackProvider",
    "LiteLLMProvider",
    "OpenAICompatibleProvider",
    "Provider",
    "ReasoningDelta",
    "RecordingProvider",
    "ReplayProvider",
    "ScriptedProvider",
    "ToolCall",
    "ToolCallDelta",
    "Usage",
    "available_providers",
    "get_provider",
]

END_TURN = Completion.END_TURN
TOOL_USE = Completion.TOOL_USE
MAX_TOKENS = Completion.MAX_TOKENS
PAUSE_TURN = Completion.PAUSE_TURN
REFUSAL = Completion.REFUSAL
CONTENT_FILTER = Completion.CONTENT_FILTER

_HERE = "mlango.agents.providers"
_PLACES = {
    "Cassette": f"{_HERE}.cassette",
    "EchoProvider": f"{_HERE}.echo",
    "FallbackProvider": f"{_HERE}.fallback",
    "LiteLLMProvider": f"{_HERE}.litellm",
    "OpenAICompatibleProvider": f"{_HERE}.openai_compatible",
    "RecordingProvider": f"{_HERE}.recording",
    "ReplayProvider": f"{_HERE}.replay",
    "ScriptedProvider": f"{_HERE}.scripted",
    "available_providers": f"{_HERE}.registry",
    "get_provider": f"{_HERE}.registry",
}

__getattr__, __dir__ = exports(__name__, _PLACES)
