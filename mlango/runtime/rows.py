"""What the rows of a run hold: their values, in the order of the columns."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

from django.conf import settings as django_settings
from django.contrib.auth import get_user_model
from pydantic_core import from_json

from mlango.core.hearing import said_text
from mlango.core.journal import LLM, Entry
from mlango.core.log import Joined
from mlango.core.memory import History, owner_key
from mlango.core.run import Run
from mlango.core.usage import Usage
from mlango.core.values import clean, dumps, encode, parse_json, truncate
from mlango.models import Event, Span, Trace
from mlango.runtime.redaction import redact, redact_json
from mlango.runtime.statements import Insert, Notifying, Update, Values

MAX_PREVIEW = 10_000  # characters of the message in Trace.input
MAX_INT = 2**63 - 1
MAX_COST = Decimal(10) ** 9
NUL = "\\u0000"  # as JSON writes it
MAX_PLAIN = 300  # characters: of digits alone, still no number too large
HIDDEN = "[hidden]"
NO_COUNTS = (0, 0, 0, 0, 0, False)
CONTENT = ("traceback", "details", "attempts")  # attributes that quote what a tool worked on
_ODD = re.compile(r"\\u|[0-9][eE]")  # in JSON text that a look does not suffice for
_SECRET = re.compile(r"(?i)api_?key|secret|passw|authori|credential|headers|(^|_)token$")


def trace_values(run: Run) -> Values:
    """Return the values of the row of a run that begins."""
    trace = trace_of(run)
    return [getattr(trace, column) for column in INSERT_TRACE.columns]


def trace_of(run: Run) -> Trace:
    """Return the row of a run that begins."""
    said = said_text(run.heard) if run.capture_content else ""
    user = run.user
    is_row = isinstance(user, get_user_model())
    return Trace(
        uuid=run.uuid,
        agent=run.label[:200],
        user_id=user.pk if is_row else None,
        owner_key=owner_key(user)[:255],
        session_id=getattr(run.turn, "pk", None),
        # A sub-agent's part is not one of the session's turns.
        session_key="" if run.parent else run.session_id[:128],
        parent_id=run.parent,
        provider=_short(getattr(run.provider, "name", ""), 100),
        model=_short(run.model, 200),
        fingerprint=_fingerprint(run.agent),
        input=truncate(redact(said), MAX_PREVIEW),
        opening_json=redact_json(dumps(_opening(run))) if run.capture_content else "",
        metadata_json=redact_json(dumps(run.metadata)) if run.metadata else "",
        started_at=moment(run.started_at),
    )


def _opening(run: Run) -> dict[str, Any]:
    opening: dict[str, Any] = {"system": run.system, "said": run.heard}
    if run.is_buffered:  # as it is to be when it goes on
        opening["buffered"] = True
    if run.surroundings:
        opening["surroundings"] = run.surroundings
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
    shown = run.capture_content
    zone = UTC if django_settings.USE_TZ else None
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
        redact(clean(entry.error)) if shown and entry.error else "",
        entry.error_type[:100],
        *(_counts(entry.usage) if entry.usage else NO_COUNTS),
        entry.cost if entry.cost is None else min(entry.cost, MAX_COST),
        datetime.fromtimestamp(entry.started_at, zone),
        datetime.fromtimestamp(entry.started_at + entry.duration_s, zone),
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
        redact(clean(run.text)) if run.capture_content else "",
        redact(clean(run.error)),
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


def event_values(run: Run, row: Joined) -> Values:
    """Return the row of events, in the order of EVENT_COLUMNS."""
    first, cursor = row.events[0], row.cursor
    at = moment(first.at)
    return (run.uuid, *cursor, len(row.events), first.kind, at, redact_json(clean(row.encode())))


EVENT_COLUMNS = ("trace_id", "seq", "part", "count", "kind", "at", "data_json")

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

# Where among them is what changes while a run goes on.
PROGRESS_PLACES = [
    place
    for place, name in enumerate(END_COLUMNS)
    if name not in ("status", "stop_reason", "error", "ended_at")
]


def _short(text: str, length: int) -> str:
    return clean(text)[:length]


def _counts(usage: Usage) -> tuple[int, ...]:
    """Return the token counts as a column takes them, whatever the provider says."""
    counts: tuple[int, ...] = (
        usage.input_tokens,
        usage.output_tokens,
        usage.cache_read_tokens,
        usage.cache_write_tokens,
        usage.reasoning_tokens,
    )
    if min(counts) < 0 or max(counts) > MAX_INT:
        counts = tuple(min(max(count, 0), MAX_INT) for count in counts)
    return (*counts, usage.estimated)


def _input_json(entry: Entry) -> str:
    value = entry.input
    if value is None:
        return ""
    if entry.kind == LLM and isinstance(value, dict):
        value = {key: HIDDEN if _is_secret(key) else item for key, item in value.items()}
    return redact_json(_arguments_json(value)) if isinstance(value, str) else _json(value)


@lru_cache(maxsize=256)
def _is_secret(key: str) -> bool:
    return _SECRET.search(key) is not None


def _arguments_json(text: str) -> str:
    """Return the arguments that a model wrote as JSON text; broken ones as a JSON string."""
    if _is_plain(text):
        return text
    try:
        value = parse_json(text)
    except ValueError:
        return dumps(text)
    # What is ASCII without escapes holds nothing that must be cleaned.
    return text if text.isascii() and "\\u" not in text else dumps(value)


def _is_plain(text: str) -> bool:
    """Return whether a short look finds a JSON object that is kept as it is.

    A key that comes twice shows as a colon too many, a number too large for a float as an
    exponent or in more digits than a short text has.
    """
    if len(text) > MAX_PLAIN or not text.isascii() or _ODD.search(text):
        return False
    try:
        value = from_json(text, allow_inf_nan=False)
    except ValueError:
        return False
    return type(value) is dict and len(value) == text.count(":")


def _json(value: Any) -> str:
    """Return JSON text of what is JSON data already, and mostly clean.

    That saves the walk through every value, which is most of the time that a row takes.
    """
    try:
        text = clean(encode(value))
    except (TypeError, ValueError, RecursionError):
        return redact_json(dumps(value))
    return redact_json(dumps(value) if NUL in text else text)


def _attributes_json(entry: Entry, shown: bool) -> str:
    attributes = entry.attributes
    if not shown and attributes:
        attributes = {key: item for key, item in attributes.items() if key not in CONTENT}
    return _json(attributes) if attributes else ""


def moment(seconds: float) -> datetime:
    """Return a time since the epoch as Django keeps times."""
    return datetime.fromtimestamp(seconds, UTC if django_settings.USE_TZ else None)


INSERT_TRACE = Insert(Trace, [field.attname for field in Trace._meta.concrete_fields], rank=0)
INSERT_SPAN = Insert(Span, SPAN_COLUMNS, rank=1)
INSERT_EVENT = Notifying(Event, EVENT_COLUMNS, rank=2)
UPDATE_TRACE = Update(Trace, END_COLUMNS)
UPDATE_PROGRESS = Update(Trace, [END_COLUMNS[place] for place in PROGRESS_PLACES])
