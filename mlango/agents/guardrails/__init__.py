"""The guardrails that come with mlango, and those of an agent by class, name or spec."""

from __future__ import annotations

import inspect
import re
from typing import Any

from mlango.agents.guardrails.judge import LLMJudge
from mlango.agents.guardrails.maxlength import MaxLength
from mlango.agents.guardrails.regex import Regex
from mlango.agents.guardrails.secrets import SecretScan
from mlango.agents.guardrails.topics import DenyTopics
from mlango.core.guardrails import KINDS, METHODS, Guardrail, kinds
from mlango.exceptions import Misconfigured, did_you_mean

__all__ = [
    "DenyTopics",
    "Guardrail",
    "LLMJudge",
    "MaxLength",
    "Regex",
    "SecretScan",
    "guardrail_of",
    "guardrails_of",
]

BUILT_IN: dict[str, type[Guardrail]] = {
    each.name: each for each in (MaxLength, SecretScan, Regex, DenyTopics, LLMJudge)
}


def guardrails_of(where: str, declared: Any) -> tuple[Guardrail, ...]:
    """Return the guardrails that ``where`` declares. Raises Misconfigured."""
    return tuple(guardrail_of(f"{where}[{i}]", each) for i, each in enumerate(declared))


def guardrail_of(where: str, declared: Any) -> Guardrail:
    """Return a guardrail from one, its class, its name, or a dict of ``type`` and options."""
    if isinstance(declared, str):
        declared = {"type": declared}
    if isinstance(declared, dict):
        found = _named(where, declared)
    elif isinstance(declared, type) and issubclass(declared, Guardrail):
        found = _made(where, declared, {})
    else:
        found = declared
    if not isinstance(found, Guardrail):
        raise Misconfigured(
            f"{where} is {found!r}, which is not a guardrail. Write one such as "
            f"MaxLength(2000), or a name: {', '.join(BUILT_IN)}."
        )
    kinds(f"{where}: {type(found).__name__}", found.on)
    if not any(found.guards(kind) for kind in KINDS):
        methods = ", ".join(METHODS.values())
        raise Misconfigured(
            f"{where}: {type(found).__name__} checks nothing. Override {methods}, or name more "
            f"in on=."
        )
    return found


def _named(where: str, declared: dict[str, Any]) -> Guardrail:
    options = {_snake(str(name)): value for name, value in declared.items()}
    name = str(options.pop("type", ""))
    if name not in BUILT_IN:
        raise Misconfigured(
            f"{where}: unknown guardrail {name!r}.{did_you_mean(name, BUILT_IN)} "
            f"Guardrails are: {', '.join(BUILT_IN)}."
        )
    return _made(where, BUILT_IN[name], options)


def _made(where: str, kind: type[Guardrail], options: dict[str, Any]) -> Guardrail:
    known = inspect.signature(kind).parameters
    for name in options:
        if name not in known:
            raise Misconfigured(
                f"{where}: {kind.name} has no option {name!r}.{did_you_mean(name, known)} "
                f"Options are: {', '.join(known)}."
            )
    for name, parameter in known.items():
        variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if name not in options and parameter.default is parameter.empty and not variadic:
            raise Misconfigured(f"{where}: {kind.name} needs {name!r}.")
    return kind(**options)


def _snake(name: str) -> str:
    """Return ``max_chars`` for ``maxChars``, as spec files of other programs write it."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
