"""Schemas and checks from annotations and models, through pydantic's public interface.

pydantic takes long to import, so it is imported in functions: only declaring a tool needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Optional, Union, get_args, get_origin

from mlango.core.dialects import Schema, is_null, references, resolve, rewrite
from mlango.core.signature import EMPTY, Argument
from mlango.core.values import to_json
from mlango.exceptions import ToolDefinitionError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Problem = tuple[tuple[Any, ...], str]
Check = Callable[[str], dict[str, Any]]
UNKNOWN = "Unknown parameter"


class Field:
    """A parameter on its way from annotation to property.

    ``default`` is EMPTY where there is none, or where pydantic fills it in; ``declared`` is
    EMPTY also where the annotation alone makes it None.
    """

    __slots__ = ("annotation", "declared", "default", "description", "name", "wire_name")

    def __init__(self, argument: Argument) -> None:
        from pydantic.fields import FieldInfo
        from typing_extensions import NotRequired  # noqa: UP035 - goes with its TypedDict

        annotation, default = _guessed(argument), argument.default
        if isinstance(default, FieldInfo):
            annotation, default = Annotated[annotation, default], EMPTY
        metadata = getattr(annotation, "__metadata__", ())
        infos = [entry for entry in metadata if isinstance(entry, FieldInfo)]
        self.declared = default
        if default is EMPTY and all(info.is_required() for info in infos):
            default = None if _allows_none(annotation) else EMPTY
        elif default is None and not _allows_none(annotation):
            annotation = Optional[annotation]  # noqa: UP045 - it need not be a class
        optional = default is not EMPTY or any(not info.is_required() for info in infos)
        self.name = argument.name
        self.wire_name = _alias(infos) or argument.name
        self.default = default
        self.description = _described(metadata) or argument.description
        self.annotation = NotRequired[annotation] if optional else annotation

    def finish(self, schema: Schema) -> Schema:
        """Return the property's schema with what pydantic did not know about it."""
        if self.default is None:
            schema = _without_null(schema)
        if self.description:
            schema = schema | {"description": self.description}
        if self.declared is EMPTY:
            return schema
        notes: list[str] = []
        default = to_json(self.declared, notes)
        return schema if notes else schema | {"default": default}


def _guessed(argument: Argument) -> Any:
    """Return the annotation; where there is none, the type of a plain default."""
    if argument.annotation is not EMPTY:
        return argument.annotation
    guess = type(argument.default)
    return guess if guess in (str, int, float, bool) else Any


