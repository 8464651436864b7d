"""What the value of an option must be: a test of it, and the words for that.

Whatever takes options names each with what is Wanted of it, and has them checked at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mlango.core.numbers import is_count, is_positive, is_seconds
from mlango.exceptions import Misconfigured, MlangoError, did_you_mean


@dataclass(frozen=True, slots=True)
class Wanted:
    """``fits`` tells whether a value will do, ``words`` what would."""

    fits: Callable[[Any], bool]
    words: str
    choices: tuple[Any, ...] = ()

    def or_none(self, words: str = "None") -> Wanted:
        """Return the same where None will do too; the words say what it means."""
        fits = self.fits
        return Wanted(lambda v: v is None or fits(v), f"{self.words}, or {words}", self.choices)

    def hint(self, value: Any) -> str:
        """Return which choice a misspelt value may mean."""
        choices = [each for each in self.choices if isinstance(each, str)]
        return did_you_mean(value, choices) if isinstance(value, str) else ""


def check(
    where: str,
    values: Mapping[str, Any],
    wanted: Mapping[str, Wanted],
    error: type[MlangoError] = Misconfigured,
) -> None:
    """Raise an error for the first value that will not do; ``{}`` in ``where`` is its name."""
    for name, value in values.items():
        rule = wanted.get(name)
        if rule is not None and not rule.fits(value):
            raise error(
                f"{where.format(name)} must be {rule.words}, not {value!r:.100}.{rule.hint(value)}"
            )


def check_made(made: Any, wanted: Mapping[str, Wanted]) -> None:
    """Raise Misconfigured for the first attribute of an object that will not do."""
    values = {name: getattr(made, name) for name in wanted}
    check(f"{{}} of {type(made).__name__}()", values, wanted)


def one_of(*choices: Any) -> Wanted:
    """Return what is wanted where there is a closed list of choices."""
    listed = ", ".join(repr(choice) for choice in choices)
    return Wanted(lambda value: value in choices, f"one of {listed}", choices)


def instance_of(words: str, *kinds: type) -> Wanted:
    """Return what is wanted where only objects of some classes will do."""
    return Wanted(lambda value: isinstance(value, kinds), words)


def _are_strings(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)


TEXT = instance_of("text", str)
FLAG = instance_of("True or False", bool)
COUNT = Wanted(is_count, "a whole number above 0")
AMOUNT = Wanted(is_positive, "a number above 0")
SECONDS = Wanted(is_seconds, "a number of seconds above 0")
FUNCTION = Wanted(callable, "a function")
STRINGS = Wanted(_are_strings, "a list of strings")
USER = Wanted(
    lambda value: hasattr(value, "is_authenticated") and not isinstance(value, type),
    "a user, such as request.user",
)
