"""Values as JSON: how anything that a tool, a model or a user hands in is written down.

One conversion serves the model, events, rows and HTTP, so all of them tell the same, on every
database:

=========================================  ================================================
str                                        itself, through ``clean``
bool, None, float, int                     itself; NaN and the infinities become null, and
                                           integers beyond 64 bits become text
Decimal, UUID, path, IP address, Fraction  text
datetime, date, time, timedelta            ISO 8601 text
Enum                                       its value
bytes                                      text if they are UTF-8, else ``base64:…``
list, tuple, set, iterator, sequence       list; sets are sorted, iterators cut at 10,000
dict and other mappings, named tuple       object; keys become text, and a key that is
                                           already taken gets a number, as in ``1 (2)``
dataclass, pydantic model, attrs class     object of its fields
Django model                               object of its columns, without a password
form, serializer                           object of the data that it was given
QuerySet                                   list of its rows, cut at 10,000
numpy scalar, array                        number, list
lazy translation                           text
anything else                              its ``repr``, cut at 200 characters
=========================================  ================================================

A value inside itself becomes ``<cycle>``; what lies deeper than 100 levels ``<too deep>``.
"""

from __future__ import annotations

import base64
import io
import json
import math
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set, ValuesView
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from itertools import islice
from pathlib import PurePath
from typing import Any
from uuid import UUID

from django.utils.duration import duration_iso_string
from django.utils.functional import LazyObject, Promise

__all__ = ["clean", "clean_json", "dumps", "encode", "parse_json", "to_json", "truncate"]

MAX_DEPTH = 100
MAX_ITEMS = 10_000
MAX_REPR = 200
CYCLE = "<cycle>"
TOO_DEEP = "<too deep>"
MORE = "<more items left out>"

INT64 = range(-(2**63), 2**63)
_IP = IPv4Address | IPv6Address | IPv4Network | IPv6Network
_AS_TEXT = UUID | PurePath | Fraction | complex | Promise | _IP
_SURROGATE = re.compile("[\ud800-\udfff]")


def clean(text: str) -> str:
    """Return text that every database and every encoder takes.

    NUL becomes ``␀``, the two halves of a surrogate pair are joined, and a half without its
    other becomes U+FFFD.
    """
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text.replace("\0", "␀") if "\0" in text else text


