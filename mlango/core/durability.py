"""What an agent says about its durable runs."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from mlango.exceptions import Misconfigured

ASK, TELL_MODEL = "ask", "tell_model"
UNKNOWN = (ASK, TELL_MODEL)


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
        if self.unknown not in UNKNOWN:
            raise Misconfigured(
                f"Durable(unknown={self.unknown!r}): choose from 'ask' and 'tell_model'."
            )
        if type(self.max_crashes) is not int or self.max_crashes < 1:
            raise Misconfigured(
                f"Durable(max_crashes={self.max_crashes!r}): it must be a whole number above 0."
            )

    @classmethod
    def of(cls, declared: Any) -> Durable:
        """Return what ``Meta.durable`` says, where it may be True only."""
        return declared if isinstance(declared, cls) else cls()

    def describe(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}
