"""Quotas: what may be spent in a period, by all runs that are counted together."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from mlango.core.numbers import is_count, is_positive
from mlango.core.wanted import FLAG, Wanted, check_made, one_of
from mlango.exceptions import Misconfigured

PER = ("user", "agent", "tenant", "site")
EVERY = ("hour", "day", "week", "month")
BILLION = 10**9


def units_of(unit: str, amount: Any) -> int:
    """Return an amount as it is counted: in tokens, or in billionths of a dollar."""
    return int(Decimal(str(amount)) * BILLION) if unit == "usd" else int(amount)


def amount_of(unit: str, units: int) -> Any:
    """Return what so many units are in tokens or dollars."""
    return Decimal(units) / BILLION if unit == "usd" else units


WANTED = {
    "usd": Wanted(is_positive, "a number of US dollars above 0").or_none(),
    "tokens": Wanted(is_count, "a whole number of tokens above 0").or_none(),
    "per": one_of(*PER),
    "every": one_of(*EVERY),
    "allow_unpriced": FLAG,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """What may be spent in each hour, day, week or month: ``usd`` or ``tokens``.

    ``per`` says whose runs are counted together. A model of unknown price is refused by a
    quota of US dollars unless ``allow_unpriced``.
    """

    usd: Decimal | float | int | None = None
    tokens: int | None = None
    per: str
    every: str
    allow_unpriced: bool = False

    def __post_init__(self) -> None:
        if (self.usd is None) == (self.tokens is None):
            raise Misconfigured("Quota(...) takes either usd or tokens.")
        check_made(self, WANTED)

    @property
    def unit(self) -> str:
        """``usd`` or ``tokens``."""
        return "usd" if self.tokens is None else "tokens"

    @property
    def max(self) -> Any:
        """How much may be spent."""
        return self.usd if self.tokens is None else self.tokens

    def describe(self) -> dict[str, Any]:
        """Return the quota, JSON-safe."""
        limit = str(self.max) if self.unit == "usd" else self.max
        return {self.unit: limit, "per": self.per, "every": self.every}
