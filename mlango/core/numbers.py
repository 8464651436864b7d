"""Numbers that people set."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

NUMBERS = (int, float, Decimal)


def plain(amount: Decimal) -> str:
    """Return an amount in figures alone: ``0`` and not ``0E-10``, ``100`` and not ``1E+2``."""
    return f"{amount.normalize():f}"


def is_seconds(value: Any) -> bool:
    """Return whether a value is a time that a clock can count to."""
    if not is_positive(value, (int, float)):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def is_positive(value: Any, kinds: tuple[type, ...] = NUMBERS) -> bool:
    """Return whether a value is a number of one of ``kinds``, above zero and finite."""
    if isinstance(value, bool) or not isinstance(value, kinds):
        return False
    number: Any = value
    # A Decimal that is not a number cannot be compared; an int may be too large for isfinite.
    return (isinstance(number, int) or math.isfinite(number)) and bool(number > 0)


def is_count(value: Any) -> bool:
    """Return whether a value is a whole number above zero."""
    return is_positive(value, (int,))


def is_number_from(value: Any, least: float, kinds: tuple[type, ...] = (int, float)) -> bool:
    """Return whether a value is a finite number of one of ``kinds``, and not below ``least``."""
    if isinstance(value, bool) or not isinstance(value, kinds):
        return False
    number: Any = value
    return (isinstance(number, int) or math.isfinite(number)) and bool(number >= least)
