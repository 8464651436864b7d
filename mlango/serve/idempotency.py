"""The header by which a client asks twice for one run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlango.agents.arguments import MAX_KEY
from mlango.core.memory import owner_key
from mlango.serve.problems import Problem

if TYPE_CHECKING:
    from mlango.serve.base import Visit

HEADER = "Idempotency-Key"


def key_of(visit: Visit) -> str | None:
    """Return the key that a request has; raise a Problem for one that is none."""
    key = visit.request.headers.get(HEADER)
    if key is None:
        return None
    if not (0 < len(key) <= MAX_KEY and key.isascii() and key.isprintable()):
        raise Problem(
            400, f"The header {HEADER!r} must be 1 to {MAX_KEY} printable ASCII characters."
        )
    # Anybody who guesses the key of nobody would read the answer.
    if not owner_key(visit.user):
        raise Problem(400, f"The key of a run belongs to a user. Log in, or leave out {HEADER!r}.")
    return key
