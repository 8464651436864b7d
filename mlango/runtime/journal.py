"""The journal that writes rows: a Trace for the run and a Span for each entry.

The rows are written by the process's writer thread, except where they belong to the caller's
transaction: inside ``atomic()``, as in a TestCase or with ATOMIC_REQUESTS, and in a database
in memory, which only its own thread sees.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import time
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connections

from mlango.conf import settings
from mlango.core.events import Event
from mlango.core.journal import LLM, TOOL, Entry, Journal
from mlango.core.log import CHUNKS, EventLog, Joined
from mlango.core.run import Run
from mlango.runtime import database
from mlango.runtime.rows import (
    INSERT_EVENT,
    INSERT_SPAN,
    INSERT_TRACE,
    UPDATE_TRACE,
    end_values,
    event_values,
    span_values,
    trace_values,
)
from mlango.runtime.statements import Statement, Values
from mlango.runtime.writer import writer
from mlango.runtime.writes import Packet, Write, execute, made

logger = logging.getLogger("mlango.traces")

SYNC_TIMEOUT = 10.0  # seconds that a run waits for its rows at most
CHUNKS_WAIT = 0.1  # seconds that pieces of text wait for more, to share a row


class RowJournal(Journal):
    """Writes one run down. Whatever the database does, the run goes on."""

    def __init__(self) -> None:
        self.lost = False
        self._run: Run | None = None
        self._alias = ""
        self._place: database.Place | None = None
        self._waits = False
        self._entered = False
        self._pending: list[Write] = []
        self._spans = 0
        self._errors = 0
        self._asked: int | None = None
        self._logged = False
        self._log: EventLog | None = None
        self._sending: asyncio.Handle | None = None
        self._sends_soon = False

    @property
    def wants_sync(self) -> bool:
        return self._waits or (self._place is None and writer.crowded)

    def go_on(self, spans: int, errors: int, asked: int | None) -> None:
        self._spans, self._errors, self._asked = spans, errors, asked

    def keep_log(self, run: Run) -> None:
        # Events quote what was said, which rows of this run must not.
        if run.capture_content and self._log is None:
            self._log = run.log = EventLog(run.uuid, self._told)

    async def open(self, run: Run) -> None:
        self._run = run
        try:
            self._alias = database.alias()
            self._waits = settings.TRACE_WRITES == "step"
            self._place = await database.place_of(self._alias)
            if self._place is None:
                writer.enter()
                self._entered = True
            if not run.is_resumed:
                self._put(INSERT_TRACE, trace_values, run)
            self._send()
            if self._place is not None:
                await self._place(self._write_here)
        except Exception as error:  # noqa: BLE001 - best effort: the run goes on untraced
            self.failed(INSERT_TRACE, error)

    def write(self, entry: Entry) -> None:
        self._put(INSERT_SPAN, self._span_values, self._counted(entry))

    def _counted(self, entry: Entry) -> tuple[Entry, int | None]:
        """Count an entry and return it with the place of the model call that asked for it."""
        self._spans += 1
        self._errors += bool(entry.error_type)
        parent = self._asked if entry.kind == TOOL else None
        if entry.kind == LLM:
            self._asked = entry.ordering
        return entry, parent

    def commit_with(self, entry: Entry) -> bool:
        """Write the call of an atomic tool in its transaction, where that is possible.

        What controls may still change is written when they have.
        """
        run = self._run
        if self.lost or run is None or run.controls.after_call or self._alias != DEFAULT_DB_ALIAS:
            return False
        INSERT_SPAN.execute(connections[self._alias], [self._span_values(self._counted(entry))])
        return True

    async def sync(self) -> None:
        try:
            if self._place is not None:
                await self._place(self._write_here)
            else:
                self._send()
                if not await writer.saved(SYNC_TIMEOUT):
                    raise TimeoutError(f"The database took longer than {SYNC_TIMEOUT:g} seconds.")
        except Exception as error:  # noqa: BLE001 - best effort: the run goes on untraced
            self.failed(INSERT_SPAN, error)

    async def close(self, run: Run) -> None:
        if self._run is None:  # the run failed before it began
            await self.open(run)
        self._put(UPDATE_TRACE, self._end_values, (run, time()))
        self._send()
        if self._entered:
            writer.leave()
        if not self.lost:
            await self.sync()
        if not self._logged:  # all is written
            # A run and its journal would keep each other until the garbage collector comes.
            self._run = self._log = None

    def failed(self, statement: Statement, error: Exception) -> None:
        """Log the first error of the run; without its trace's row it writes no more."""
        self.lost = self.lost or statement is INSERT_TRACE
        if self._logged or self._run is None:
            return
        self._logged = True
        # What follows the first line of a database's message may quote the row.
        reason = (str(error).splitlines() or [""])[0]
        logger.error(
            "The trace of run %s of %s is not complete: %s: %s",
            self._run.uuid,
            self._run.label,
            type(error).__name__,
            reason,
        )

    def _put(self, statement: Statement, make: Callable[[Any], Values], thing: Any) -> None:
        if self.lost:
            return
        write = Write(self, self._alias, statement, make, thing)
        if self._place is not None:
            self._pending.append(write)
        elif self._log is not None:
            self._pending.append(write)
            self._send_soon()
        elif not writer.put(write):
            self.failed(statement, RuntimeError("Too many rows wait to be written."))

    # -- with a log: what is done and told at one go is written in one transaction -----------

    def _told(self, event: Event) -> None:
        if self._run is None or self._place is not None:
            return  # it goes with the rows that begin the run, or with the step's
        if not isinstance(event, CHUNKS):
            self._send_soon()
        elif self._sending is None and (loop := asyncio._get_running_loop()) is not None:
            self._sending = loop.call_later(CHUNKS_WAIT, self._send)

    def _send_soon(self) -> None:
        """Send when the run has come to its next wait, before which nothing is half done."""
        loop = asyncio._get_running_loop()
        if self._sends_soon or loop is None:
            return
        if self._sending is not None:
            self._sending.cancel()
        self._sends_soon = True
        self._sending = loop.call_soon(self._send)

    def _send(self) -> None:
        """Hand what waits to the writer."""
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None
        self._sends_soon = False
        if self._place is not None or self._log is None:
            return
        self._take_events()
        writes, self._pending = self._pending, []
        if writes and not writer.put(Packet(writes)):
            for statement in {write.statement for write in writes}:
                self.failed(statement, RuntimeError("Too many rows wait to be written."))

    def _take_events(self) -> None:
        for row in self._log.take() if self._log is not None else ():
            if not self.lost:
                write = Write(self, self._alias, INSERT_EVENT, self._event_values, row)
                self._pending.append(write)

    # -- in the caller's transaction --------------------------------------------------------

    def _write_here(self) -> None:
        self._take_events()
        rows = made(self._pending)
        self._pending = []
        try:
            if rows:
                execute(self._alias, rows)
        except Exception:  # noqa: BLE001 - best effort: one by one below
            for row in rows:
                self._write_alone(row)

    def _write_alone(self, row: tuple[Write, Values]) -> None:
        if self.lost:
            return
        try:
            execute(self._alias, [row])
        except Exception as error:  # noqa: BLE001 - best effort: this row is the bad one
            self.failed(row[0].statement, error)

    # -- values -------------------------------------------------------------------------------

    def _span_values(self, thing: tuple[Entry, int | None]) -> Values:
        assert self._run is not None
        return span_values(self._run, *thing)

    def _event_values(self, row: Joined) -> Values:
        assert self._run is not None
        return event_values(self._run, row)

    def _end_values(self, thing: tuple[Run, float]) -> Values:
        return end_values(*thing, self._spans, self._errors)
