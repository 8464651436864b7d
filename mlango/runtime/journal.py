"""The journal that writes rows: a Trace for the run and a Span for each entry.

The rows are written by the process's writer thread, except where they belong to the caller's
transaction: inside ``atomic()``, as in a TestCase or with ATOMIC_REQUESTS, and in a database
in memory, which only its own thread sees.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from time import time
from typing import Any
from weakref import WeakKeyDictionary

from django.conf import settings as django_settings
from django.contrib.auth import get_user_model

from mlango.conf import settings
from mlango.core.journal import LLM, TOOL, Entry, Journal
from mlango.core.loop import said_text
from mlango.core.memory import History, owner_key
from mlango.core.run import Run
from mlango.core.usage import NO_USAGE, Usage
from mlango.core.values import clean, dumps, encode, parse_json, truncate
from mlango.models import Span, Trace
from mlango.runtime import database
from mlango.runtime.statements import Insert, Statement, Update, Values
from mlango.runtime.writer import Write, execute, made, writer

logger = logging.getLogger("mlango.traces")

SYNC_TIMEOUT = 10.0  # seconds that a run waits for its rows at most
MAX_PREVIEW = 10_000  # characters of the message in Trace.input
MAX_INT = 2**63 - 1
MAX_COST = Decimal(10) ** 9
NUL = "\\u0000"  # as JSON writes it
HIDDEN = "[hidden]"
_SECRET = re.compile(r"(?i)api_?key|secret|passw|authori|credential|headers|(^|_)token$")


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

    @property
    def wants_sync(self) -> bool:
        return self._waits or (self._place is None and writer.crowded)

    async def open(self, run: Run) -> None:
        self._run = run
        try:
            self._alias = database.alias()
            self._waits = settings.TRACE_WRITES == "step"
            self._place = await database.place_of(self._alias)
            if self._place is None:
                writer.enter()
                self._entered = True
            self._put(INSERT_TRACE, trace_values, run)
            if self._place is not None:
                await self._place(self._write_here)
        except Exception as error:  # noqa: BLE001 - best effort: the run goes on untraced
            self.failed(INSERT_TRACE, error)

    def write(self, entry: Entry) -> None:
        self._spans += 1
        self._errors += bool(entry.error_type)
        parent = self._asked if entry.kind == TOOL else None
        if entry.kind == LLM:
            self._asked = entry.ordering
        self._put(INSERT_SPAN, self._span_values, (entry, parent))

    async def sync(self) -> None:
        try:
            if self._place is not None:
                await self._place(self._write_here)
            elif not await writer.saved(SYNC_TIMEOUT):
                raise TimeoutError(f"The database took longer than {SYNC_TIMEOUT:g} seconds.")
        except Exception as error:  # noqa: BLE001 - best effort: the run goes on untraced
            self.failed(INSERT_SPAN, error)

    async def close(self, run: Run) -> None:
        if self._run is None:  # the run failed before it began
            await self.open(run)
        self._put(UPDATE_TRACE, self._end_values, (run, time()))
        if self._entered:
            writer.leave()
        if not self.lost:
            await self.sync()

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
        elif not writer.put(write):
            self.failed(statement, RuntimeError("Too many rows wait to be written."))

    # -- in the caller's transaction --------------------------------------------------------

    def _write_here(self) -> None:
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

    def _end_values(self, thing: tuple[Run, float]) -> Values:
        return end_values(*thing, self._spans, self._errors)


def trace_values(run: Run) -> Values:
    """Return the row of a run that begins."""
    said = said_text(run.said) if run.capture_content else ""
    user = run.user
    is_row = isinstance(user, get_user_model())
    trace = Trace(
        uuid=run.uuid,
        agent=run.label[:200],
        user_id=user.pk if is_row else None,
        owner_key=owner_key(user)[:255],
        session_id=getattr(run.turn, "pk", None),
        session_key=run.session_id[:128],
        parent_id=run.parent,
        provider=_short(getattr(run.provider, "name", ""), 100),
        model=_short(run.model, 200),
        fingerprint=_fingerprint(run.agent),
        input=truncate(said, MAX_PREVIEW),
        opening_json=dumps(_opening(run)) if run.capture_content else "",
        metadata_json=dumps(run.metadata) if run.metadata else "",
        started_at=moment(run.started_at),
    )
    return [getattr(trace, column) for column in INSERT_TRACE.columns]


def _opening(run: Run) -> dict[str, Any]:
    opening: dict[str, Any] = {"system": run.system, "said": run.said}
    if isinstance(run.history, History) and run.history.traces:
        return opening | {"traces": run.history.traces}
    return opening | {"messages": run.history}


_fingerprints: WeakKeyDictionary[type, str] = WeakKeyDictionary()


def _fingerprint(agent: Any) -> str:
    """Return the fingerprint of an agent's class, computed once."""
    if agent is None:
        return ""
    kind = type(agent)
    if kind not in _fingerprints:
        _fingerprints[kind] = kind._meta.fingerprint()
    return _fingerprints[kind]


