import dataclasses
import datetime as dt
import enum
import json
import math
import pathlib
import uuid
from collections import OrderedDict, deque, namedtuple
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from ipaddress import ip_address
from itertools import count
from types import SimpleNamespace

import attrs
import pytest
from django.utils.functional import SimpleLazyObject, lazystr
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from mlango.core.values import (
    MAX_DEPTH,
    MAX_ITEMS,
    clean,
    clean_json,
    dumps,
    parse_json,
    to_json,
    truncate,
)


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Text(str):
    pass


@dataclasses.dataclass
class Order:
    number: int
    price: Decimal


class Ratio(float):
    pass


class Count(int):
    pass


@attrs.define
class Tag:
    name: str


class Item(BaseModel):
    name: str
    when: dt.date


Point = namedtuple("Point", "x y")


class Scalar:
    """Stands for a numpy scalar."""

    dtype = "int64"

    def __init__(self, value):
        self.value = value

    def tolist(self):
        return self.value


class LongDouble(Scalar):
    """Stands for a numpy scalar that no Python number can hold."""

    def tolist(self):
        return self

    def __str__(self):
        return "1.5"


class Row:
    """Stands for a Django model's instance."""

    _meta = SimpleNamespace(
        concrete_fields=[
            SimpleNamespace(attname=name)
            for name in ("id", "owner_id", "password", "file", "notes")
        ]
    )

    def __init__(self, **values):
        self.__dict__.update(values)


class Account(Row):
    def check_password(self):
        raise NotImplementedError


class Rows:
    """Stands for a QuerySet."""

    def __init__(self, items):
        self.items = items

    def _fetch_all(self):
        raise NotImplementedError

    def __getitem__(self, part):
        return Rows(self.items[part])

    def __iter__(self):
        return iter(self.items)


class Opaque:
    pass


class Loud:
    def __repr__(self):
        return "x" * 500


class Broken:
    def __repr__(self):
        raise RuntimeError


