# ruff: noqa: UP007, UP045 - every spelling of an optional type is tested
from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import functools
import ipaddress
import json
import pathlib
import re
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    Literal,
    NewType,
    NotRequired,
    Optional,
    TypeVar,
    Union,
)

import pytest
from django.http import HttpRequest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, RootModel
from typing_extensions import Doc, TypedDict

from mlango.core.context import Context
from mlango.core.dialects import NotStrict
from mlango.core.schema import Parameters, adapt_schema, compact_schema
from mlango.core.signature import read
from mlango.exceptions import InvalidArguments, Misused, ToolDefinitionError

if TYPE_CHECKING:
    from nowhere import Nothing

T = TypeVar("T")


def parameters_of(fn, **options):
    return Parameters.from_signature(read(fn), **options)


def taking(annotation, *default, **options):
    """Return the Parameters of a function with one parameter ``x``."""

    def fn(x):
        raise NotImplementedError

    fn.__annotations__ = {"x": annotation}
    fn.__defaults__ = default
    return parameters_of(fn, **options)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Node(BaseModel):
    """A node of a tree."""

    name: str
    children: list[Node] = []
    weight: int = 1


class Box(BaseModel, Generic[T]):
    item: T


class Options(BaseModel):
    colour: Colour = Colour.RED
    limit: int = 5
    note: str | None = None


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]


@dataclasses.dataclass
class Place:
    city: str
    zip: int = 0


class Movie(TypedDict):
    title: str
    year: NotRequired[int]


UserId = NewType("UserId", int)
ID = uuid.UUID("12345678-1234-5678-1234-567812345678")


def even(value: int) -> int:
    if value % 2:
        raise ValueError("must be even")
    return value


