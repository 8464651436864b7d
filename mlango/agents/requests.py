"""What is stored of a request, so that any process can begin the run that it asks for."""

from __future__ import annotations

import json
from dataclasses import fields
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from django.contrib.auth import get_user_model

from mlango.agents.defaults import defaults_of
from mlango.agents.surroundings import current
from mlango.clock import Now
from mlango.core.journal import Journal
from mlango.core.limits import Limits
from mlango.core.provider import Message
from mlango.core.values import dumps, to_json
from mlango.exceptions import Misused
from mlango.runtime.tokens import Service

if TYPE_CHECKING:
    from mlango.agents.agent import Agent

STORED = (
    "session_id",
    "history",
    "model",
    "provider",
    "max_steps",
    "metadata",
    "state",
    "buffered",
)
AGAIN = ("model", "provider", "max_steps", "state", "buffered")
HERE = ("request",)  # serves the process that was given it, and is None in any other
NEVER_STORED = ("memory", "approve")


def stored(
    agent: Agent,
    said: list[Message],
    given: dict[str, Any],
    extra: dict[str, Any],
    *,
    here: bool,
) -> dict[str, Any]:
    """Return a request as JSON data. Raise Misused for what cannot be stored, by its name.

    With ``here`` the run begins in this process.
    """
    for name in (*NEVER_STORED, *(() if here else HERE)):
        if given.get(name) is not None:
            raise _unstorable(agent, name, "it works in this process only")
    user = given.get("user")
    # What is stored of either is a key by which any process finds it.
    if user is not None and not isinstance(user, get_user_model() | Service):
        name = get_user_model().__name__
        raise _unstorable(agent, "user", f"it must be a row of {name}, or have a token")
    if not isinstance(given.get("provider"), str | None):
        raise _unstorable(agent, "provider", "name it, and say in MLANGO['PROVIDERS'] what it is")
    options = {name: given[name] for name in STORED if given.get(name) is not None} | extra
    for name, value in options.items():
        if not _is_data(value):
            raise _unstorable(agent, name, "it must be JSON data")
    limits = given.get("limits")
    if limits is not None:
        options["limits"] = _described(limits)
    config = {name: to_json(getattr(agent, name)) for name in agent._fields}
    return {"said": said, "options": options, "config": config}


def restored(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a stored request as a run takes them."""
    limits = options.get("limits")
    return options if limits is None else {**options, "limits": _limits(limits)}


def renewed(request: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Return a stored request with what somebody who goes on with its run has given anew.

    What cannot be stored holds in the process of whoever gave it.
    """
    options = {name: given[name] for name in AGAIN if given.get(name) is not None}
    kept = {name: value for name, value in options.items() if _is_data(value)}
    limits = given.get("limits")
    if limits is not None:
        kept["limits"] = _described(limits)
    return {**request, "options": request["options"] | kept}


def is_durable(agent: Agent, given: dict[str, Any]) -> bool:
    """Return whether a run is to be durable: the agent says so, or the request needs it."""
    return bool(agent._meta.durable or given.get("idempotency_key"))


def new_row(
    agent: Agent,
    said: list[Message],
    given: dict[str, Any],
    extra: dict[str, Any],
    *,
    here: bool,
) -> dict[str, Any]:
    """Return the values of the row of a run that has none yet."""
    check_durable(agent)
    from mlango.runtime.durable import digest

    request = stored(agent, said, given, extra, here=here)
    return {
        # Who asks again for the same may have another language by then.
        "request_json": dumps(request | {"surroundings": current()}),
        "request_digest": digest(request),
        "idempotency_key": given.get("idempotency_key"),
        "due_at": Now(),
    }


def check_durable(agent: Agent) -> None:
    """Raise Misused unless runs of the agent can be written down in full."""
    if not can_be_durable(type(agent)):
        raise Misused(
            f"{agent._meta.label} cannot have durable runs without traces and their content. "
            f"Set tracing and capture_content to True."
        )


def can_be_durable(kind: type[Agent]) -> bool:
    """Return whether runs of an agent can be written down in full."""
    defaults = defaults_of(kind)
    return defaults.is_traced and defaults.capture_content


def durable_journal(**arguments: Any) -> Journal:
    """Return the journal of a durable run."""
    # Rows can be imported only once the apps are loaded.
    from mlango.runtime.durable import DurableJournal

    return DurableJournal(**arguments)


def _unstorable(agent: Agent, name: str, why: str) -> Misused:
    return Misused(
        f"A durable run of {agent._meta.label} cannot be given this {name!r}, which must be "
        f"stored: {why}."
    )


def _is_data(value: Any) -> bool:
    """Return whether a value is the same after it was JSON."""
    if isinstance(value, list | tuple):
        return all(map(_is_data, value))
    return bool(json.loads(dumps(value)) == value)


def _described(limits: Limits) -> dict[str, Any]:
    values = limits.describe()
    cost = values.get("max_cost_usd")
    return values if cost is None else {**values, "max_cost_usd": str(cost)}


def _limits(values: dict[str, Any]) -> Limits:
    cost = values.get("max_cost_usd")
    known = {each.name for each in fields(Limits)}
    kept = {name: value for name, value in values.items() if name in known}
    return Limits(**kept if cost is None else {**kept, "max_cost_usd": Decimal(cost)})
