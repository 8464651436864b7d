"""What can be seen to be wrong with a class of agents before its first run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlango.agents.fields import AgentField
from mlango.agents.references import check_references, name_of, successors_of
from mlango.core.memory import Memory
from mlango.core.options import ALIASES, NAMES, UNSET, Options
from mlango.core.overrides import check_overrides
from mlango.core.tools import Tool, Toolset, what_to_write
from mlango.exceptions import Misconfigured

if TYPE_CHECKING:
    from mlango.agents.agent import Agent

OVERRIDDEN = ("get_system", "get_tools", "get_model", "transform_context")


def check_agent(cls: type[Agent], base: type[Agent]) -> None:
    """Raise Misconfigured for the first thing that is wrong; ``base`` is Agent itself."""
    check_overrides(cls, base, OVERRIDDEN)
    for name, value in vars(cls).items():
        _check_attribute(cls.__name__, name, value)
    names = _tools_of(cls)
    check_references(cls._meta, "subagents")
    check_references(cls._meta, "handoffs")
    output = cls._meta.output
    for name in (*names_of_colleagues(cls._meta), *([output.tool.name] if output else [])):
        if name in names:
            raise Misconfigured(f"{cls.__name__} has two tools named {name!r}. Rename one.")
        names[name] = None
    _check_memory(cls)


def names_of_colleagues(meta: Options) -> list[str]:
    """Return the names of the tools that other agents bring, who need not be there yet."""
    return [
        *(name_of(each) for each in meta.subagents),
        *(f"transfer_to_{name_of(each)}" for each in successors_of(meta)),
    ]


def _check_attribute(owner: str, name: str, value: Any) -> None:
    """Raise Misconfigured for an option that nothing reads where it stands."""
    if isinstance(value, type):
        if name.lower() == "meta" and name != "Meta":
            raise Misconfigured(f"{owner}.{name} is not read. Did you mean 'class Meta'?")
        return
    is_own = hasattr(type(value), "__get__") or isinstance(value, AgentField)
    if name in (*NAMES, *ALIASES) and not is_own:
        raise Misconfigured(
            f"{owner}.{name} stands outside of class Meta, where nothing reads it. Write it as "
            f"an option in class Meta, or give it another name."
        )


def _tools_of(cls: type[Agent]) -> dict[str, Any]:
    """Return the class's tools by name."""
    names: dict[str, Any] = {}
    for item in (*cls._meta.tools, *cls._meta.methods):
        if isinstance(item, Toolset):
            continue
        if not isinstance(item, Tool):
            raise Misconfigured(
                f"{cls.__name__}.Meta.tools holds {item!r:.100}, which is not a tool. "
                f"{what_to_write(item)}"
            )
        if names.setdefault(item.name, item) is not item:
            raise Misconfigured(f"{cls.__name__} has two tools named {item.name!r}. Rename one.")
    return names


def _check_memory(cls: type[Agent]) -> None:
    memory = cls._meta.memory
    kind = memory if isinstance(memory, type) else type(memory)
    if memory is not UNSET and not issubclass(kind, Memory):
        raise Misconfigured(
            f"{cls.__name__}.Meta.memory must be a memory such as BufferMemory(k=20), or "
            f"NullMemory() for none, not {memory!r:.100}."
        )
