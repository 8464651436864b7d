"""What an agent says about its durable runs."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from mlango.core.wanted import COUNT, check_made, one_of

ASK, TELL_MODEL = "ask", "tell_model"
UNKNOWN = (ASK, TELL_MODEL)
WANTED = {"unknown": one_of(*UNKNOWN), "max_crashes": COUNT}


@dataclass(frozen=True, slots=True, kw_only=True)
class Durable:
    """How durable runs meet a crash: ``Meta.durable = Durable(unknown="tell_model")``.

    A call of a ``once`` tool that a crash cut off may have had its effect. ``unknown`` says
    who is told: ``"ask"`` parks the run until a person has decided, ``"tell_model"`` lets the
    model know and goes on. A run that crashed ``max_crashes`` times without getting further
    fails.
    """

    unknown: str = ASK
    max_crashes: int = 3

    def __post_init__(self) -> None:
        check_made(self, WANTED)

    @classmethod
    def of(cls, declared: Any) -> Durable:
        """Return what ``Meta.durable`` says, where it may be True only."""
        return declared if isinstance(declared, cls) else cls()

    def describe(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}
