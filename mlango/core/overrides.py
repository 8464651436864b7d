"""Methods that a subclass overrides, and names that are nearly theirs."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from types import FunctionType

from mlango.exceptions import Misconfigured, did_you_mean

CLOSE = 0.85  # how alike a misspelt name must be; a method of one's own may have its like


def check_overrides(kind: type, base: type, names: Iterable[str], cutoff: float = CLOSE) -> None:
    """Raise Misconfigured for a method that is nearly named like one that ``kind`` overrides.

    Nothing would ever call it.
    """
    for name in methods_of(kind):
        hint = did_you_mean(name, names, cutoff)
        if hint and not hasattr(base, name):
            raise Misconfigured(
                f"{kind.__name__}.{name}() overrides nothing, so it is never called.{hint} "
                f"A method of your own takes a name of its own, such as '_{name}'."
            )


def methods_of(kind: type) -> list[str]:
    """Return the names of the public methods that a class itself defines."""
    methods = FunctionType | staticmethod | classmethod
    own = vars(kind).items()
    return [name for name, value in own if name[0] != "_" and isinstance(value, methods)]


def takes(function: object, count: int) -> bool:
    """Return whether a function can be called with so many arguments, as far as one can see."""
    if not callable(function):
        return False
    try:
        inspect.signature(function).bind(*[None] * count)
    except ValueError:  # what is written in C does not tell
        return True
    except TypeError:
        return False
    return True