def _allows_none(annotation: Any) -> bool:
    origin = get_origin(annotation)
    if origin is Annotated:
        return _allows_none(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return any(_allows_none(inner) for inner in get_args(annotation))
    return annotation is None or annotation is NoneType


def _alias(infos: list[Any]) -> str:
    aliases = [info.validation_alias or info.alias for info in infos]
    return next((alias for alias in reversed(aliases) if isinstance(alias, str)), "")


def _described(metadata: tuple[Any, ...]) -> str:
    """Return the description in ``Annotated``: of a Field, a Doc, or a plain string."""
    for entry in metadata:
        text = entry if isinstance(entry, str) else getattr(entry, "description", None)
        text = text or getattr(entry, "documentation", None)
        if isinstance(text, str) and text:
            return text
    return ""


def _without_null(schema: Schema) -> Schema:
    """Return the schema of ``X | None`` as that of ``X``: leaving it out says the same."""
    branches = schema.get("anyOf", [])
    kept = [branch for branch in branches if not is_null(branch)]
    if len(kept) == len(branches):
        return schema
    rest = {keyword: value for keyword, value in schema.items() if keyword != "anyOf"}
    return kept[0] | rest if len(kept) == 1 else {"anyOf": kept} | rest


def infer(fields: list[Field], tool: str, *, strict: bool) -> tuple[Schema, Check]:
    """Return the schema and the check of a function's parameters."""
    adapter, schema = _built({field.name: field.annotation for field in fields}, tool)
    schema.pop("additionalProperties", None)
    properties = schema["properties"]
    for field in fields:
        properties[field.wire_name] = field.finish(properties[field.wire_name])
    return schema, _json_check(adapter.validator, strict=strict)


def _built(fields: dict[str, Any], tool: str) -> tuple[TypeAdapter[Any], Schema]:
    adapter, schema, error = _attempt(fields)
    if adapter is not None:
        return adapter, schema
    guilty = [name for name, field in fields.items() if _attempt({name: field})[2]]
    named = f"The parameter {guilty[0]!r} of {tool!r}" if guilty else f"{tool!r}"
    raise ToolDefinitionError(
        f"{named} has a type that cannot be written as JSON Schema: {_first_sentence(error)} "
        f"Use a type that pydantic can read from JSON, or describe it with parameters=."
    ) from error


def _attempt(
    fields: dict[str, Any],
) -> tuple[TypeAdapter[Any] | None, Schema, Exception | None]:
    from pydantic import ConfigDict, PydanticUserError, TypeAdapter, with_config
    from pydantic_core import SchemaError
    from typing_extensions import TypedDict

    try:
        # A TypedDict, not a model: any parameter name works, and out comes a dict.
        arguments: Any = TypedDict("Arguments", fields)  # type: ignore[misc]
        closed = with_config(ConfigDict(extra="forbid", allow_inf_nan=False))(arguments)
        adapter = TypeAdapter(closed)
        return adapter, tidy(adapter.json_schema()), None
    except (PydanticUserError, SchemaError, TypeError, ValueError, NameError) as error:
        return None, {}, error


def _first_sentence(error: Any) -> str:
    return str(error).strip().split("\n")[0].split(". ")[0].rstrip(".") + "."


def tidy(schema: Schema) -> Schema:
    """Return pydantic's schema without titles, its root an object, its enums in place."""
    schema = rewrite(schema, _plain)
    definitions = schema.get("$defs", {})
    if "$ref" in schema:
        schema = resolve(schema, schema["$ref"]) | {"$defs": definitions}
    schema = rewrite(schema, lambda node: _enum_in_place(node, definitions))
    used = set(references(schema))
    kept = {name: s for name, s in definitions.items() if f"#/$defs/{name}" in used}
    bare: Schema = {"type": "object", "properties": {}}
    bare |= {keyword: value for keyword, value in schema.items() if keyword != "$defs"}
    if kept:
        bare["$defs"] = {name: schema["$defs"][name] for name in kept}
    return bare


def _plain(node: Schema) -> Schema:
    """Return a schema without its title, and a constant as an enum of one."""
    plain = {keyword: value for keyword, value in node.items() if keyword != "title"}
    if "const" in plain:
        plain["enum"] = [plain.pop("const")]
    return plain


def _enum_in_place(node: Schema, definitions: Schema) -> Schema:
    definition: Schema = definitions.get(str(node.get("$ref", "")).removeprefix("#/$defs/"), {})
    if "enum" not in definition:
        return node
    return definition | {keyword: value for keyword, value in node.items() if keyword != "$ref"}


def _json_check(validator: Any, *, strict: bool) -> Any:
    return partial(validator.validate_json, strict=True) if strict else validator.validate_json


def infer_model(model: Any, whole: str, *, strict: bool) -> tuple[Schema, Check]:
    """Return the schema and the check of a pydantic model.

    The check returns its fields, or the model itself under the name ``whole``.
    """
    from pydantic import create_model

    if "extra" not in model.model_config:
        # Silence about an argument that does not exist would hide a model's mistake.
        model = create_model(
            model.__name__,
            __base__=model,
            __doc__=model.__doc__,
            __module__=model.__module__,
            __cls_kwargs__={"extra": "forbid"},
        )
    schema = tidy(model.model_json_schema())
    schema.pop("additionalProperties", None)
    load = _json_check(model.__pydantic_validator__, strict=strict)
    return schema, partial(_whole, load, whole) if whole else partial(_fields, load)


def _whole(load: Callable[[str], Any], name: str, text: str) -> dict[str, Any]:
    return {name: load(text)}


def _fields(load: Callable[[str], Any], text: str) -> dict[str, Any]:
    value = load(text)
    return {**vars(value), **(value.model_extra or {})}


def problems(error: Any) -> Iterator[Problem]:
    """Yield what pydantic found wrong, as paths and texts."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    for entry in found:
        unknown = entry["type"] == "extra_forbidden"
        yield entry["loc"], UNKNOWN if unknown else entry["msg"]
