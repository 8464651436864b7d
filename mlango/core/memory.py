"""What was said before in a session.

To add a memory, subclass Memory and override ``load``, ``append`` and ``clear``.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from mlango.core.provider import Message
from mlango.core.run import FAILED, LEFT, WAITING
from mlango.core.tasks import contained
from mlango.core.threads import in_thread
from mlango.exceptions import Misused

if TYPE_CHECKING:
    from mlango.core.run import Run


@dataclass(frozen=True, slots=True)
class SessionKey:
    """Whose conversation: an agent's label, an owner ("" for nobody) and a session id."""

    agent: str
    owner: str
    session_id: str


logger = logging.getLogger("mlango.sessions")

NOT_REMEMBERED = ("history_limit", "refusal", "content_filter", "guardrail")
SESSION_ID = re.compile(r"[A-Za-z0-9_.:@-]{1,128}")


def check_session_id(session_id: str) -> None:
    """Raise Misused unless a session id is 1 to 128 ASCII letters, digits and ``_.:@-``."""
    if not SESSION_ID.fullmatch(session_id):
        raise Misused(
            f"The session id {session_id[:140]!r} must be 1 to 128 ASCII letters, digits and "
            f"characters of '_.:@-'."
        )


def owner_key(user: Any) -> str:
    """Return who owns a session or a trace: a user's primary key as text, "" for nobody.

    Raises Misused for a user that was never saved, as all of those would be one.
    """
    if user is None or not getattr(user, "is_authenticated", True):
        return ""
    key = getattr(user, "pk", user)
    if key is None or _has_only_a_key(user):
        raise Misused(
            f"The user {user!r} was never saved, so nothing can belong to it. Save it first, or "
            f"pass None for nobody."
        )
    return str(key)


def _has_only_a_key(user: Any) -> bool:
    """Return whether a user was never saved, but has got its key already, such as a UUID."""
    state = getattr(user, "_state", None)
    return bool(state and state.adding and user._meta.pk.has_default())


class History(list[Message]):
    """Messages that a memory recalled; ``traces`` are the uuids they were rebuilt from.

    With ``traces`` set, a journal notes those instead of storing the messages again.
    """

    traces: tuple[str, ...] = ()


class Memory:
    """Keeps the turns of a session. ``blocking`` says that it must not run on the loop."""

    blocking: ClassVar[bool] = True

    def load(self, key: SessionKey) -> list[Message]:
        """Return the session's messages, oldest first; an empty list if there are none."""
        raise NotImplementedError(f"{type(self).__name__}.load() must be overridden.")

    def append(self, key: SessionKey, messages: list[Message]) -> None:
        """Add one whole turn: the user's messages, the answers and all tool results.

        When a run goes on that has been added, what came after is added.
        """
        raise NotImplementedError(f"{type(self).__name__}.append() must be overridden.")

    def clear(self, key: SessionKey) -> None:
        """Forget the session."""
        raise NotImplementedError(f"{type(self).__name__}.clear() must be overridden.")

    def describe(self) -> dict[str, object]:
        """Return what the memory is, JSON-safe; part of an agent's fingerprint."""
        return {"type": type(self).__name__} | {
            name: value for name, value in vars(self).items() if not name.startswith("_")
        }

    async def aload(self, key: SessionKey) -> list[Message]:
        return await in_thread(self.load, key) if self.blocking else self.load(key)

    async def aappend(self, key: SessionKey, messages: list[Message]) -> None:
        await in_thread(self.append, key, messages) if self.blocking else self.append(
            key, messages
        )


async def remember(run: Run) -> None:
    """Give the memory what the run added. One that fails takes no answer away."""
    if not run.memory or not run.memory_key or not is_remembered(run.status, run.stop_reason):
        return
    turn = [*run.said, *run.messages[len(run.history) + len(run.said) :]]
    try:
        if fresh := turn[run.remembered :]:
            await contained(run.memory.aappend(run.memory_key, fresh))
    except Exception as error:  # noqa: BLE001 - of whatever keeps it
        about = (run.label, run.uuid[:8], type(error).__name__)
        # Without its text, which may quote what was said.
        logger.error("The memory of %s did not keep the run %s: %s.", *about)  # noqa: TRY400


def is_remembered(status: str, stop_reason: str) -> bool:
    """Return whether a memory has the turn of a run that ended like this."""
    return status not in (FAILED, WAITING, *LEFT) and stop_reason not in NOT_REMEMBERED