CASES = [
    ("text", "text"),
    (7, 7),
    (True, True),
    (None, None),
    (1.5, 1.5),
    (float("nan"), None),
    (float("inf"), None),
    (float("-inf"), None),
    (2**63 - 1, 2**63 - 1),
    (-(2**63), -(2**63)),
    (2**63, str(2**63)),
    (-(2**63) - 1, str(-(2**63) - 1)),
    (10**5000, hex(10**5000)),
    (Decimal("1.50"), "1.50"),
    (Decimal("NaN"), None),
    (Decimal("-Infinity"), None),
    (Fraction(1, 3), "1/3"),
    (1 + 2j, "(1+2j)"),
    (dt.datetime(2024, 1, 2, 3, 4, tzinfo=dt.UTC), "2024-01-02T03:04:00+00:00"),
    (dt.date(2024, 1, 2), "2024-01-02"),
    (dt.time(3, 4), "03:04:00"),
    (dt.timedelta(days=1, seconds=5), "P1DT00H00M05S"),
    (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    (pathlib.PurePosixPath("/a/b"), "/a/b"),
    (ip_address("127.0.0.1"), "127.0.0.1"),
    (Colour.RED, "red"),
    (Level.LOW, 1),
    (Text("sub"), "sub"),
    (Ratio(0.5), 0.5),
    (Count(7), 7),
    (Tag("x"), {"name": "x"}),
    (lazystr("later"), "later"),
    (SimpleLazyObject(lambda: {"a": 1}), {"a": 1}),
    (SimpleLazyObject(lambda: "later"), "later"),
    (SimpleLazyObject(lambda: 3), 3),
    (SimpleLazyObject(lambda: 0.5), 0.5),
    (SimpleLazyObject(lambda: Decimal("0.5")), "0.5"),
    (b"caf\xc3\xa9", "café"),
    (bytearray(b"ab"), "ab"),
    (memoryview(b"ab"), "ab"),
    (b"\xff\x00", "base64:/wA="),
    ((1, 2), [1, 2]),
    ({3, 1, 2}, [1, 2, 3]),
    (frozenset({"b", "a"}), ["a", "b"]),
    ({1, "a"}, ["a", 1]),
    (deque([1]), [1]),
    (range(3), [0, 1, 2]),
    ((n for n in (1, 2)), [1, 2]),
    ({"a": 1}.values(), [1]),
    ({"a": 1}.keys(), ["a"]),
    (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
    (Point(1, 2), {"x": 1, "y": 2}),
    (Order(1, Decimal("2.0")), {"number": 1, "price": "2.0"}),
    (Item(name="x", when=dt.date(2024, 1, 2)), {"name": "x", "when": "2024-01-02"}),
    (Scalar(5), 5),
    (Scalar([1.0, float("nan")]), [1.0, None]),
    (LongDouble(0), "1.5"),
    (Row(id=1, owner_id=2), {"id": 1, "owner_id": 2}),
    (Row(password="p"), {"password": "p"}),
    (Account(id=1, password="p"), {"id": 1}),
    (Row(file=SimpleNamespace(name="a.txt", storage=1, field=1)), {"file": "a.txt"}),
    (Rows([{"id": 1}, {"id": 2}]), [{"id": 1}, {"id": 2}]),
    (Opaque(), f"<{__name__}.Opaque object>"),
    (Broken(), f"<{__name__}.Broken object>"),
    (int, "<class 'int'>"),
]


@pytest.mark.parametrize(("value", "expected"), CASES, ids=lambda value: str(type(value)))
def test_each_type_has_one_conversion(value, expected):
    converted = to_json(value)

    assert converted == expected
    assert type(converted) is type(expected)


AGAIN = [case for case in CASES if not hasattr(case[0], "__next__")]  # one is empty by then


@pytest.mark.parametrize(("value", "expected"), AGAIN, ids=lambda value: str(type(value)))
def test_the_conversion_is_the_same_inside_a_container(value, expected):
    assert to_json({"a": [value]}) == {"a": [expected]}


def test_a_long_repr_is_cut():
    assert to_json(Loud()) == "x" * 199 + "…"


def test_keys_become_text():
    value = {1: "a", None: "b", 2.5: "c", Colour.RED: "d", (1, "x"): "e"}

    assert to_json(value) == {"1": "a", "null": "b", "2.5": "c", "red": "d", '[1, "x"]': "e"}


def test_keys_that_become_equal_keep_their_items():
    value = {1: "a", "1": "b", "k\0": "c", "k␀": "d", "k␀ (2)": "e"}

    assert to_json(value) == {
        "1": "a",
        "1 (2)": "b",
        "k␀": "c",
        "k␀ (2)": "d",
        "k␀ (2) (2)": "e",
    }


def test_a_value_inside_itself_is_cut():
    loop = {"name": "x", "list": []}
    loop["list"].append(loop)

    assert to_json(loop) == {"name": "x", "list": ["<cycle>"]}


def test_a_value_that_comes_twice_is_no_cycle():
    shared = [1]

    assert to_json([shared, shared]) == [[1], [1]]


def test_what_is_too_deep_is_cut():
    value = "end"
    for _ in range(5000):
        value = [value]

    converted = to_json(value)

    for _ in range(MAX_DEPTH):
        (converted,) = converted
    assert converted == "<too deep>"


def test_an_endless_iterator_is_cut():
    converted = to_json(count())

    assert converted[-2:] == [MAX_ITEMS - 1, "<more items left out>"]
    assert len(converted) == MAX_ITEMS + 1


def test_a_queryset_is_not_read_beyond_the_limit():
    converted = to_json(Rows(range(10**6)))

    assert len(converted) == MAX_ITEMS + 1


def test_an_iterator_may_raise_what_the_tool_raises():
    def fails():
        yield 1
        raise LookupError("gone")

    with pytest.raises(LookupError, match="gone"):
        to_json(fails())


def test_a_pydantic_model_with_fields_that_pydantic_cannot_write_is_written():
    class Odd(BaseModel, arbitrary_types_allowed=True):
        text: str
        opaque: Opaque
        raw: bytes

    odd = Odd.model_construct(text="\ud800", opaque=Opaque(), raw=b"\xff")

    assert to_json(odd) == {
        "text": "\ufffd",
        "opaque": f"<{__name__}.Opaque object>",
        "raw": "base64:/w==",
    }


@pytest.mark.parametrize(
    ("value", "note"),
    [
        ("a\0b", "NUL became ␀"),
        ("\ud800", "half of a surrogate pair was joined or became U+FFFD"),
        (float("nan"), "nan became null"),
        (Decimal("Infinity"), "Infinity became null"),
        (2**70, "an integer beyond 64 bits became text"),
        (b"\xff", "bytes became base64"),
        (Opaque(), "Opaque became its repr"),
        ({1: 1, "1": 2}, "a key that was already taken got a number"),
        (count(), "only the first 10000 items were kept"),
    ],
)
def test_what_is_lost_is_noted_once(value, note):
    notes = []

    to_json([value, value if not hasattr(value, "__next__") else count()], notes)

    assert notes == [note]


def test_nothing_is_noted_where_nothing_is_lost():
    notes = []

    to_json({"a": [1, 2.5, None, "ü", dt.date(2024, 1, 1)]}, notes)

    assert notes == []


def test_a_conversion_copies():
    value = {"a": [1]}

    converted = to_json(value)
    value["a"].append(2)

    assert converted == {"a": [1]}


# -- text -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("W\0s\0l\0", "W␀s␀l␀"),
        ("é\0", "é␀"),
        ("\ud83c\udf78", "🍸"),
        ("\ud800", "\ufffd"),
        ("a\udc97b", "a\ufffdb"),
        ("\ud800\ud83c\udf78\udc00", "\ufffd🍸\ufffd"),
        ("👩‍👩‍👧 \u202e中文", "👩‍👩‍👧 \u202e中文"),
    ],
)
def test_text_is_cleaned(text, expected):
    assert clean(text) == expected


def test_text_that_is_clean_is_not_copied():
    text = "é" * 10

    assert clean(text) is text


