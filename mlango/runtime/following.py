"""Following a run by its log: what it has told, then what it tells, in any process.

A reader asks the database again and again, often while something comes and seldom while
nothing does; PostgreSQL rings when there is something. No connection is held in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from datetime import UTC, datetime
from time import monotonic
from typing import Any, NoReturn, TypeVar

from mlango.core.log import BEGINNING, ENDING, Cursor, Told
from mlango.core.values import encode
from mlango.exceptions import Misused, TraceNotFound
from mlango.models import Event, Trace
from mlango.models.event import EventQuerySet
from mlango.runtime import database
from mlango.runtime.bell import bell_of
from mlango.runtime.endings import ending_of
from mlango.runtime.writer import Writer

T = TypeVar("T")

ROWS = 200  # that are fetched at once
FIRST_PAUSE, LAST_PAUSE = 0.05, 1.0  # seconds between two looks
RUNG_PAUSE = 5.0  # seconds between two looks where a bell rings, should it fail once
LOOK_FOR_LOST = 15.0  # seconds between two looks whether the run's process died
GRACE = 3.0  # seconds for a log to come to an event that a live reader has seen

RESYNC = "resync"

# One connection for all readers of this process, in a thread of its own.
asker = Writer("mlango-reader")


class UnknownEvent(Misused):
    """No event of the run is, or was, at this place."""


class Reader:
    """One reader's way through a log. Its methods ask the database."""

    def __init__(self, uuid: str, after: Cursor | str | int | None = None) -> None:
        self.uuid = uuid
        self.alias = database.alias()
        self.cursor = cursor_of(after)
        self.is_done = False
        self._is_new = True
        self._was_last = False  # whether what was read last is a last event
        self._is_told = False  # whether it tells the end of a run that has ended
        self._looked = monotonic()

    # -- before the first event ------------------------------------------------------------------

    def is_known(self) -> bool:
        """Return whether the log has come to the cursor; raise UnknownEvent if it never will."""
        if self.cursor == BEGINNING or self.cursor.part == ENDING:
            return True
        status = self._status()
        last = self._rows.last_of(self.uuid)
        if last is not None and self.cursor <= last.last:
            return True
        if status in Trace.ENDED and (last is None or not _is_last(last)):
            return True  # the process died and took what it had told only to live readers
        if status in Trace.ENDED:
            self.refuse()
        return False

    def refuse(self) -> NoReturn:
        """Raise UnknownEvent."""
        raise UnknownEvent(f"The run {self.uuid[:8]} has no event {self.cursor}.")

    def is_at_end(self) -> bool:
        """Return whether the cursor is at the last event of a run to which nothing comes."""
        if self._status() not in Trace.ENDED:
            return False
        last = self._rows.last_of(self.uuid)
        is_told = last is not None and _is_end(last) and self.cursor >= last.last
        return is_told or self.cursor.part == ENDING

    # -- one look --------------------------------------------------------------------------------

    def fetch(self) -> list[Told]:
        """Return what came since the last look; sets ``is_done`` after the last event."""
        rows = self._next_rows()
        if not rows and not self._goes_on():
            rows = self._next_rows()  # what was written until it ended
            if not rows:
                return self._ending()
        told = [each for row in rows for each in self._told(row)]
        self.is_done = self._was_last and bool(told) and len(rows) < ROWS
        return told

    def _told(self, row: Event) -> Iterator[Told]:
        for each in row.told():
            self._was_last = each.is_last
            self._is_told = each.is_last and not each.waits
            if each.cursor <= self.cursor:
                continue
            if not self.cursor.is_followed_by(each.cursor):
                yield self._resync(_before(each.cursor))
            self.cursor = each.cursor
            yield each

    def _next_rows(self) -> list[Event]:
        rows, (seq, part) = self._rows.filter(trace=self.uuid), self.cursor
        if self._is_new and self.cursor != BEGINNING:
            # The row with the event at the cursor may go on behind it.
            earlier = rows.filter(seq__lte=seq).exclude(seq=seq, part__gt=part)
            at = earlier.order_by("-seq", "-part").first()
            behind = rows.filter(seq__gt=seq) | rows.filter(seq=seq, part__gt=part)
            found = [*([at] if at else []), *behind.order_by("seq", "part")[:ROWS]]
            self._is_new = False  # not before, for a look that fails is made again
            return found
        behind = rows.filter(seq__gte=seq).exclude(seq=seq, part__lte=part)
        return list(behind.order_by("seq", "part")[:ROWS])

    def _goes_on(self) -> bool:
        """Return whether more may come; look from time to time if the process still lives."""
        status = self._status()
        if status == Trace.Status.RUNNING and monotonic() - self._looked > LOOK_FOR_LOST:
            self._looked = monotonic()
            Trace.objects.using(self.alias).filter(pk=self.uuid).mark_lost()
            status = self._status()
        if status == Trace.Status.WAITING:
            return self._rows.filter(trace=self.uuid).exists()
        return status not in Trace.ENDED

    def _ending(self) -> list[Told]:
        """Return the last event of a run that has ended without having told it."""
        self.is_done = True
        if self._is_told or self.cursor.part == ENDING:
            return []
        last = self._rows.last_of(self.uuid)
        seen = Cursor(max(self.cursor.seq, 0 if last is None else last.last.seq))
        trace = Trace.objects.using(self.alias).get(pk=self.uuid)
        ending = ending_of(trace, seen)
        # Without a row, none of it was written down, or nothing is left.
        return [ending] if last is not None else [self._resync(seen), ending]

    def _resync(self, cursor: Cursor) -> Told:
        """Return what tells a reader that events are missing, and from where it goes on."""
        document = {
            "v": 1,
            "kind": RESYNC,
            "seq": cursor.seq,
            "run": self.uuid,
            "at": datetime.now(UTC).isoformat(),
            "after": None if self.cursor == BEGINNING else str(self.cursor),
        }
        return Told(cursor, RESYNC, encode(document))

    @property
    def _rows(self) -> EventQuerySet:
        rows: EventQuerySet = Event.objects.using(self.alias)
        return rows

    def _status(self) -> str:
        found = Trace.objects.using(self.alias).filter(pk=self.uuid)
        status = found.values_list("status", flat=True).first()
        if status is None:
            raise TraceNotFound(f"There is no trace {self.uuid!r}.")
        return str(status)


