"""The log of a run's events: where each lies, and what waits to be written down.

The events of sub-agents lie among those of the run that they work for, in the order in which
a live reader sees them, and are told by how many of them came since the run's own last event.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from mlango.core.events import (
    Event,
    Failed,
    Finished,
    ReasoningChunk,
    Started,
    TextChunk,
    ToolCallChunk,
)
from mlango.core.run import WAITING
from mlango.core.values import encode

CHUNKS = (TextChunk, ReasoningChunk, ToolCallChunk)
MAX_JOINED = 500  # chunks in one row
LAST = (Finished.kind, Failed.kind)
_CURSOR = re.compile(r"([0-9]{1,9})(?:\.([1-9][0-9]{0,8}))?")


class Cursor(NamedTuple):
    """A place in a log: behind the run's own event ``seq`` and ``part`` of sub-agents' events."""

    seq: int
    part: int = 0

    def __str__(self) -> str:
        return f"{self.seq}.{self.part}" if self.part else str(self.seq)

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Return the cursor that ``str()`` gave; raise ValueError for anything else."""
        found = _CURSOR.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r:.100} is not the id of an event, such as '12' or '12.3'.")
        return cls(int(found[1]), int(found[2] or 0))

    def is_followed_by(self, other: Cursor) -> bool:
        """Return whether nothing lies between this and another place."""
        return other in ((self.seq + 1, 0), (self.seq, self.part + 1))


BEGINNING = Cursor(-1)
# The part of the place of a last event that no log holds: it is told from the run's row.
ENDING = 999_999_999


class Places:
    """Gives the events of one run their places, in the order in which they are told."""

    __slots__ = ("_uuid", "last")

    def __init__(self, uuid: str) -> None:
        self._uuid = uuid
        self.last = BEGINNING

    def of(self, event: Event) -> Cursor:
        """Return the place of the next event."""
        own = event.run == self._uuid
        seq, part = self.last
        self.last = Cursor(event.seq) if own else Cursor(seq, part + 1)
        return self.last


@dataclass(frozen=True, slots=True)
class Told:
    """An event as it lies in a log. ``data`` is the JSON text of its ``describe()``."""

    cursor: Cursor
    kind: str
    data: str

    @property
    def is_last(self) -> bool:
        """Whether the run ended with it, or waits for a person since."""
        return self.kind in LAST and self.cursor.part in (0, ENDING)

    @property
    def waits(self) -> bool:
        """Whether the run waits for a person since."""
        return self.is_last and self.describe().get("status") == WAITING

    def describe(self) -> dict[str, Any]:
        """Return the event as JSON data."""
        document: dict[str, Any] = json.loads(self.data)
        return document


@dataclass(frozen=True, slots=True)
class Joined:
    """The events of one row: one, or several chunks that came one after the other."""

    cursor: Cursor
    events: list[Event]

    def takes(self, event: Event) -> bool:
        """Return whether an event is one more chunk of this row."""
        last = self.events[-1]
        return (
            type(last) is type(event)
            and isinstance(event, CHUNKS)
            and (last.run, last.step, last.seq + 1) == (event.run, event.step, event.seq)
            and len(self.events) < MAX_JOINED
        )

    def encode(self) -> str:
        """Return the events as JSON text: of several, what differs is told in lists."""
        documents = [event.describe() for event in self.events]
        first = documents[0]
        if len(documents) > 1:
            for name in _varying(first):
                first[name] = [document[name] for document in documents]
        return encode(first)


def told(cursor: Cursor, kind: str, count: int, text: str) -> Iterator[Told]:
    """Yield the ``count`` events that ``Joined.encode`` put together."""
    if count == 1:
        yield Told(cursor, kind, text)
        return
    first: dict[str, Any] = json.loads(text)
    varying = _varying(first)
    for index in range(count):
        one = {name: first[name][index] for name in varying}
        document = {**first, "seq": first["seq"] + index, **one}
        yield Told(_moved(cursor, index), kind, encode(document))


def _moved(cursor: Cursor, by: int) -> Cursor:
    seq, part = cursor
    return Cursor(seq, part + by) if part else Cursor(seq + by)


def end_of(cursor: Cursor, count: int) -> Cursor:
    """Return the place of the last event of a row."""
    return _moved(cursor, count - 1)


_SAME = ("v", "kind", "seq", "run", "step", "parent")


def _varying(document: dict[str, Any]) -> list[str]:
    return [name for name in document if name not in _SAME]


class Log:
    """Takes the events of a run, of which the first may be made after others."""

    def __init__(self) -> None:
        self._early: list[Event] | None = []  # what was made before the first

    def add(self, event: Event) -> None:
        """Take the next event."""
        if self._early is None:
            self._add(event)
        elif isinstance(event, Started):
            early, self._early = self._early, None
            for each in (event, *early):
                self._add(each)
        else:
            self._early.append(event)

    def _add(self, event: Event) -> None:
        raise NotImplementedError


class EventLog(Log):
    """What a run has told and nobody has written down yet; ``changed`` hears of each event.

    After the last event it takes none.
    """

    def __init__(self, uuid: str, changed: Callable[[Event], None]) -> None:
        super().__init__()
        self._places = Places(uuid)
        self._changed = changed
        self._rows: list[Joined] = []
        self._ended = False

    def _add(self, event: Event) -> None:
        if self._ended:
            return
        cursor = self._places.of(event)
        if self._rows and self._rows[-1].takes(event):
            self._rows[-1].events.append(event)
        else:
            self._rows.append(Joined(cursor, [event]))
        self._ended = event.kind in LAST and not cursor.part
        self._changed(event)

    def take(self) -> list[Joined]:
        """Return what is to be written, once."""
        rows, self._rows = self._rows, []
        return rows


class Branch(Log):
    """The events of a sub-agent, on their way into the log of the run that it works for."""

    def __init__(self, trunk: Log) -> None:
        super().__init__()
        self._trunk = trunk

    def _add(self, event: Event) -> None:
        self._trunk.add(event)
