"""Parameters: the JSON Schema of a tool's arguments, and what checks them.

They come from a function's signature, from a pydantic model, or from a JSON Schema. All of
it is built when the tool is declared; a call then costs one pass over the JSON text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from mlango.core.dialects import (
    NotStrict,
    Schema,
    adapt_schema,
    compact_schema,
    references,
    resolve,
    strict_schema,
    without_nulls,
)
from mlango.core.inference import UNKNOWN, Check, Field, Problem, infer, infer_model, problems
from mlango.core.lookups import Reference
from mlango.core.signature import EMPTY, Signature
from mlango.core.values import clean, clean_json, dumps, parse_json
from mlango.exceptions import InvalidArguments, ToolDefinitionError, did_you_mean

__all__ = ["Parameters", "adapt_schema", "compact_schema"]

MAX_PROBLEMS = 10
MAX_PROBLEM_CHARS = 300
_KEYS = re.compile(r'"\s*:').findall
_text_of = json.JSONEncoder(ensure_ascii=False, check_circular=False).encode


class Parameters:
    """What a tool takes. Made by ``from_signature``, ``from_model`` or ``from_schema``.

    ``schema`` is what the model is shown; ``injected`` maps the parameters that it never
    sees to what they get (``context``, ``request``, ``user``, ``state``). ``strict`` says
    that nothing is coerced, ``is_strict`` that the schema keeps the rules of strict mode;
    where it cannot, ``warnings`` say why.
    """

    __slots__ = (
        "_check",
        "_defaults",
        "_full",
        "_names",
        "_problems",
        "injected",
        "is_strict",
        "references",
        "schema",
        "strict",
        "warnings",
    )

    def __init__(
        self,
        schema: Schema,
        check: Check,
        problems: Callable[[Any], Iterator[Problem]],
        *,
        injected: Mapping[str, str] | None = None,
        references: Mapping[str, Reference] | None = None,
        defaults: Mapping[str, Any] | None = None,
        strict: bool = False,
    ) -> None:
        self._full = self.schema = schema
        self._check = check
        self._problems = problems
        self._defaults = dict(defaults or {})
        self._names = tuple(schema.get("properties", ()))
        self.injected = dict(injected or {})
        self.references = dict(references or {})
        self.strict = strict
        self.is_strict = False
        self.warnings: tuple[str, ...] = ()
        if strict:
            self._make_strict()

    def _make_strict(self) -> None:
        try:
            self.schema = strict_schema(self._full)
            self.is_strict = True
        except NotStrict as reason:
            self.warnings = (f"The schema cannot be strict: {reason}.",)

    def __repr__(self) -> str:
        return f"<Parameters: {', '.join(self._names) or 'none'}>"

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters that the model fills in."""
        return self._names

    @classmethod
    def from_signature(cls, signature: Signature, *, strict: bool = False) -> Parameters:
        """Make them from a function's annotations."""
        if signature.variadic:
            raise ToolDefinitionError(
                f"{signature.name!r} takes {' and '.join(signature.variadic)}, which says "
                f"nothing to a model. Name every parameter, or describe them with parameters=."
            )
        fields = [Field(argument) for argument in signature.arguments]
        schema, check = infer(fields, signature.name, strict=strict)
        defaults = {field.name: field.default for field in fields if field.default is not EMPTY}
        return cls(
            schema,
            check,
            problems,
            injected=signature.injected,
            references=signature.references,
            defaults=defaults,
            strict=strict,
        )

    @classmethod
    def from_model(cls, model: Any, signature: Signature, *, strict: bool = False) -> Parameters:
        """Make them from a pydantic model.

        The function gets the model's fields as keywords; if its only parameter is not one
        of the fields, it gets the whole model there.
        """
        is_model = isinstance(model, type) and hasattr(model, "model_fields")
        if not is_model or model.__pydantic_root_model__:
            raise ToolDefinitionError(
                f"params_model of {signature.name!r} must be a pydantic model with fields, "
                f"not {model!r}."
            )
        names = [argument.name for argument in signature.arguments]
        whole = names[0] if len(names) == 1 and names[0] not in model.model_fields else ""
        schema, check = infer_model(model, whole, strict=strict)
        _fit(signature, names if whole else list(model.model_fields))
        return cls(schema, check, problems, injected=signature.injected, strict=strict)

    @classmethod
    def from_schema(
        cls, schema: Mapping[str, Any], signature: Signature, *, strict: bool = False
    ) -> Parameters:
        """Make them from a JSON Schema; arguments are checked by it and never coerced."""
        own = _object_schema(schema, signature.name)
        properties = own["properties"]
        _fit(signature, list(properties))
        defaults = {n: inner["default"] for n, inner in properties.items() if "default" in inner}
        for argument in signature.arguments:
            if argument.default is not EMPTY and argument.name in properties:
                defaults[argument.name] = argument.default
        return cls(
            own,
            SchemaCheck(own, signature, defaults),
            schema_problems,
            injected=signature.injected,
            defaults=defaults,
            strict=strict,
        )

    def validate(self, arguments: str | dict[str, Any] | None) -> dict[str, Any]:
        """Return the keyword arguments for the call, typed, with defaults applied.

        ``arguments`` are JSON text or a dict; nothing, blanks and ``null`` mean no arguments.
        Raise InvalidArguments with a text for the model.
        """
        text = arguments if type(arguments) is str else _as_text(arguments)
        try:
            values = self._check(text)
        except ValueError:
            values = None
        if values is None or self._is_odd(text, values):
            values = self._check_closely(text)
        return self._defaults | values

    def _is_odd(self, text: str, values: dict[str, Any]) -> bool:
        """Return whether there may be more to find than pydantic has found.

        It takes the last of two equal keys, which show as a key too many, and constants
        that are not JSON; a model or a function may take any key.
        """
        return (
            (text.count(":") != len(values) and len(_KEYS(text)) != len(values))
            or "\\u" in text
            or "NaN" in text
            or "Infinity" in text
            or (self.strict and "null" in text)
            or (bool(self.injected) and not self.injected.keys().isdisjoint(values))
        )

    def _check_closely(self, text: str) -> dict[str, Any]:
        data = clean_json(_parse(text))
        if self.strict:
            data = without_nulls(data, self._full, self._full)
        for name in data:
            if name in self.injected:
                raise self._invalid([((name,), UNKNOWN)])
        try:
            return self._check(_text_of(data))
        except ValueError as error:
            raise self._invalid(list(self._problems(error))) from None

    def _invalid(self, found: list[Problem]) -> InvalidArguments:
        shown = [self._worded(path, text) for path, text in found[:MAX_PROBLEMS]]
        if len(found) > MAX_PROBLEMS:
            shown.append(f"and {len(found) - MAX_PROBLEMS} more")
        return InvalidArguments(f"Invalid arguments: {'; '.join(shown)}")

    def _worded(self, path: tuple[Any, ...], text: str) -> str:
        where = clean(".".join(str(part) for part in path))[:MAX_PROBLEM_CHARS]
        if text == UNKNOWN and len(path) == 1:
            known = ", ".join(self._names) or "none"
            text = f"Unknown parameter.{did_you_mean(where, self._names)} Parameters are: {known}"
        if len(text) > MAX_PROBLEM_CHARS:
            text = f"{text[:MAX_PROBLEM_CHARS]}…"
        return f"{where}: {text}" if where else text


