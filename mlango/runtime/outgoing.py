"""What a durable run has to write down: its spans and its events, in one transaction.

A transaction takes all that the run, and those that work for it, have made since the last
one. So no event is written before what it tells, and none of them is left behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from django.db import connections

from mlango.core.events import Event as Fact
from mlango.core.log import EventLog, Joined, Log
from mlango.core.run import Run
from mlango.models import Attempt, Instruction
from mlango.runtime.rows import (
    INSERT_EVENT,
    INSERT_SPAN,
    SPAN_COLUMNS,
    UPDATE_PROGRESS,
    event_values,
)
from mlango.runtime.statements import Insert, Values

EVENTS_WAIT = 0.25  # seconds that events wait for a transaction before they have their own
ATTEMPT_COLUMNS = [f.attname for f in Attempt._meta.concrete_fields if not f.primary_key]
INSERT_ATTEMPT = Insert(Attempt, ATTEMPT_COLUMNS, rank=1)
TRACE_AT = SPAN_COLUMNS.index("trace_id")

Progress = Callable[[], Values]


@dataclass(frozen=True, slots=True)
class Rows:
    """What one transaction writes. ``progress`` says how traces stand, their uuid last."""

    spans: list[Values]
    events: list[Values]
    attempts: list[Values]
    progress: list[Values]
    heard: list[int]  # the keys of instructions

    def write(self, alias: str) -> None:
        """Write all rows."""
        connection = connections[alias]
        for statement, rows in (
            (INSERT_SPAN, self.spans),
            (INSERT_ATTEMPT, self.attempts),
            (INSERT_EVENT, self.events),
            (UPDATE_PROGRESS, self.progress),
        ):
            if rows:
                statement.execute(connection, rows)
        if self.heard:
            Instruction.objects.using(alias).filter(pk__in=self.heard).delete()


class Outgoing:
    """Gathers the rows of a run and of those that work for it, from one loop's thread.

    While it is open, events that nothing else takes along are written by ``flush``.
    """

    def __init__(self, flush: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.turn = asyncio.Lock()  # rows are written in the order in which they were made
        self._flush = flush
        self._flushing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_open = False
        self._run: Run | None = None
        self._log: EventLog | None = None
        self._spans: list[Values] = []
        self._progress: dict[str, Progress] = {}
        self._heard: list[int] = []

    def log_of(self, run: Run) -> Log:
        """Return the log of the run itself."""
        if self._log is None:
            self._run, self._log = run, EventLog(run.uuid, self._told)
        return self._log

    def add(self, span: Values, progress: Progress) -> None:
        """Take a span, and what tells how its trace stands when it is written."""
        self._spans.append(span)
        self._progress[span[TRACE_AT]] = progress

    @property
    def has_spans(self) -> bool:
        """Whether anything was done that is not written down."""
        return bool(self._spans)

    def hear(self, instructions: list[int]) -> None:
        """Have instructions deleted that are in the conversation now."""
        self._heard += instructions

    def take(self, attempts: tuple[Attempt, ...] = ()) -> Rows:
        """Return what is to be written, once."""
        self._stop_timer()
        spans, self._spans = self._spans, []
        progress, self._progress = self._progress, {}
        heard, self._heard = self._heard, []
        told = self._log.take() if self._log is not None else []
        return Rows(
            spans,
            [self._values(row) for row in told],
            [[getattr(each, name) for name in ATTEMPT_COLUMNS] for each in attempts],
            [values() for values in progress.values()],
            heard,
        )

    def _values(self, row: Joined) -> Values:
        assert self._run is not None
        return event_values(self._run, row)

    # -- while nothing else is written ----------------------------------------------------------

    def open(self) -> None:
        """Have events written when they have waited long enough."""
        self._is_open = True

    def close(self) -> None:
        """Leave what comes to the transaction that ends the run."""
        self._is_open = False
        self._stop_timer()

    def _told(self, event: Fact) -> None:
        if self._is_open and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(EVENTS_WAIT, self._begin_flush)

    def _begin_flush(self) -> None:
        self._timer = None
        self._flushing = asyncio.get_running_loop().create_task(self._flush())

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
