"""The memory that is the traces: it stores nothing of its own and survives a restart."""

from __future__ import annotations

from collections.abc import Iterable

from django.utils import timezone

from mlango.core.memory import NOT_REMEMBERED, History, Memory, SessionKey
from mlango.core.provider import Message
from mlango.core.run import CANCELLED, FINISHED, STOPPED
from mlango.core.wanted import COUNT, check_made
from mlango.models import Session, Trace
from mlango.runtime import database


class MetastoreMemory(Memory):
    """Recalls the newest ``max_turns`` runs of a session from their traces.

    It needs tracing with content. To forget a session leaves its traces as they are.
    """

    def __init__(self, max_turns: int = 20) -> None:
        self.max_turns = max_turns
        check_made(self, {"max_turns": COUNT})

    def load(self, key: SessionKey) -> list[Message]:
        history = History()
        uuids = []
        for trace in reversed(self._newest(key)):
            turn = trace.turn
            if is_whole(turn):
                history.extend(turn)
                uuids.append(trace.uuid)
        history.traces = tuple(uuids)
        return history

    def append(self, key: SessionKey, messages: list[Message]) -> None:
        """Do nothing: the run's own trace has it all."""

    def clear(self, key: SessionKey) -> None:
        Session.objects.using(database.alias()).update_or_create(
            agent=key.agent,
            owner_key=key.owner,
            key=key.session_id,
            defaults={"forgotten_at": timezone.now()},
        )

    async def aload(self, key: SessionKey) -> list[Message]:
        return await database.ask(self.load, key)

    def _newest(self, key: SessionKey) -> list[Trace]:
        """Return the traces to recall, newest first."""
        alias = database.alias()
        traces = Trace.objects.using(alias).filter(
            agent=key.agent,
            owner_key=key.owner,
            session_key=key.session_id,
            status__in=(FINISHED, STOPPED, CANCELLED),
        )
        sessions = Session.objects.using(alias).filter(
            agent=key.agent, owner_key=key.owner, key=key.session_id
        )
        forgotten_at = sessions.values_list("forgotten_at", flat=True).first()
        if forgotten_at is not None:
            traces = traces.filter(ended_at__gt=forgotten_at)
        with_content = traces.exclude(stop_reason__in=NOT_REMEMBERED).exclude(opening_json="")
        return list(with_content.with_turns().order_by("-ended_at")[: self.max_turns])


def is_whole(turn: Iterable[Message]) -> bool:
    """Return whether each tool call has its result right after it, and each result its call.

    A row that the database refused may be missing, and no model takes such a history.
    """
    open_calls: set[str] = set()
    for message in turn:
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_calls:
                return False
            open_calls.remove(message["tool_call_id"])
        elif open_calls:
            return False
        open_calls |= {call["id"] for call in message.get("tool_calls") or ()}
    return not open_calls
