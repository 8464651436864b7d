"""Erasing what is known of a user."""

from __future__ import annotations

from collections import Counter
from typing import Any

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError

from mlango.core.memory import Memory, SessionKey, owner_key
from mlango.exceptions import Misused
from mlango.models import Session, Trace
from mlango.models.removal import delete_owned
from mlango.runtime.registry import registry


def erase(user: Any) -> dict[str, int]:
    """Delete the runs, sessions, approvals, quotas and files of a user, and what agents recall.

    ``user`` may be gone already: then it is his primary key as text. Returns how many rows
    of each kind were deleted. Raises Misused while a run of his goes on, which would write
    some anew; where one has begun meanwhile, what he had before is gone. What another process
    holds in a ``BufferMemory`` is gone when that ends.
    """
    owner = _key_of(user)
    _refuse(owner)
    _forget(owner)
    erased: Counter[str] = Counter()
    while any((deleted := delete_owned(owner)).values()):
        erased.update(deleted)
        _refuse(owner)  # what began meanwhile
    return {name: erased[name] for name in deleted}


def _refuse(owner: str) -> None:
    """Raise Misused if a run of his goes on."""
    Trace.objects.filter(owner_key=owner).mark_lost()  # else they are said to go on for ever
    going_on = Trace.objects.filter(owner_key=owner, parent=None)
    going_on = going_on.exclude(status__in=(*Trace.ENDED, Trace.Status.WAITING))
    if uuids := list(going_on.values_list("pk", flat=True)[:5]):
        raise Misused(
            f"Runs of {owner!r} still go on: {', '.join(uuid[:8] for uuid in uuids)}. "
            f"Wait for their end or cancel them, then erase again."
        )


def _forget(owner: str) -> None:
    """Clear the memories of his sessions: some keep them outside the rows."""
    memories = {agent._meta.label: agent._meta.memory for agent in registry.all()}
    for agent, key in Session.objects.filter(owner_key=owner).values_list("agent", "key"):
        memory = memories.get(agent)
        if isinstance(memory, Memory):
            memory.clear(SessionKey(agent, owner, key))


def _key_of(user: Any) -> str:
    """Return a primary key as rows have it, however it was written; raise Misused for none."""
    owner = owner_key(user)
    try:
        found = str(get_user_model()._meta.pk.to_python(owner)) if owner else ""
    except ValidationError:
        found = ""
    if not found:
        raise Misused(f"erase() needs a user, or a user's primary key, not {user!r}.")
    return found