def test_json_is_cleaned_with_its_keys():
    value = {"k\0": ["v\0", {"\ud800": 1}], "n": 2**80}

    assert clean_json(value) == {"k␀": ["v␀", {"\ufffd": 1}], "n": 2**80}


@given(st.text(st.characters(), max_size=30))
def test_clean_text_can_be_encoded_and_stays_as_it_is(text):
    cleaned = clean(text)

    assert "\0" not in cleaned
    assert cleaned.encode().decode() == cleaned
    assert clean(cleaned) is cleaned


any_text = st.text(st.characters(), max_size=8)
any_value = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | any_text
    | st.binary(max_size=8)
    | st.decimals()
    | st.dates()
    | st.datetimes(timezones=st.none() | st.timezones())
    | st.timedeltas()
    | st.uuids()
    | st.complex_numbers()
    | st.builds(Opaque),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(any_text | st.integers() | st.booleans() | st.none(), inner, max_size=4)
        | st.frozensets(st.integers() | any_text, max_size=4)
    ),
    max_leaves=12,
)


def refuse(constant):
    raise AssertionError(constant)


@given(any_value)
def test_any_value_becomes_strict_json(value):
    text = dumps(value)

    assert json.loads(text.encode(), parse_constant=refuse) == to_json(value)
    assert parse_json(text) == to_json(value)


@given(any_value)
def test_a_converted_value_converts_to_itself(value):
    converted = to_json(value)

    assert to_json(converted) == converted
    assert clean_json(converted) == converted


@given(st.dictionaries(any_text | st.integers(), st.integers(), max_size=8))
def test_no_item_of_a_dict_is_lost(value):
    converted = to_json(value)

    assert len(converted) == len(value)


def test_dumps_keeps_letters_as_they_are():
    assert dumps({"a": "ü🍸"}) == '{"a": "ü🍸"}'


@pytest.mark.parametrize("value", ["x", 5, None, True, [1], {"a": None}])
def test_dumps_writes_plain_values_as_json_does(value):
    assert dumps(value) == json.dumps(value)


# -- truncate -------------------------------------------------------------------------------


def test_a_short_text_is_not_truncated():
    assert truncate("abc", 3) == "abc"
    assert truncate("abc" * 1000, None) == "abc" * 1000


def test_a_truncated_text_keeps_head_and_tail_and_says_how_much_is_missing():
    text = "".join(chr(0x4E00 + n) for n in range(5000))

    cut = truncate(text, 200)

    head, marker, tail = cut.split("\n")
    assert len(cut) <= 200
    assert text.startswith(head)
    assert text.endswith(tail)
    left_out = 5000 - len(head) - len(tail)
    assert marker == f"[… {left_out:,} of 5,000 characters left out …]"


def test_the_marker_is_kept_where_there_is_no_room():
    assert truncate("x" * 100, 5) == "\n[… 100 of 100 characters left out …]\n"


@given(st.text(max_size=300), st.integers(0, 300))
def test_a_truncated_text_is_no_longer_than_allowed(text, limit):
    assert len(truncate(text, limit)) <= max(limit, 50)


# -- parse ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"not valid JSON: Expecting value \(line 1, column 1\)\."),
        ('{"a":', r"not valid JSON: Expecting value \(line 1, column 6\)\."),
        ("{} {}", r"not valid JSON: Extra data"),
        (b"\xff", r"not valid JSON: not UTF-8\."),
        ("NaN", r"NaN is not JSON; use null\."),
        ("[-Infinity]", r"-Infinity is not JSON"),
        ("1e999", r"the number 1e999 is too large"),
        ("-1e999", r"the number -1e999 is too large"),
        ('{"a": 1, "b": {"c": 1, "c": 2}}', r"the key 'c' comes twice in one object\."),
        ("9" * 5000, r"a number has 5000 digits, which is too many"),
        ("[" * 101 + "]" * 101, r"nested deeper than 100 levels\."),
        ("[" * 200_000, r"nested deeper than 100 levels\."),
        ('{"a":' * 101 + "1" + "}" * 101, r"nested deeper than 100 levels\."),
    ],
)
def test_what_is_not_strict_json_is_refused_with_a_reason(text, message):
    with pytest.raises(ValueError, match=message):
        parse_json(text)


def test_a_text_that_is_too_long_is_not_parsed():
    with pytest.raises(ValueError, match=r"11 characters, but at most 10 are allowed\."):
        parse_json("[1, 2, 3, 4"[:11], max_chars=10)


def test_json_within_the_limits_is_parsed():
    deep = "[" * 100 + "]" * 100

    assert parse_json(deep, max_chars=200) == json.loads(deep)
    assert parse_json(b'{"a": "\xc3\xa9"}') == {"a": "é"}
    assert parse_json("9" * 4300) == int("9" * 4300)
    assert parse_json(f"[{','.join(['[]'] * 500)}]") == [[]] * 500
    assert math.isclose(parse_json("1e300"), 1e300)


@given(st.text(st.characters(), max_size=40) | st.binary(max_size=40))
def test_parsing_raises_nothing_but_value_errors(text):
    with suppress(ValueError):
        parse_json(text)
