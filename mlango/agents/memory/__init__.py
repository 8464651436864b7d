"""The memories: what an agent recalls of a session."""

from mlango.agents.memory.buffer import BufferMemory
from mlango.agents.memory.null import NullMemory
from mlango.agents.memory.window import WindowMemory
from mlango.core.memory import History, Memory, SessionKey

__all__ = [
    "BufferMemory",
    "History",
    "Memory",
    "MetastoreMemory",
    "NullMemory",
    "SessionKey",
    "WindowMemory",
]


def __getattr__(name: str) -> type[Memory]:
    if name == "MetastoreMemory":
        # It reads rows, and models can be imported only once the apps are loaded.
        from mlango.agents.memory.metastore import MetastoreMemory

        return MetastoreMemory
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