# -- the text of a call ---------------------------------------------------------------------


def _as_text(arguments: Any) -> str:
    return "{}" if arguments is None else dumps(arguments)


def _parse(text: str) -> dict[str, Any]:
    if text.strip() in ("", "null"):
        return {}
    try:
        data = parse_json(text)
    except ValueError as error:
        raise InvalidArguments(f"Invalid arguments: {error}") from None
    if not isinstance(data, dict):
        kind = next(word for kinds, word in _JSON_TYPES if isinstance(data, kinds))
        twice = isinstance(data, str) and data.lstrip().startswith("{")
        hint = " It is JSON inside a JSON string; send the object itself." if twice else ""
        raise InvalidArguments(f"Invalid arguments: a JSON object is needed, not {kind}.{hint}")
    return data


_JSON_TYPES: tuple[tuple[Any, str], ...] = (
    (list, "a list"),
    (str, "a string"),
    (bool, "a boolean"),
    (int | float, "a number"),
)


# -- explicit JSON Schema -------------------------------------------------------------------


def _object_schema(schema: Any, tool: str) -> Schema:
    """Return a copy of a JSON Schema for an object, or raise ToolDefinitionError."""
    if not isinstance(schema, Mapping):
        raise ToolDefinitionError(
            f"parameters of {tool!r} must be a JSON Schema as a dict, not {schema!r}."
        )
    own: Schema = {"type": "object", "properties": {}} | parse_json(dumps(schema))
    if own["type"] != "object":
        raise ToolDefinitionError(
            f"parameters of {tool!r} must describe an object, not {own['type']!r}."
        )
    _validator_class(own, tool)
    for reference in references(own):
        if not reference.startswith("#"):
            raise ToolDefinitionError(
                f"parameters of {tool!r} refer to {reference!r}. Nothing is fetched; copy it "
                f"to '$defs' and refer to it there."
            )
        resolve(own, reference)
    return own


