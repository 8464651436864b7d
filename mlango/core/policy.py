"""Which tool calls run, which are refused, and which ask a person first."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import Any

from mlango.core.threads import in_thread
from mlango.core.wanted import FLAG, Wanted, check, check_made
from mlango.exceptions import Misconfigured, did_you_mean

ALLOW, ASK, DENY = "allow", "ask", "deny"
EFFECTS = (DENY, ASK, ALLOW)

# Called with the arguments as a dict and, if it takes two, the Context. May be async.
When = Callable[..., Any]


def is_permission(value: Any) -> bool:
    """Return whether a value is a Django permission: ``app_label.codename``."""
    return isinstance(value, str) and bool(re.fullmatch(r"[^\s.]+\.[^\s.]+", value))


PERMISSION = Wanted(
    is_permission, "a Django permission, 'app_label.codename', such as 'shop.change_order'"
)
NO_OR_PERMISSION = Wanted(lambda value: value == "" or is_permission(value), PERMISSION.words)
WHEN = Wanted(callable, "a function of the arguments").or_none()
WANTED_OF_APPROVAL = {
    "permission": NO_OR_PERMISSION,
    "when": WHEN,
    "four_eyes": FLAG,
    "expires": Wanted(
        lambda value: isinstance(value, timedelta) and value > timedelta(), "a positive timedelta"
    ).or_none("None for never"),
}
WANTED_OF_RULE = {
    "pattern": Wanted(
        lambda value: isinstance(value, str) and bool(value),
        "the name of a tool, or a pattern of names such as 'refund_*'",
    ),
    "when": WHEN,
}


@dataclass(frozen=True, slots=True)
class Approval:
    """Asks a person before a tool call runs.

    ``permission`` is what someone needs to decide; without one the run's own user may, and
    whoever may change approvals. ``when`` gets the arguments, and the Context if it takes
    two, and returns whether to ask. With ``four_eyes`` the run's user may not decide.
    ``expires`` is a timedelta, or None for never.
    """

    permission: str = ""
    when: When | None = None
    four_eyes: bool = False
    expires: timedelta | None = None

    def __post_init__(self) -> None:
        check_made(self, WANTED_OF_APPROVAL)


def approval_of(declared: Any) -> Approval | None:
    """Return what ``@tool(approval=…)`` asks for; None where it asks for nothing."""
    if not declared:
        return None
    if isinstance(declared, Approval):
        return declared
    return Approval(when=declared) if callable(declared) else Approval()


@dataclass(frozen=True, slots=True)
class Rule:
    """What to do with calls of the tools whose names match ``pattern``, as in a shell."""

    effect: str
    pattern: str
    when: When | None = None

    def __post_init__(self) -> None:
        values = {"pattern": self.pattern, "when": self.when}
        check(f"{{}} of {self.effect}()", values, WANTED_OF_RULE)

    def describe(self) -> list[str]:
        return [self.effect, self.pattern]

    def covers(self, name: str) -> bool:
        return fnmatchcase(name, self.pattern)


def allow(pattern: str, *, when: When | None = None) -> Rule:
    """Return a rule that lets calls run without asking."""
    return Rule(ALLOW, pattern, when)


def ask(pattern: str, *, when: When | None = None) -> Rule:
    """Return a rule that asks a person first."""
    return Rule(ASK, pattern, when)


def deny(pattern: str, *, when: When | None = None) -> Rule:
    """Return a rule that refuses calls."""
    return Rule(DENY, pattern, when)


def rules_of(declared: Any) -> tuple[Rule, ...]:
    """Return the rules of ``Meta.permissions``, the first that fits goes.

    They are a list of rules, or a dict of lists of patterns in which ``deny`` goes before
    ``ask`` and that before ``allow``.
    """
    if isinstance(declared, dict):
        for name in declared:
            if name not in EFFECTS:
                raise Misconfigured(
                    f"permissions has no rule {name!r}.{did_you_mean(str(name), EFFECTS)} "
                    f"Rules are: allow, ask, deny."
                )
        return tuple(
            Rule(effect, pattern)
            for effect in EFFECTS
            for pattern in _patterns(effect, declared.get(effect, ()))
        )
    for rule in declared or ():
        if not isinstance(rule, Rule):
            raise Misconfigured(
                f"permissions holds {rule!r}, which is not a rule. Write allow('search_*'), "
                f"ask('refund_*') or deny('*')."
            )
    return tuple(declared or ())


def _patterns(effect: str, patterns: Any) -> Iterable[str]:
    if isinstance(patterns, list | tuple) and all(isinstance(p, str) for p in patterns):
        return patterns
    raise Misconfigured(f"permissions[{effect!r}] is a list of tool names, not {patterns!r}.")


async def holds_for(when: When | None, arguments: dict[str, Any], context: Any) -> bool:
    """Return whether a condition holds; it may be async, and may block."""
    if when is None:
        return True
    given = (arguments, context) if _takes_two(when) else (arguments,)
    if inspect.iscoroutinefunction(when):
        return bool(await when(*given))
    return bool(await in_thread(when, *given))


def _takes_two(when: When) -> bool:
    return len(inspect.signature(when).parameters) > 1