def span_values(run: Run, entry: Entry, parent: int | None) -> Values:
    """Return the row of an entry, in the order of SPAN_COLUMNS."""
    usage = entry.usage or NO_USAGE
    shown = run.capture_content
    return (
        run.uuid,
        entry.ordering,
        parent,
        entry.step,
        entry.kind,
        _short(entry.name, 200),
        clean(entry.tool_call_id),
        _input_json(entry) if shown or entry.kind == LLM else "",
        _json(entry.output) if shown and entry.output is not None else "",
        clean(entry.error) if shown else "",
        entry.error_type[:100],
        *_counts(usage),
        entry.cost if entry.cost is None else min(entry.cost, MAX_COST),
        moment(entry.started_at),
        moment(entry.started_at + entry.duration_s),
        _attributes_json(entry, shown),
    )


SPAN_COLUMNS = (
    "trace_id",
    "ordering",
    "parent_ordering",
    "step",
    "kind",
    "name",
    "tool_call_id",
    "input_json",
    "output_json",
    "error",
    "error_type",
    "input_tokens",
    "output_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "reasoning_tokens",
    "estimated",
    "cost",
    "started_at",
    "ended_at",
    "attributes_json",
)


def end_values(run: Run, ended_at: float, spans: int, errors: int) -> Values:
    """Return how a run ended, in the order of END_COLUMNS."""
    return (
        run.status,
        run.stop_reason[:50],
        clean(run.text) if run.capture_content else "",
        clean(run.error),
        _short(getattr(run.provider, "name", ""), 100),
        _short(run.model, 200),
        run.step,
        spans,
        errors,
        *_counts(run.usage),
        run.cost if run.cost is None else min(run.cost, MAX_COST),
        moment(ended_at),
        run.uuid,
    )


END_COLUMNS = (
    "status",
    "stop_reason",
    "output",
    "error",
    "provider",
    "model",
    "steps",
    "span_count",
    "error_count",
    "input_tokens",
    "output_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "reasoning_tokens",
    "estimated",
    "cost",
    "ended_at",
    "uuid",
)


def _short(text: str, length: int) -> str:
    return clean(text)[:length]


def _counts(usage: Usage) -> tuple[int, int, int, int, int, bool]:
    """Return the token counts as a column takes them, whatever the provider says."""
    return (
        _fitting(usage.input_tokens),
        _fitting(usage.output_tokens),
        _fitting(usage.cache_read_tokens),
        _fitting(usage.cache_write_tokens),
        _fitting(usage.reasoning_tokens),
        usage.estimated,
    )


def _fitting(count: int) -> int:
    return count if 0 <= count <= MAX_INT else min(max(count, 0), MAX_INT)


def _input_json(entry: Entry) -> str:
    value = entry.input
    if value is None:
        return ""
    if entry.kind == LLM and isinstance(value, dict):
        value = {key: HIDDEN if _SECRET.search(key) else item for key, item in value.items()}
    return _arguments_json(value) if isinstance(value, str) else _json(value)


def _arguments_json(text: str) -> str:
    """Return the arguments that a model wrote as JSON text; broken ones as a JSON string."""
    try:
        value = parse_json(text)
    except ValueError:
        return dumps(text)
    # What is ASCII without escapes holds nothing that must be cleaned.
    return text if text.isascii() and "\\u" not in text else dumps(value)


def _json(value: Any) -> str:
    """Return JSON text of what is JSON data already, and mostly clean.

    That saves the walk through every value, which is most of the time that a row takes.
    """
    try:
        text = clean(encode(value))
    except (TypeError, ValueError, RecursionError):
        return dumps(value)
    return dumps(value) if NUL in text else text


def _attributes_json(entry: Entry, shown: bool) -> str:
    attributes = entry.attributes
    if not shown and "traceback" in attributes:  # it quotes what the tool worked on
        attributes = {key: item for key, item in attributes.items() if key != "traceback"}
    return _json(attributes) if attributes else ""


def moment(seconds: float) -> datetime:
    """Return a time since the epoch as Django keeps times."""
    if django_settings.USE_TZ:
        return datetime.fromtimestamp(seconds, UTC)
    return datetime.fromtimestamp(seconds)


INSERT_TRACE = Insert(Trace, [field.attname for field in Trace._meta.concrete_fields], rank=0)
INSERT_SPAN = Insert(Span, SPAN_COLUMNS, rank=1)
UPDATE_TRACE = Update(Trace, END_COLUMNS)