def _validator_class(schema: Schema, tool: str) -> Any:
    from jsonschema import SchemaError  # slow to import, and only explicit schemas need it
    from jsonschema.validators import Draft202012Validator, validator_for

    kind = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema)
    except SchemaError as error:
        where = ".".join(str(part) for part in error.absolute_path) or "the schema"
        raise ToolDefinitionError(
            f"parameters of {tool!r} are not a JSON Schema: {where}: {error.message:.200}."
        ) from None
    return kind


def _fit(signature: Signature, names: list[str]) -> None:
    """Raise ToolDefinitionError unless a function can take the parameters ``names``."""
    taken = [argument.name for argument in signature.arguments]
    for name in names:
        if name in signature.injected:
            raise ToolDefinitionError(
                f"The parameter {name!r} of {signature.name!r} is passed in by mlango, so the "
                f"model may not set it. Remove it from the schema, or rename it."
            )
        if name not in taken and not signature.open:
            raise ToolDefinitionError(
                f"{signature.name!r} has no parameter {name!r}, which its schema describes."
                f"{did_you_mean(name, taken)}"
            )
    for argument in signature.arguments:
        if argument.default is EMPTY and argument.name not in names:
            raise ToolDefinitionError(
                f"{signature.name!r} needs {argument.name!r}, which its schema does not "
                f"describe. Describe it, or give it a default."
            )


class SchemaProblems(ValueError):
    """What is wrong with data by its JSON Schema."""

    def __init__(self, found: list[Problem]) -> None:
        super().__init__(found)
        self.found = found


def schema_problems(error: SchemaProblems) -> Iterator[Problem]:
    """Yield what a JSON Schema's check found wrong, as paths and texts."""
    yield from error.found


class SchemaCheck:
    """Checks arguments by a JSON Schema."""

    __slots__ = ("known", "needed", "validator")

    def __init__(self, schema: Schema, signature: Signature, defaults: Iterable[str]) -> None:
        from referencing import Registry  # a part of jsonschema

        # The default registry would fetch references from the network.
        self.validator = _validator_class(schema, signature.name)(schema, registry=Registry())
        self.known = None if signature.open else set(schema["properties"])
        needed = (a.name for a in signature.arguments if a.default is EMPTY)
        self.needed = [name for name in needed if name not in defaults]

    def __call__(self, text: str) -> dict[str, Any]:
        data = parse_json(text)
        if not isinstance(data, dict):
            raise SchemaProblems([((), "a JSON object is needed")])
        found = dict.fromkeys(self._problems(data))
        if found:
            raise SchemaProblems(list(found))
        return data

    def _problems(self, data: dict[str, Any]) -> Iterator[Problem]:
        for name in data:
            if self.known is not None and name not in self.known:
                yield (name,), UNKNOWN
        for name in self.needed:
            if name not in data:
                yield (name,), "Field required"
        for error in self.validator.iter_errors(data):
            yield from _worded_as_pydantic(error)


def _worded_as_pydantic(error: Any) -> Iterator[Problem]:
    path = tuple(error.absolute_path)
    if error.validator == "required":
        for name in error.validator_value:
            if name not in error.instance:
                yield (*path, name), "Field required"
    elif error.validator != "additionalProperties" or path:
        yield path, error.message
    else:
        known = error.schema.get("properties", {})
        for name in error.instance:
            if name not in known:
                yield (name,), UNKNOWN