def cursor_of(after: Cursor | str | int | None) -> Cursor:
    """Return a cursor from what a caller gives; raise Misused for what is none."""
    if after is None:
        return BEGINNING
    if isinstance(after, Cursor):
        return after
    try:
        return Cursor.parse(str(after))
    except ValueError as error:
        raise Misused(str(error)) from error


def _is_last(row: Event) -> bool:
    return any(each.is_last for each in row.told())


def _is_end(row: Event) -> bool:
    return any(each.is_last and not each.waits for each in row.told())


def _before(cursor: Cursor) -> Cursor:
    """Return a place right before another one."""
    seq, part = cursor
    return Cursor(seq, part - 1) if part else Cursor(seq - 1)


# -- reading on and on ---------------------------------------------------------------------------


class Pause:
    """How long to wait until the next look."""

    def __init__(self) -> None:
        self._seconds = FIRST_PAUSE

    def next(self, *, came: bool, rings: bool) -> float:
        """Return the seconds to wait after a look at which something came, or nothing."""
        self._seconds = FIRST_PAUSE if came else min(self._seconds * 1.5, LAST_PAUSE)
        return RUNG_PAUSE if rings else self._seconds


async def afollow(trace: Any, after: Cursor | str | int | None = None) -> AsyncGenerator[Told]:
    """Yield the events of a run behind ``after``, of all if it is None, until its last.

    ``trace`` is the row, its uuid, or the AgentRun. Who may see it is for the caller to ask.
    Raises Misused for a cursor that is none, or that the run never comes to.
    """
    reader = Reader(uuid_of(trace), after)
    async with aclosing(afollowed(reader)) as looks:
        async for told in looks:
            for each in told:
                yield each


async def afollowed(reader: Reader) -> AsyncGenerator[list[Told]]:
    """Yield what each look of a reader brings, which may be nothing."""
    ask = await asker_of(reader.alias)
    await aknown(reader, ask)
    pause = Pause()
    with bell_of(reader.alias).heard_in_loop(reader.uuid) as rung:
        while True:
            rung.clear()
            told: list[Told] = await ask(reader.fetch)
            yield told
            if reader.is_done:
                return
            await rung.wait(pause.next(came=bool(told), rings=rung.rings))


async def aknown(reader: Reader, ask: Callable[[Callable[[], Any]], Any]) -> None:
    """Wait until the log has come to a reader's cursor; raise UnknownEvent if it does not."""
    deadline = monotonic() + GRACE
    while not await ask(reader.is_known):
        if monotonic() > deadline:
            reader.refuse()
        await asyncio.sleep(FIRST_PAUSE)


async def asker_of(alias: str) -> Callable[[Callable[[], T]], Any]:
    """Return what calls a function that asks the database, in the caller's transaction if any."""
    place = await database.place_of(alias)
    if place is not None:
        return place

    async def ask(function: Callable[[], T]) -> T:
        result: T = await asyncio.wrap_future(asker.send(alias, function))
        return result

    return ask


def follow(trace: Any, after: Cursor | str | int | None = None) -> Iterator[Told]:
    """Yield the events of a run as afollow() does, in plain code."""
    reader = Reader(uuid_of(trace), after)
    for told in followed(reader):
        yield from told


def followed(reader: Reader, seconds: float | None = None) -> Iterator[list[Told]]:
    """Yield what each look of a reader brings, for ``seconds`` at most."""
    known(reader)
    pause, began = Pause(), monotonic()
    with bell_of(reader.alias).heard_in_thread(reader.uuid) as rung:
        while True:
            rung.clear()
            told = ask(reader.alias, reader.fetch)
            yield told
            if reader.is_done or (seconds is not None and monotonic() - began > seconds):
                return
            rung.wait(pause.next(came=bool(told), rings=rung.rings))


def known(reader: Reader) -> None:
    """Wait until the log has come to a reader's cursor; raise UnknownEvent if it does not."""
    deadline = monotonic() + GRACE
    with bell_of(reader.alias).heard_in_thread(reader.uuid) as rung:
        while not ask(reader.alias, reader.is_known):
            if monotonic() > deadline:
                reader.refuse()
            rung.wait(FIRST_PAUSE)


def ask(alias: str, function: Callable[[], T]) -> T:
    """Call a function that asks the database, here inside a transaction, else in its thread."""
    if database.in_transaction(alias) or database.is_in_memory(alias):
        return function()
    result: T = asker.send(alias, function).result()
    return result


def uuid_of(trace: Any) -> str:
    """Return the uuid of a trace's row, of an AgentRun, or a uuid itself."""
    return str(getattr(trace, "uuid", None) or getattr(trace, "trace_uuid", None) or trace)