def clean_json(value: Any) -> Any:
    """Return JSON data with every string in it, keys too, gone through ``clean``."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [clean_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    result: dict[str, Any] = {}
    for key, item in value.items():
        _put(result, clean(key), clean_json(item))
    return result


def dumps(value: Any) -> str:
    """Return any value as strict JSON text: no NaN, nothing that is not Unicode."""
    if type(value) is str:
        return _encode(clean(value))
    return encode(_Conversion(None).convert(value, 0))


def encode(value: Any) -> str:
    """Return the strict JSON text of what ``to_json`` returned."""
    if type(value) is int:
        return str(value)
    return "null" if value is None else _encode(value)


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False).encode


def to_json(value: Any, notes: list[str] | None = None) -> Any:
    """Return any value as JSON data, by the table at the top.

    What was lost on the way is appended to ``notes``, once each. A QuerySet is read here, so
    call this where the ORM may be used.
    """
    kind = type(value)
    if value is None or kind is bool or (kind is int and value in INT64):
        return value
    return _Conversion(notes).convert(value, 0)


class _Conversion:
    """One walk through a value."""

    __slots__ = ("notes", "parents")

    def __init__(self, notes: list[str] | None) -> None:
        self.notes = notes
        self.parents: set[int] = set()

    def note(self, text: str) -> None:
        if self.notes is not None and text not in self.notes:
            self.notes.append(text)

    def convert(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind is str:
            return self.text(value)
        if value is None or kind is bool:
            return value
        if kind is int:
            return value if value in INT64 else self.long(value)
        if kind is float:
            return value if math.isfinite(value) else self.not_finite(value)
        if kind in _PLAIN_CONTAINERS:
            return self.inside(value, depth, _PLAIN_CONTAINERS[kind])
        return self.other(value, depth)

    def text(self, value: str) -> str:
        cleaned = clean(value)
        if cleaned is not value and self.notes is not None:
            if "\0" in value:
                self.note("NUL became ␀")
            if _SURROGATE.search(value):
                self.note("half of a surrogate pair was joined or became U+FFFD")
        return cleaned

    def long(self, value: int) -> str:
        self.note("an integer beyond 64 bits became text")
        # str() refuses more than 4300 digits; hex() takes any number.
        return str(value) if value.bit_length() < 14_000 else hex(value)

    def not_finite(self, value: Any) -> None:
        self.note(f"{value} became null")

    def inside(self, value: Any, depth: int, convert: Any) -> Any:
        """Convert what is in a container, unless it is too deep or inside itself."""
        if depth >= MAX_DEPTH:
            self.note(f"what was deeper than {MAX_DEPTH} levels was cut")
            return TOO_DEEP
        if id(value) in self.parents:
            self.note("a value inside itself was cut")
            return CYCLE
        self.parents.add(id(value))
        try:
            return convert(self, value, depth + 1)
        finally:
            self.parents.discard(id(value))

    def mapping(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, item in value.items():
            name = self.text(key) if type(key) is str else self.key(key, depth)
            if name in result:
                self.note("a key that was already taken got a number")
            _put(result, name, self.convert(item, depth))
        return result

    def key(self, key: Any, depth: int) -> str:
        converted = self.convert(key, depth)
        return converted if isinstance(converted, str) else encode(converted)

    def sequence(self, value: Iterable[Any], depth: int) -> list[Any]:
        convert = self.convert
        return [convert(item, depth) for item in value]

    def unordered(self, value: Set[Any], depth: int) -> list[Any]:
        try:
            return self.sequence(sorted(value), depth)
        except TypeError:
            return sorted(self.sequence(value, depth), key=_encode)

    def stream(self, value: Iterable[Any], depth: int) -> list[Any]:
        """Convert what may never end."""
        items = self.sequence(islice(value, MAX_ITEMS + 1), depth)
        if len(items) > MAX_ITEMS:
            self.note(f"only the first {MAX_ITEMS} items were kept")
            items[-1] = MORE
        return items

    def other(self, value: Any, depth: int) -> Any:
        # Such as request.user. It says that it is an instance of what it stands for.
        if isinstance(value, LazyObject):
            return self.convert(value.__reduce__()[1][0], depth)
        if isinstance(value, Enum):
            return self.convert(value.value, depth)
        if isinstance(value, str):
            return self.text(str.__str__(value))
        if isinstance(value, int):
            return self.convert(int(value), depth)
        if isinstance(value, float):
            return self.convert(float(value), depth)
        if isinstance(value, Decimal):
            return str(value) if value.is_finite() else self.not_finite(value)
        if isinstance(value, datetime | date | time):
            return value.isoformat()
        if isinstance(value, timedelta):
            return duration_iso_string(value)
        if isinstance(value, _AS_TEXT):
            return self.text(str(value))
        if isinstance(value, bytes | bytearray | memoryview):
            return self.binary(bytes(value))
        return self.structure(value, depth)

    def binary(self, value: bytes) -> str:
        try:
            return self.text(value.decode())
        except UnicodeDecodeError:
            self.note("bytes became base64")
            return f"base64:{base64.b64encode(value).decode()}"

    def structure(self, value: Any, depth: int) -> Any:
        kind = type(value)
        for belongs, convert in _STRUCTURES:
            if belongs(kind):
                return self.inside(value, depth, convert)
        self.note(f"{kind.__name__} became its repr")
        return self.text(_repr(value))

    def queryset(self, value: Any, depth: int) -> list[Any]:
        return self.stream(value[: MAX_ITEMS + 1], depth)

    def django_model(self, value: Any, depth: int) -> dict[str, Any]:
        # A deferred column is not in __dict__; reading it would be one more query.
        loaded = vars(value)
        names = [field.attname for field in value._meta.concrete_fields]
        return self.mapping(
            {name: _file_name(loaded[name]) for name in names if _may_show(value, name, loaded)},
            depth,
        )

    def pydantic_model(self, value: Any, depth: int) -> Any:
        try:
            dumped = value.model_dump(mode="json", warnings=False)
        except ValueError:  # a field that pydantic cannot write, or half a surrogate pair
            dumped = dict(value)
        return self.convert(dumped, depth)

    def dataclass(self, value: Any, depth: int) -> dict[str, Any]:
        return self.mapping({f.name: getattr(value, f.name) for f in fields(value)}, depth)

    def form(self, value: Any, depth: int) -> Any:
        # Not what became of it, which may hold rows with all their columns.
        return self.convert(dict(value.data), depth)

    def serializer(self, value: Any, depth: int) -> Any:
        return self.convert(getattr(value, "initial_data", None), depth)

    def attrs_class(self, value: Any, depth: int) -> dict[str, Any]:
        names = [attribute.name for attribute in value.__attrs_attrs__]
        return self.mapping({name: getattr(value, name) for name in names}, depth)

    def named_tuple(self, value: Any, depth: int) -> dict[str, Any]:
        return self.mapping(dict(zip(value._fields, value, strict=True)), depth)

    def array(self, value: Any, depth: int) -> Any:
        listed = value.tolist()
        return self.convert(listed, depth) if type(listed) is not type(value) else str(value)


_PLAIN_CONTAINERS: dict[type[Any], Any] = {
    dict: _Conversion.mapping,
    list: _Conversion.sequence,
    tuple: _Conversion.sequence,
    set: _Conversion.unordered,
    frozenset: _Conversion.unordered,
}

# Packages that need not be installed are known by the shape of their classes.
_STRUCTURES: tuple[tuple[Any, Any], ...] = (
    (lambda kind: hasattr(kind, "model_dump"), _Conversion.pydantic_model),
    (
        lambda kind: hasattr(getattr(kind, "_meta", None), "concrete_fields"),
        _Conversion.django_model,
    ),
    (lambda kind: hasattr(kind, "_fetch_all"), _Conversion.queryset),
    (lambda kind: hasattr(kind, "base_fields"), _Conversion.form),
    (lambda kind: hasattr(kind, "run_validation"), _Conversion.serializer),
    (is_dataclass, _Conversion.dataclass),
    (lambda kind: hasattr(kind, "__attrs_attrs__"), _Conversion.attrs_class),
    (lambda kind: hasattr(kind, "dtype") and hasattr(kind, "tolist"), _Conversion.array),
    (lambda kind: issubclass(kind, Mapping), _Conversion.mapping),
    (
        lambda kind: issubclass(kind, tuple) and hasattr(kind, "_fields"),
        _Conversion.named_tuple,
    ),
    (lambda kind: issubclass(kind, Set), _Conversion.unordered),
    (lambda kind: issubclass(kind, Sequence | ValuesView | deque), _Conversion.sequence),
    (
        lambda kind: issubclass(kind, Iterator) and not issubclass(kind, io.IOBase),
        _Conversion.stream,
    ),
)


def _put(result: dict[str, Any], name: str, item: Any) -> None:
    """Add an item under its name, or under ``name (2)``, ``name (3)``… if that is taken."""
    free, number = name, 1
    while free in result:
        number += 1
        free = f"{name} ({number})"
    result[free] = item


def _may_show(value: Any, name: str, loaded: dict[str, Any]) -> bool:
    return name in loaded and not (name == "password" and hasattr(value, "check_password"))


def _file_name(value: Any) -> Any:
    """Return the name of a stored file; any other value as it is."""
    is_file = hasattr(value, "storage") and hasattr(value, "field")
    return value.name if is_file else value


def _repr(value: Any) -> str:
    kind: Any = type(value)
    plain = f"<{kind.__module__}.{kind.__qualname__} object>"
    if kind.__repr__ is object.__repr__:
        return plain  # without the address, which is never the same twice
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - anything may go wrong in a foreign __repr__
        return plain
    return text if len(text) <= MAX_REPR else f"{text[: MAX_REPR - 1]}…"


def truncate(text: str, limit: int | None) -> str:
    """Return the text in at most ``limit`` characters: its head, its tail and a marker.

    The marker tells how many characters were left out of how many. It is kept even where
    ``limit`` is too small for it.
    """
    if limit is None or len(text) <= limit:
        return text
    room = max(0, limit - len(_marker(len(text), len(text))))
    tail = room // 4
    head = room - tail
    marker = _marker(len(text) - room, len(text))
    return f"{text[:head]}{marker}{text[len(text) - tail :]}"


def _marker(left_out: int, total: int) -> str:
    return f"\n[… {left_out:,} of {total:,} characters left out …]\n"


def parse_json(
    text: str | bytes, *, max_chars: int | None = None, max_depth: int = MAX_DEPTH
) -> Any:
    """Return the value of a JSON text; raise ValueError with a sentence that says what is wrong.

    Stricter than ``json.loads``: no NaN or Infinity, no number too large for a float, no key
    twice in an object, no more than ``max_depth`` levels.
    """
    if max_chars is not None and len(text) > max_chars:
        raise ValueError(f"{len(text)} characters, but at most {max_chars} are allowed.")
    try:
        value = _decode(text if isinstance(text, str) else text.decode())
    except json.JSONDecodeError as error:
        raise ValueError(
            f"not valid JSON: {error.msg} (line {error.lineno}, column {error.colno})."
        ) from None
    except UnicodeDecodeError:
        raise ValueError("not valid JSON: not UTF-8.") from None
    except RecursionError:
        raise _too_deep(max_depth) from None
    # Only a text with many brackets can be deep.
    if _count(text, "[") + _count(text, "{") > max_depth and isinstance(value, dict | list):
        _check_depth(value, max_depth)
    return value


def _count(text: str | bytes, mark: str) -> int:
    return text.count(mark) if isinstance(text, str) else text.count(mark.encode())


def _check_depth(value: Any, max_depth: int) -> None:
    level = [value]
    for _ in range(max_depth):
        level = [
            item
            for outer in level
            for item in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(item, dict | list)
        ]
        if not level:
            return
    raise _too_deep(max_depth)


def _too_deep(max_depth: int) -> ValueError:
    return ValueError(f"nested deeper than {max_depth} levels.")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} comes twice in one object.")
    return result


def _constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON; use null.")


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {text[:20]} is too large.")
    return value


def _int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"a number has {len(text)} digits, which is too many.") from None


_decode = json.JSONDecoder(
    object_pairs_hook=_unique, parse_constant=_constant, parse_float=_float, parse_int=_int
).decode