# annotation, schema of the property, JSON that must pass, the value it becomes, JSON that fails
TABLE = [
    (str, {"type": "string"}, '"a"', "a", "1"),
    (int, {"type": "integer"}, '"42"', 42, '"x"'),
    (float, {"type": "number"}, "1", 1.0, "1e999"),
    (bool, {"type": "boolean"}, "true", True, '"maybe"'),
    (Literal["open", "closed"], {"type": "string", "enum": ["open", "closed"]}, '"open"', "open",
     '"ajar"'),
    (Literal["one"], {"type": "string", "enum": ["one"]}, '"one"', "one", '"two"'),
    (Literal["a", 1, True], {"enum": ["a", 1, True]}, "1", 1, "2"),
    (list[int], {"type": "array", "items": {"type": "integer"}}, '[1, "2"]', [1, 2], "[null]"),
    (list, {"type": "array", "items": {}}, '[1, "a"]', [1, "a"], "1"),
    (Sequence[int], {"type": "array", "items": {"type": "integer"}}, "[1]", [1], "1"),
    (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}},
     '{"a": 1}', {"a": 1}, '{"a": "x"}'),
    (dict, {"type": "object", "additionalProperties": True}, '{"a": null}', {"a": None}, "[]"),
    (Mapping[str, int], {"type": "object", "additionalProperties": {"type": "integer"}},
     '{"a": 1}', {"a": 1}, "1"),
    (tuple[int, str],
     {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}],
      "minItems": 2, "maxItems": 2}, '[1, "a"]', (1, "a"), "[1]"),
    (set[int], {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
     "[1, 2, 1]", {1, 2}, "1"),
    (frozenset[str], {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
     '["a"]', frozenset({"a"}), "1"),
    (int | str, {"anyOf": [{"type": "integer"}, {"type": "string"}]}, '"a"', "a", "[]"),
    (Any, {}, '{"a": [1]}', {"a": [1]}, None),
    (Colour, {"type": "string", "enum": ["red", "blue"]}, '"red"', Colour.RED, '"green"'),
    (Level, {"type": "integer", "enum": [1, 2]}, "2", Level.HIGH, "3"),
    (list[Colour], {"type": "array", "items": {"type": "string", "enum": ["red", "blue"]}},
     '["red"]', [Colour.RED], '["green"]'),
    (dt.datetime, {"type": "string", "format": "date-time"}, '"2024-01-02T03:04:05Z"',
     dt.datetime(2024, 1, 2, 3, 4, 5, tzinfo=dt.UTC), '"soon"'),
    (dt.date, {"type": "string", "format": "date"}, '"2024-01-02"', dt.date(2024, 1, 2), '"x"'),
    (dt.time, {"type": "string", "format": "time"}, '"03:04:05"', dt.time(3, 4, 5), '"x"'),
    (dt.timedelta, {"type": "string", "format": "duration"}, '"PT1H"', dt.timedelta(hours=1),
     '"x"'),
    (uuid.UUID, {"type": "string", "format": "uuid"}, f'"{ID}"', ID, '"x"'),
    (pathlib.Path, {"type": "string", "format": "path"}, '"/a"', pathlib.Path("/a"), "1"),
    (bytes, {"type": "string", "format": "binary"}, '"ab"', b"ab", "1"),
    (ipaddress.IPv4Address, {"type": "string", "format": "ipv4"}, '"127.0.0.1"',
     ipaddress.IPv4Address("127.0.0.1"), '"1.2"'),
    (UserId, {"type": "integer"}, "1", 1, '"x"'),
    (Annotated[int, "how many"], {"type": "integer", "description": "how many"}, "1", 1, '"x"'),
    (Annotated[int, Doc("how many")], {"type": "integer", "description": "how many"}, "1", 1,
     '"x"'),
    (Annotated[str, Field(min_length=2, description="d")],
     {"type": "string", "minLength": 2, "description": "d"}, '"ab"', "ab", '"a"'),
    (Annotated[int, Field(ge=1), AfterValidator(even)], {"type": "integer", "minimum": 1}, "2",
     2, "3"),
    (Place, {"$ref": "#/$defs/Place"}, '{"city": "Bern"}', Place("Bern"), '{"zip": 1}'),
    (Movie, {"$ref": "#/$defs/Movie"}, '{"title": "M"}', {"title": "M"}, '{"year": 1}'),
    (Node, {"$ref": "#/$defs/Node"}, '{"name": "a", "children": [{"name": "b"}]}',
     Node(name="a", children=[Node(name="b")]), '{"name": "a", "children": [{}]}'),
    (list[Node], {"type": "array", "items": {"$ref": "#/$defs/Node"}}, '[{"name": "a"}]',
     [Node(name="a")], "[{}]"),
    (Box[int], {"$ref": "#/$defs/Box_int_"}, '{"item": 1}', Box[int](item=1), "{}"),
    (list[Optional[int]],
     {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
     "[1, null]", [1, None], '["x"]'),
    ("Node", {"$ref": "#/$defs/Node"}, '{"name": "a"}', Node(name="a"), "{}"),
    ("list['Colour']", {"type": "array", "items": {"type": "string", "enum": ["red", "blue"]}},
     '["red"]', [Colour.RED], "1"),
]  # fmt: skip


def title(value):
    """Return ``str(value)`` without addresses, which differ between the workers of one run."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))


@pytest.mark.parametrize(("annotation", "schema"), [row[:2] for row in TABLE], ids=title)
def test_an_annotation_becomes_a_schema(annotation, schema):
    made = taking(annotation).schema

    assert made["type"] == "object"
    assert made["required"] == ["x"]
    assert made["properties"] == {"x": schema}
    Draft202012Validator.check_schema(made)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: title(row[0]))
def test_an_argument_becomes_a_typed_value(row):
    annotation, _, text, value, _ = row
    parameters = taking(annotation)

    validated = parameters.validate(f'{{"x": {text}}}')

    assert validated == {"x": value}
    assert type(validated["x"]) is type(value)
    assert parameters.validate({"x": json.loads(text)}) == {"x": value}


@pytest.mark.parametrize("row", [row for row in TABLE if row[4]], ids=lambda row: title(row[0]))
def test_an_argument_of_another_type_is_refused(row):
    with pytest.raises(InvalidArguments, match=r"^Invalid arguments: (x[.:]|the number)"):
        taking(row[0]).validate(f'{{"x": {row[4]}}}')


def test_a_decimal_is_exact():
    parameters = taking(Decimal)

    branches = parameters.schema["properties"]["x"]["anyOf"]
    assert [branch["type"] for branch in branches] == ["number", "string"]
    assert parameters.validate('{"x": "0.10"}') == {"x": Decimal("0.10")}


def test_definitions_stand_at_the_root_and_references_point_there():
    def fn(tree: Node, places: list[Place], other: Node | None = None):
        raise NotImplementedError

    schema = parameters_of(fn).schema

    assert sorted(schema["$defs"]) == ["Node", "Place"]
    assert schema["$defs"]["Node"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Node"}
    assert "$defs" not in json.dumps(schema["properties"]).replace("#/$defs/", "")
    Draft202012Validator(schema).validate({"tree": {"name": "a"}, "places": [{"city": "b"}]})


def test_titles_are_left_out_but_not_a_property_called_title():
    schema = taking(Movie).schema

    assert schema["$defs"]["Movie"]["properties"] == {
        "title": {"type": "string"},
        "year": {"type": "integer"},
    }
    assert "title" not in schema


# -- optional parameters and defaults -------------------------------------------------------

SPELLINGS = [int | None, Optional[int], Union[int, None], Union[None, int], "int | None"]


@pytest.mark.parametrize("annotation", SPELLINGS, ids=str)
def test_every_spelling_of_optional_is_the_same(annotation):
    parameters = taking(annotation, None)

    assert parameters.schema == {
        "type": "object",
        "properties": {"x": {"type": "integer", "default": None}},
    }
    assert parameters.validate("{}") == {"x": None}
    assert parameters.validate('{"x": null}') == {"x": None}
    assert parameters.validate('{"x": 3}') == {"x": 3}


@pytest.mark.parametrize("annotation", SPELLINGS, ids=str)
def test_an_optional_parameter_without_default_is_not_required(annotation):
    parameters = taking(annotation)

    assert parameters.schema == {"type": "object", "properties": {"x": {"type": "integer"}}}
    assert parameters.validate("{}") == {"x": None}


def test_an_optional_list_takes_null():
    parameters = taking(list[str] | None, None)

    assert parameters.schema["properties"]["x"] == {
        "type": "array",
        "items": {"type": "string"},
        "default": None,
    }
    assert parameters.validate('{"x": null}') == {"x": None}


def test_null_stays_in_the_schema_where_it_is_not_the_default():
    parameters = taking(int | None, 5)

    assert parameters.schema["properties"]["x"] == {
        "anyOf": [{"type": "integer"}, {"type": "null"}],
        "default": 5,
    }
    assert parameters.validate('{"x": null}') == {"x": None}
    assert parameters.validate("{}") == {"x": 5}


def test_a_default_of_none_makes_any_parameter_optional():
    parameters = taking(int, None)

    assert parameters.schema["properties"]["x"] == {"type": "integer", "default": None}
    assert parameters.validate('{"x": null}') == {"x": None}


def test_a_type_that_holds_none_among_others_stays_as_it_is():
    parameters = taking(Literal["a", None], None)

    assert parameters.schema["properties"]["x"] == {"enum": ["a", None], "default": None}
    assert parameters.validate('{"x": null}') == {"x": None}
    assert taking(None, None).schema["properties"]["x"] == {"type": "null", "default": None}
    assert taking(int | str | None, None).schema["properties"]["x"] == {
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "default": None,
    }


def test_null_is_not_a_value_of_other_parameters():
    with pytest.raises(InvalidArguments, match="x: Input should be a valid integer"):
        taking(int, 5).validate('{"x": null}')


@pytest.mark.parametrize(
    ("annotation", "default", "recorded"),
    [
        (int, 5, 5),
        (str, "", ""),
        (Colour, Colour.RED, "red"),
        (dt.date, dt.date(2024, 1, 2), "2024-01-02"),
        (Place, Place("Bern"), {"city": "Bern", "zip": 0}),
        (list[int], [1], [1]),
    ],
)
def test_a_default_is_recorded_and_applied(annotation, default, recorded):
    parameters = taking(annotation, default)

    assert parameters.schema["properties"]["x"]["default"] == recorded
    assert "required" not in parameters.schema
    assert parameters.validate("{}")["x"] is default


def test_a_default_that_is_not_json_is_applied_but_not_recorded():
    missing = object()
    parameters = taking(int, missing)

    assert parameters.schema["properties"]["x"] == {"type": "integer"}
    assert parameters.validate("{}")["x"] is missing


def test_a_field_may_be_the_default():
    def fn(
        limit: int = Field(5, ge=1, description="How many."),
        tags: list[str] = Field(default_factory=list),  # noqa: B008
        city: str = Field(description="Where."),
    ):
        raise NotImplementedError

    parameters = parameters_of(fn)

    assert parameters.schema["properties"]["limit"] == {
        "type": "integer",
        "minimum": 1,
        "default": 5,
        "description": "How many.",
    }
    assert parameters.schema["required"] == ["city"]
    first, second = (parameters.validate('{"city": "Bern"}') for _ in range(2))
    assert first == {"limit": 5, "tags": [], "city": "Bern"}
    assert first["tags"] is not second["tags"]
    with pytest.raises(InvalidArguments, match="limit: Input should be greater than or equal"):
        parameters.validate('{"city": "Bern", "limit": 0}')


def test_an_alias_is_what_the_model_sees():
    def fn(city_name: Annotated[str, Field(alias="cityName", description="c")] = "Bern"):
        raise NotImplementedError

    parameters = parameters_of(fn)

    assert parameters.schema["properties"] == {
        "cityName": {"type": "string", "description": "c", "default": "Bern"}
    }
    assert parameters.validate('{"cityName": "Rom"}') == {"city_name": "Rom"}
    assert parameters.validate("{}") == {"city_name": "Bern"}


def test_a_parameter_without_annotation_is_what_its_default_is():
    def fn(a, b=5, c="x", d=None, e=[]):  # noqa: B006
        raise NotImplementedError

    parameters = parameters_of(fn)

    assert parameters.schema["properties"] == {
        "a": {},
        "b": {"type": "integer", "default": 5},
        "c": {"type": "string", "default": "x"},
        "d": {"default": None},
        "e": {"default": []},
    }
    assert parameters.schema["required"] == ["a"]
    assert parameters.validate('{"a": [1], "b": "7"}')["b"] == 7


# -- names ----------------------------------------------------------------------------------


def test_any_parameter_name_works():
    names = ["self", "cls", "ctx", "call_id", "name", "description", "model_config", "schema"]
    names += ["copy", "json", "type", "properties", "_private", "__dunder", "model_fields"]
    names += ["validate", "dict", "items", "größe", "fields"]
    scope = {}
    exec(f"def fn({', '.join(f'{name}: int' for name in names)}): pass", scope)

    parameters = parameters_of(scope["fn"])

    assert list(parameters.schema["properties"]) == names
    arguments = {name: index for index, name in enumerate(names)}
    assert parameters.validate(json.dumps(arguments)) == arguments


def test_a_name_that_is_not_a_parameter_is_refused_and_named():
    def fn(city: str, limit: int = 5):
        raise NotImplementedError

    with pytest.raises(InvalidArguments) as raised:
        parameters_of(fn).validate('{"city": "Bern", "limt": 3}')

    assert str(raised.value) == (
        "Invalid arguments: limt: Unknown parameter. Did you mean 'limit'? "
        "Parameters are: city, limit"
    )


def test_the_repr_lists_the_parameters():
    assert repr(parameters_of(weather)) == "<Parameters: city, limit>"
    assert repr(parameters_of(lambda: None)) == "<Parameters: none>"


def test_a_function_without_parameters_takes_an_empty_object():
    def fn():
        raise NotImplementedError

    assert parameters_of(fn).schema == {"type": "object", "properties": {}}


# -- annotations in text --------------------------------------------------------------------


def test_a_local_class_is_found_by_name():
    class Local(BaseModel):
        n: int

    def fn(x: Local, y: list[Local] | None = None):
        raise NotImplementedError

    assert parameters_of(fn).validate('{"x": {"n": "1"}}') == {"x": Local(n=1), "y": None}


def test_a_local_class_is_found_through_the_closure_of_a_function_from_elsewhere():
    def make():
        class Local(BaseModel):
            n: int

        def fn(x: Local):
            return Local

        return fn

    assert parameters_of(make()).validate('{"x": {"n": 1}}')["x"].n == 1


def test_a_function_may_refer_to_itself():
    @parameters_of
    def fn(n: int):
        return fn(n - 1)

    assert fn.validate('{"n": 1}') == {"n": 1}


def test_a_name_that_cannot_be_resolved_is_an_error_that_names_the_parameter():
    def fn(city: str, thing: Nothing):
        raise NotImplementedError

    with pytest.raises(ToolDefinitionError) as raised:
        parameters_of(fn)

    assert str(raised.value) == (
        "The parameter 'thing' of 'fn' is annotated with 'Nothing', which cannot be resolved: "
        "name 'Nothing' is not defined. Define or import what it names above the function, "
        "and not under TYPE_CHECKING."
    )


@pytest.mark.parametrize("annotation", ["int[", "Node.missing", "int[0]"])
def test_a_broken_annotation_is_an_error_that_names_the_parameter(annotation):
    with pytest.raises(ToolDefinitionError, match="The parameter 'x' of 'fn' is annotated with"):
        taking(annotation)


class Unknown:
    pass


@pytest.mark.parametrize("annotation", [Unknown, Mapping[str, Unknown], 5, type(len)])
def test_a_type_that_is_not_json_is_an_error_that_names_the_parameter(annotation):
    def fn(fine: int, bad):
        raise NotImplementedError

    fn.__annotations__ = {"fine": int, "bad": annotation}

    with pytest.raises(ToolDefinitionError, match=r"^The parameter 'bad' of 'fn' has a type that"):
        parameters_of(fn)


# -- injection ------------------------------------------------------------------------------


# The real one needs installed apps.
AbstractBaseUser = type("AbstractBaseUser", (), {"__module__": "django.contrib.auth.base_user"})


class User(AbstractBaseUser):
    pass


class MyContext(Context):
    __slots__ = ()


class MyRequest(HttpRequest):
    pass


@pytest.mark.parametrize(
    ("annotation", "what"),
    [
        (Context, "context"),
        ("Context", "context"),
        (MyContext, "context"),
        (Context | None, "context"),
        (Annotated[Context, "ctx"], "context"),
        (Optional[Annotated[Context, "ctx"]], "context"),
        (HttpRequest, "request"),
        (MyRequest, "request"),
        (HttpRequest | None, "request"),
        (User, "user"),
        (Optional[User], "user"),
    ],
)
def test_what_mlango_passes_in_is_not_in_the_schema(annotation, what):
    def fn(city: str, given=None):
        raise NotImplementedError

    fn.__annotations__ = {"city": str, "given": annotation}
    parameters = parameters_of(fn)

    assert parameters.injected == {"given": what}
    assert list(parameters.schema["properties"]) == ["city"]
    assert parameters.validate('{"city": "Bern"}') == {"city": "Bern"}


def test_a_parameter_named_state_is_passed_in_unless_it_is_annotated():
    def fn(state, n: int):
        raise NotImplementedError

    def annotated(state: str):
        raise NotImplementedError

    assert parameters_of(fn).injected == {"state": "state"}
    assert parameters_of(annotated).injected == {}
    assert parameters_of(annotated).validate('{"state": "open"}') == {"state": "open"}


@pytest.mark.parametrize("name", ["state", "ctx"])
@pytest.mark.parametrize("arguments", ['{{"n": 1, "{}": "evil"}}', '{{"{}": null, "n": 1}}'])
def test_the_model_may_not_set_what_mlango_passes_in(name, arguments):
    def fn(state, ctx: Context, n: int):
        raise NotImplementedError

    with pytest.raises(InvalidArguments, match=f"^Invalid arguments: {name}: Unknown parameter"):
        parameters_of(fn).validate(arguments.format(name))


# -- arguments ------------------------------------------------------------------------------


def weather(city: str, limit: int = 5):
    raise NotImplementedError


@pytest.mark.parametrize("nothing", ["", None, " ", "null", "{}", "\n", " null ", {}])
def test_no_arguments_are_an_empty_object(nothing):
    def fn(limit: int = 5):
        raise NotImplementedError

    assert parameters_of(fn).validate(nothing) == {"limit": 5}
    with pytest.raises(InvalidArguments, match=r"^Invalid arguments: city: Field required$"):
        parameters_of(weather).validate(nothing)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ('{"city": ', "not valid JSON: Expecting value (line 1, column 10)."),
        ('{"city": "a"} {"city": "b"}', "not valid JSON: Extra data (line 1, column 15)."),
        ("[1]", "a JSON object is needed, not a list."),
        (["Bern"], "a JSON object is needed, not a list."),
        ("7", "a JSON object is needed, not a number."),
        ("true", "a JSON object is needed, not a boolean."),
        ('"Bern"', "a JSON object is needed, not a string."),
        (
            '"{\\"city\\": \\"Bern\\"}"',
            (
                "a JSON object is needed, not a string. It is JSON inside a JSON string; "
                "send the object itself."
            ),
        ),
        ('{"city": "a", "city": "b"}', "the key 'city' comes twice in one object."),
        ('{"city": "a", "ci\\u0074y": "b"}', "the key 'city' comes twice in one object."),
        ('{"city" : "a:b", "city" :"c"}', "the key 'city' comes twice in one object."),
        ('{"city": "a", "limit": NaN}', "NaN is not JSON; use null."),
        ('{"city": "a", "limit": -Infinity}', "-Infinity is not JSON; use null."),
        (
            f'{{"city": "a", "limit": {"9" * 5000}}}',
            "a number has 5000 digits, which is too many.",
        ),
        (f'{{"city": {"[" * 5000}{"]" * 5000}}}', "nested deeper than 100 levels."),
        (
            '{"city": [], "limit": "x"}',
            (
                "city: Input should be a valid string; limit: Input should be a valid integer, "
                "unable to parse string as an integer"
            ),
        ),
    ],
)
def test_bad_arguments_are_explained_to_the_model(arguments, message):
    with pytest.raises(InvalidArguments) as raised:
        parameters_of(weather).validate(arguments)

    assert str(raised.value) == f"Invalid arguments: {message}"
    assert raised.value.__suppress_context__ or raised.value.__context__ is None


def test_an_error_names_the_path():
    def fn(tree: Node):
        raise NotImplementedError

    with pytest.raises(InvalidArguments) as raised:
        parameters_of(fn).validate('{"tree": {"name": "a", "children": [{"name": "b"}, {}]}}')

    assert str(raised.value) == "Invalid arguments: tree.children.1.name: Field required"


def test_only_the_first_errors_are_told():
    with pytest.raises(InvalidArguments, match=r"; and 490 more$"):
        taking(list[int]).validate({"x": ["a"] * 500})


def test_a_constant_that_is_not_json_is_refused_in_any_value():
    with pytest.raises(InvalidArguments, match="NaN is not JSON"):
        taking(Any).validate('{"x": NaN}')
    with pytest.raises(InvalidArguments, match="Infinity is not JSON"):
        taking(Any).validate('{"x": -Infinity}')


def test_a_key_twice_in_a_nested_object_is_refused():
    with pytest.raises(InvalidArguments, match="the key 'name' comes twice"):
        taking(Node).validate('{"x": {"name": "a", "name": "b"}}')


def test_text_that_looks_like_json_keys_is_only_text():
    text = 'say "a": NaN, \\u0041 and {"b": Infinity}'

    assert taking(str).validate(json.dumps({"x": text})) == {"x": text}
    assert taking(str).validate('{"x": "http://example.com:80/"}') == {
        "x": "http://example.com:80/"
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r'{"x": "\ud83c\udf78"}', "🍸"),
        (r'{"x": "\ud800"}', "\ufffd"),
        ('{"x": "\udc97"}', "\ufffd"),
        (r'{"x": "a\u0000b"}', "a␀b"),
        ('{"x": "👩‍👩‍👧 \u202e中文"}', "👩‍👩‍👧 \u202e中文"),
        ({"x": "\ud83c\udf78\0"}, "🍸␀"),
    ],
)
def test_text_in_arguments_is_cleaned(text, value):
    assert taking(str).validate(text) == {"x": value}


def test_a_large_integer_is_exact():
    assert taking(int).validate(f'{{"x": {2**80}}}') == {"x": 2**80}
    assert taking(int).validate(f'{{"x": {2**80}, "x": 1}}'.replace(', "x": 1', "")) == {
        "x": 2**80
    }
    assert taking(int).validate({"x": 2**80}) == {"x": 2**80}


def test_typed_values_may_be_given_as_a_dict():
    parameters = taking(dt.date)

    assert parameters.validate({"x": dt.date(2024, 1, 2)}) == {"x": dt.date(2024, 1, 2)}


def test_defaults_are_not_mixed_into_what_was_given():
    arguments = {"city": "Bern"}

    parameters_of(weather).validate(arguments)

    assert arguments == {"city": "Bern"}


json_value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(), max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)
WEATHER = parameters_of(weather)
ANYTHING = taking(Any)


@given(st.text(st.characters(), max_size=40) | json_value.map(json.dumps) | json_value)
def test_whatever_the_model_sends_is_valid_or_explained(arguments):
    for parameters in (WEATHER, ANYTHING):
        with suppress(InvalidArguments):
            assert set(parameters.validate(arguments)) <= {"x", "city", "limit"}


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), st.integers())
def test_good_arguments_arrive_as_they_were_sent(city, limit):
    sent = {"city": city, "limit": limit}

    for ensure_ascii in (True, False):
        assert WEATHER.validate(json.dumps(sent, ensure_ascii=ensure_ascii)) == sent


# -- strict ---------------------------------------------------------------------------------


def strictly(fn):
    return parameters_of(fn, strict=True)


def objects_in(schema):
    """Yield every object schema in a schema."""
    if isinstance(schema, dict):
        if schema.get("type") == "object":
            yield schema
        for inner in schema.values():
            yield from objects_in(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from objects_in(inner)


def test_a_strict_schema_closes_every_object_and_requires_every_property():
    def fn(city: str, options: Options, colour: Colour = Colour.RED, tree: Node | None = None):
        raise NotImplementedError

    parameters = strictly(fn)

    assert parameters.is_strict
    assert parameters.warnings == ()
    found = list(objects_in(parameters.schema))
    assert len(found) == 3
    for schema in found:
        assert schema["additionalProperties"] is False
        assert schema["required"] == list(schema["properties"])
    assert "default" not in json.dumps(parameters.schema)


def test_an_optional_parameter_is_required_and_nullable_under_strict():
    def fn(a: str, b: int | None = None, c: int = 5, d: Annotated[int, "how many"] = 1):
        raise NotImplementedError

    parameters = strictly(fn)

    nullable = {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    assert parameters.schema["required"] == ["a", "b", "c", "d"]
    assert parameters.schema["properties"] == {
        "a": {"type": "string"},
        "b": nullable,
        "c": nullable,
        "d": nullable | {"description": "how many"},
    }


@pytest.mark.parametrize(
    "arguments",
    [
        '{"a": "x", "b": null, "c": null, "d": null}',
        '{"a": "x"}',
        '{"a": "x", "d": null}',
        {"a": "x", "c": None},
    ],
)
def test_null_means_the_default_under_strict(arguments):
    def fn(a: str, b: int | None = None, c: int = 5, d: int | None = 7):
        raise NotImplementedError

    assert strictly(fn).validate(arguments) == {"a": "x", "b": None, "c": 5, "d": 7}


def test_null_means_the_default_in_nested_values_under_strict():
    def fn(options: Options, more: list[Options] | None = None):
        raise NotImplementedError

    text = (
        '{"options": {"colour": null, "limit": null, "note": null},'
        ' "more": [{"colour": "blue", "limit": null, "note": "n"}]}'
    )

    assert strictly(fn).validate(text) == {
        "options": Options(),
        "more": [Options(colour=Colour.BLUE, note="n")],
    }


def test_null_for_a_required_parameter_is_refused_under_strict():
    with pytest.raises(InvalidArguments, match="x: Input should be a valid integer"):
        taking(int, strict=True).validate('{"x": null}')


@pytest.mark.parametrize(
    ("annotation", "text"), [(int, '"42"'), (str, "1"), (bool, '"yes"'), (list[int], '["1"]')]
)
def test_nothing_is_coerced_under_strict(annotation, text):
    with pytest.raises(InvalidArguments, match="x"):
        taking(annotation, strict=True).validate(f'{{"x": {text}}}')


def test_json_has_typed_values_under_strict():
    def fn(day: dt.date, colour: Colour, ids: set[int], key: uuid.UUID):
        raise NotImplementedError

    text = f'{{"day": "2024-01-02", "colour": "red", "ids": [1], "key": "{ID}"}}'

    assert strictly(fn).validate(text) == {
        "day": dt.date(2024, 1, 2),
        "colour": Colour.RED,
        "ids": {1},
        "key": ID,
    }


@pytest.mark.parametrize(
    ("annotation", "reason"),
    [
        (dict, "it takes an object with any keys"),
        (dict[str, int], "it takes an object with any keys"),
        (Any, "it takes any value somewhere"),
        (list, "it takes any value somewhere"),
        (list[dict[str, Any]], "it takes"),
        (tuple[int, str], "it uses 'prefixItems'"),
    ],
)
def test_an_open_schema_falls_back_with_a_warning(annotation, reason):
    parameters = taking(annotation, strict=True)

    assert not parameters.is_strict
    (warning,) = parameters.warnings
    assert warning.startswith(f"The schema cannot be strict: {reason}")
    assert parameters.schema == taking(annotation).schema


def test_strict_keeps_only_what_strict_mode_reads():
    def fn(
        code: Annotated[str, Field(min_length=2, pattern="^a", description="Code.")],
        amount: Decimal,
        pet: Annotated[Cat | Dog, Field(discriminator="kind")],
        place: Annotated[Place, "Where."],
        path: pathlib.Path,
        day: dt.date,
        ids: set[int],
    ):
        raise NotImplementedError

    properties = strictly(fn).schema["properties"]

    assert properties["code"] == {"type": "string", "pattern": "^a", "description": "Code."}
    assert properties["amount"] == {"anyOf": [{"type": "number"}, {"type": "string"}]}
    assert properties["pet"] == {"anyOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}]}
    assert properties["place"] == {"anyOf": [{"$ref": "#/$defs/Place"}], "description": "Where."}
    assert properties["path"] == {"type": "string"}
    assert properties["day"] == {"type": "string", "format": "date"}
    assert properties["ids"] == {"type": "array", "items": {"type": "integer"}}


# -- params_model ---------------------------------------------------------------------------


def from_model(model, fn, **options):
    return Parameters.from_model(model, read(fn), **options)


def test_a_model_gives_its_fields_as_keywords():
    def fn(colour, limit, note, ctx: Context):
        raise NotImplementedError

    parameters = from_model(Options, fn)

    assert list(parameters.schema["properties"]) == ["colour", "limit", "note"]
    assert "additionalProperties" not in parameters.schema
    assert parameters.injected == {"ctx": "context"}
    assert parameters.validate('{"colour": "blue", "limit": "7"}') == {
        "colour": Colour.BLUE,
        "limit": 7,
        "note": None,
    }


def test_a_model_may_be_handed_over_whole():
    def fn(params: Options):
        raise NotImplementedError

    validated = from_model(Options, fn).validate('{"limit": 1}')

    assert isinstance(validated["params"], Options)
    assert validated["params"].limit == 1


def test_a_recursive_model_has_an_object_at_the_root():
    def fn(name, children, weight):
        raise NotImplementedError

    parameters = from_model(Node, fn)

    assert parameters.schema["type"] == "object"
    assert parameters.schema["description"] == "A node of a tree."
    assert "$ref" not in parameters.schema
    validated = parameters.validate('{"name": "a", "children": [{"name": "b"}]}')
    assert validated["children"] == [Node(name="b")]


def test_a_recursive_model_that_says_what_it_takes_has_an_object_at_the_root():
    class Tree(BaseModel):
        model_config = ConfigDict(extra="ignore")
        children: list[Tree] = []

    schema = from_model(Tree, lambda children: None).schema

    assert schema["properties"]["children"]["items"] == {"$ref": "#/$defs/Tree"}
    assert schema["$defs"]["Tree"]["properties"] == schema["properties"]


def test_a_model_refuses_unknown_arguments_unless_it_says_otherwise():
    class Loose(BaseModel):
        model_config = ConfigDict(extra="allow")
        a: int

    def fn(a, **rest):
        raise NotImplementedError

    def closed(colour, limit, note):
        raise NotImplementedError

    assert from_model(Loose, fn).validate('{"a": 1, "b": 2}') == {"a": 1, "b": 2}
    with pytest.raises(InvalidArguments, match="zzz: Unknown parameter"):
        from_model(Options, closed).validate('{"zzz": 1}')


def test_a_models_aliases_are_for_the_wire():
    class Query(BaseModel):
        city_name: str = Field(alias="cityName")

    def fn(city_name):
        raise NotImplementedError

    parameters = from_model(Query, fn)

    assert list(parameters.schema["properties"]) == ["cityName"]
    assert parameters.validate('{"cityName": "Bern"}') == {"city_name": "Bern"}


@pytest.mark.parametrize("arguments", ["[1]", '"x"', "1"])
def test_a_model_takes_an_object_only(arguments):
    def fn(params: Options):
        raise NotImplementedError

    with pytest.raises(InvalidArguments, match="a JSON object is needed"):
        from_model(Options, fn).validate(arguments)


def test_a_model_that_does_not_fit_is_refused():
    def fn(colour, limit):
        raise NotImplementedError

    with pytest.raises(ToolDefinitionError, match="'fn' has no parameter 'note'"):
        from_model(Options, fn)
    with pytest.raises(ToolDefinitionError, match="with fields, not <class 'dict'>"):
        from_model(dict, fn)
    with pytest.raises(ToolDefinitionError, match="must be a pydantic model with fields"):
        from_model(RootModel[list[int]], lambda params: None)


def test_a_model_can_be_strict():
    def fn(colour, limit, note):
        raise NotImplementedError

    parameters = from_model(Options, fn, strict=True)

    assert parameters.is_strict
    assert parameters.validate('{"limit": null, "colour": "red", "note": null}')["limit"] == 5
    with pytest.raises(InvalidArguments, match="limit: Input should be a valid integer"):
        parameters.validate('{"limit": "7"}')


# -- explicit JSON Schema -------------------------------------------------------------------

SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 2},
        "limit": {"type": "integer", "default": 5},
        "where": {"$ref": "#/$defs/Where"},
    },
    "required": ["city"],
    "$defs": {"Where": {"type": "object", "properties": {"zip": {"type": "integer"}}}},
}


def from_schema(schema, fn, **options):
    return Parameters.from_schema(schema, read(fn), **options)


def find(city, limit=3, where=None):
    raise NotImplementedError


def test_an_explicit_schema_is_shown_as_it_is():
    parameters = from_schema(SCHEMA, find)

    assert parameters.schema == SCHEMA
    assert parameters.schema is not SCHEMA


def test_an_explicit_schema_checks_and_does_not_coerce():
    parameters = from_schema(SCHEMA, find)

    assert parameters.validate('{"city": "Bern", "where": {"zip": 1}}') == {
        "city": "Bern",
        "limit": 3,
        "where": {"zip": 1},
    }
    with pytest.raises(InvalidArguments) as raised:
        parameters.validate('{"limit": "42", "where": {"zip": "x"}, "zzz": 1}')
    assert str(raised.value) == (
        "Invalid arguments: zzz: Unknown parameter. Parameters are: city, limit, where; "
        "city: Field required; limit: '42' is not of type 'integer'; "
        "where.zip: 'x' is not of type 'integer'"
    )


def test_a_long_explanation_is_cut():
    schema = {"properties": {"city": {"enum": ["Bern"]}}, "required": ["city"]}

    with pytest.raises(InvalidArguments) as raised:
        from_schema(schema, find).validate({"city": "x" * 10_000})

    assert str(raised.value).endswith("xxx…")
    assert len(str(raised.value)) < 400


def test_the_default_of_a_schema_is_applied_where_the_function_has_none():
    def fn(city, limit):
        raise NotImplementedError

    schema = {"properties": {"city": {"type": "string"}, "limit": {"default": 5}}}
    parameters = from_schema(schema, fn)

    assert parameters.schema["type"] == "object"
    assert parameters.validate('{"city": "Bern"}') == {"city": "Bern", "limit": 5}
    with pytest.raises(InvalidArguments, match="city: Field required"):
        parameters.validate("{}")


def test_an_explicit_schema_lets_a_function_take_any_keyword():
    def fn(ctx: Context, *args, **rest):
        raise NotImplementedError

    parameters = from_schema({"type": "object", "properties": {"a": {}}}, fn)

    assert parameters.validate('{"a": 1, "b": 2}') == {"a": 1, "b": 2}
    with pytest.raises(InvalidArguments, match="ctx: Unknown parameter"):
        parameters.validate('{"ctx": 1}')


def test_only_what_is_missing_is_required():
    schema = {"properties": {"city": {}, "limit": {}}, "required": ["city", "limit"]}

    with pytest.raises(InvalidArguments) as raised:
        from_schema(schema, find).validate('{"city": "Bern"}')

    assert str(raised.value) == "Invalid arguments: limit: Field required"


def test_an_explicit_schema_may_close_the_object_itself():
    def fn(**rest):
        raise NotImplementedError

    closed = {"type": "object", "properties": {"a": {}}, "additionalProperties": False}

    with pytest.raises(InvalidArguments, match=r"b: Unknown parameter\. Parameters are: a$"):
        from_schema(closed, fn).validate('{"a": 1, "b": 1}')


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"properties": {"zzz": {}}}, "'find' has no parameter 'zzz', which its schema describes"),
        ({"properties": {"limit": {}}}, "'find' needs 'city', which its schema does not describe"),
        ({"type": "array"}, "parameters of 'find' must describe an object, not 'array'"),
        ([], r"parameters of 'find' must be a JSON Schema as a dict, not \[\]"),
        (
            {"properties": {"city": {"type": "txt"}}},
            "parameters of 'find' are not a JSON Schema: properties.city.type: 'txt' is not",
        ),
        (
            {"properties": {"city": {"$ref": "https://example.com/s.json"}}},
            "refer to 'https://example.com/s.json'. Nothing is fetched",
        ),
        (
            {"properties": {"city": {"$dynamicRef": "other.json#node"}}},
            "refer to 'other.json#node'. Nothing is fetched",
        ),
        (
            {"properties": {"city": {"$ref": "#/$defs/None"}}},
            "The schema refers to '#/\\$defs/None', which is not in it",
        ),
    ],
)
def test_an_explicit_schema_that_cannot_work_is_refused(schema, message):
    with pytest.raises(ToolDefinitionError, match=message):
        from_schema(schema, find)


def test_an_explicit_schema_may_not_describe_what_mlango_passes_in():
    def fn(city, state):
        raise NotImplementedError

    with pytest.raises(ToolDefinitionError, match="'state' of 'fn' is passed in by mlango"):
        from_schema({"properties": {"city": {}, "state": {}}}, fn)


@pytest.mark.parametrize("arguments", ['{"city": ', "[1]", '{"city": "aa", "city": "bb"}'])
def test_broken_arguments_are_refused_under_an_explicit_schema(arguments):
    with pytest.raises(InvalidArguments, match=r"^Invalid arguments: "):
        from_schema(SCHEMA, find).validate(arguments)


def test_null_means_the_default_under_a_strict_explicit_schema():
    schema = {
        "properties": {"city": {"type": "string"}, "limit": {"type": "integer"}},
        "required": ["city"],
    }

    def fn(city, limit=3):
        raise NotImplementedError

    parameters = from_schema(schema, fn, strict=True)

    assert parameters.is_strict
    assert parameters.schema["required"] == ["city", "limit"]
    assert parameters.validate('{"city": "Bern", "limit": null}') == {"city": "Bern", "limit": 3}


# -- signatures -----------------------------------------------------------------------------


def test_parameters_that_say_nothing_are_refused():
    def args(*args, a: int):
        raise NotImplementedError

    def kwargs(a: int, **options):
        raise NotImplementedError

    with pytest.raises(ToolDefinitionError, match=r"'args' takes \*args, which says nothing"):
        parameters_of(args)
    with pytest.raises(ToolDefinitionError, match=r"'kwargs' takes \*\*options, which says"):
        parameters_of(kwargs)


def test_positional_only_parameters_are_refused():
    def fn(a: int, /, b: int):
        raise NotImplementedError

    with pytest.raises(ToolDefinitionError, match="'a' of 'fn' is positional-only"):
        read(fn)


def test_keyword_only_parameters_work():
    def fn(*, a: int, b: int = 2):
        raise NotImplementedError

    assert parameters_of(fn).validate('{"a": 1}') == {"a": 1, "b": 2}


@pytest.mark.parametrize("fn", [dict.fromkeys, print, min])
def test_a_builtin_works_or_is_refused_clearly(fn):
    with pytest.raises(ToolDefinitionError, match=f"{fn.__name__!r}"):
        parameters_of(fn)


def test_what_a_partial_has_set_is_out_of_the_models_hands():
    def fn(key: str, city: str, limit: int = 5):
        raise NotImplementedError

    parameters = parameters_of(functools.partial(functools.partial(fn, "secret"), limit=3))

    assert parameters.schema["properties"] == {"city": {"type": "string"}}
    with pytest.raises(InvalidArguments, match="limit: Unknown parameter"):
        parameters.validate('{"city": "Bern", "limit": 9}')


# -- dialects -------------------------------------------------------------------------------


def nested(a: Place, b: Place | None = None, n: int | None = None, c: Colour = Colour.RED):
    raise NotImplementedError


def test_the_full_schema_is_for_openai():
    schema = parameters_of(nested).schema

    assert adapt_schema(schema, "openai") is schema


def test_gemini_gets_no_references_and_no_null_type():
    schema = parameters_of(nested).schema
    before = json.dumps(schema)

    adapted = adapt_schema(schema, "gemini")

    place = {
        "type": "object",
        "properties": {"city": {"type": "string"}, "zip": {"type": "integer"}},
        "required": ["city"],
    }
    assert adapted == {
        "type": "object",
        "properties": {
            "a": place,
            "b": place,
            "n": {"type": "integer"},
            "c": {"type": "string", "enum": ["red", "blue"]},
        },
        "required": ["a"],
    }
    assert json.dumps(schema) == before


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (
            {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": 5, "title": "N"},
            {"type": "integer", "nullable": True},
        ),
        (
            {"anyOf": [{"type": "integer"}, {"type": "string"}, {"type": "null"}]},
            {"anyOf": [{"type": "integer"}, {"type": "string"}], "nullable": True},
        ),
        ({"type": ["string", "null"]}, {"type": "string", "nullable": True}),
        (
            {"type": ["string", "integer"]},
            {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        ),
        ({"enum": ["a", None]}, {"type": "string", "enum": ["a"], "nullable": True}),
        ({"const": "a"}, {"type": "string", "enum": ["a"]}),
        (
            {"type": "integer", "enum": [1, 2], "description": "Level."},
            {"type": "integer", "description": "Level. One of: 1, 2."},
        ),
        ({"enum": ["a", 1]}, {"type": "string", "description": "One of: 'a', 1."}),
        (
            {"allOf": [{"type": "string", "minLength": 2}], "description": "d"},
            {"type": "string", "description": "d", "minLength": 2},
        ),
        (
            {
                "allOf": [
                    {"type": "object", "properties": {"a": {"type": "string"}}},
                    {"properties": {"b": {"type": "string"}}, "required": ["b"]},
                ]
            },
            {
                "type": "object",
                "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
                "required": ["b"],
            },
        ),
        (
            {"oneOf": [{"type": "string"}, {"type": "integer"}]},
            {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        ),
        (
            {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]},
            {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "string"}]}},
        ),
        (
            {"type": "array", "prefixItems": [{"type": "integer"}] * 2, "items": False},
            {"type": "array", "items": {"type": "integer"}},
        ),
        ({"type": "array", "items": {}}, {"type": "array", "items": {"type": "string"}}),
        ({"type": "array", "items": True}, {"type": "array", "items": {"type": "string"}}),
        (
            {"required": ["a"], "allOf": [{"type": "object", "required": ["b", "a"]}]},
            {"type": "object", "required": ["b", "a"]},
        ),
        ({"type": "string", "format": "uuid"}, {"type": "string"}),
        ({"type": "string", "format": "date-time"}, {"type": "string", "format": "date-time"}),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, {"type": "object"}),
        ({"type": "object", "properties": {}}, {"type": "object"}),
        ({"$ref": "#/properties/y", "description": "d"}, {"type": "boolean", "description": "d"}),
    ],
)
def test_gemini_gets_what_it_reads(schema, expected):
    root = {"type": "object", "properties": {"x": schema, "y": {"type": "boolean"}}}

    assert adapt_schema(root, "gemini")["properties"]["x"] == expected


def test_a_schema_that_nests_without_end_is_an_error_for_gemini_that_names_the_type():
    with pytest.raises(ToolDefinitionError, match="refers to itself through 'Node'"):
        adapt_schema(taking(Node).schema, "gemini")


def test_a_type_that_is_used_twice_is_no_recursion():
    assert adapt_schema(taking(tuple[Place, Place]).schema, "gemini")


def test_a_schema_can_be_made_strict_or_not():
    assert adapt_schema(taking(int, 5).schema, "strict")["required"] == ["x"]
    with pytest.raises(NotStrict, match="it takes an object with any keys"):
        adapt_schema(taking(dict).schema, "strict")


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "array"}, "it takes a list of anything"),
        ({"allOf": [{"type": "string"}]}, "it uses 'allOf'"),
        ({"type": "object"}, "it takes an object with any keys"),
    ],
)
def test_what_strict_mode_cannot_say_is_named(schema, reason):
    with pytest.raises(NotStrict, match=reason):
        adapt_schema({"type": "object", "properties": {"x": schema}}, "strict")


def test_strict_mode_reads_no_look_around():
    schema = {"type": "object", "properties": {"x": {"type": "string", "pattern": "^(?!a)"}}}

    adapted = adapt_schema(schema | {"required": ["x"]}, "strict")

    assert adapted["properties"] == {"x": {"type": "string"}}


@pytest.mark.parametrize(
    "schema", [{"enum": ["a", None]}, {"type": ["string", "null"]}, {"const": 1}]
)
def test_strict_mode_adds_null_where_it_is_not_yet(schema):
    adapted = adapt_schema({"type": "object", "properties": {"x": schema}}, "strict")

    expected = {"anyOf": [schema, {"type": "null"}]} if "const" in schema else schema
    assert adapted["properties"] == {"x": expected}


def test_an_unknown_dialect_is_refused_with_the_list():
    with pytest.raises(Misused) as raised:
        adapt_schema({}, "gemni")

    assert str(raised.value) == (
        "There is no schema dialect 'gemni'. Did you mean 'gemini'? "
        "Dialects are: openai, gemini, strict."
    )


def test_compact_schemas_keep_what_only_looks_like_an_annotation():
    schema = {
        "type": "object",
        "description": "d",
        "properties": {
            "description": {"type": "string", "description": "d"},
            "title": {"type": "string", "title": "t", "examples": ["e"]},
            "choice": {"enum": ["description"], "default": {"description": "kept"}},
        },
        "required": ["description", "title"],
        "$defs": {"title": {"type": "integer", "title": "t"}},
    }

    assert compact_schema(schema) == {
        "type": "object",
        "properties": {
            "description": {"type": "string"},
            "title": {"type": "string"},
            "choice": {"enum": ["description"], "default": {"description": "kept"}},
        },
        "required": ["description", "title"],
        "$defs": {"title": {"type": "integer"}},
    }
    assert adapt_schema(schema, "openai", compact=True) == compact_schema(schema)
