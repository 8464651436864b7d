"""JSON Schemas as each family of providers reads them.

``adapt_schema`` rewrites the full schema of a tool's parameters for one of ``DIALECTS``:

* ``openai``: the full schema, as every provider with real JSON Schema reads it.
* ``strict``: OpenAI's strict mode: no open objects, every property required, nullable where
  it was optional.
* ``gemini``: the subset of OpenAPI that Gemini reads: no references, ``nullable`` instead of
  a null type.

``compact_schema`` leaves out what only describes. The argument is never changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mlango.exceptions import Misused, ToolDefinitionError, did_you_mean

__all__ = ["DIALECTS", "NotStrict", "adapt_schema", "compact_schema", "strict_schema"]

Schema = dict[str, Any]

# Where a schema holds other schemas. Whatever stands under other keywords is data: a
# property may be called "title", and an enum or a default may look like a schema.
MAPS = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas")
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
SINGLE = (
    "items",
    "additionalProperties",
    "not",
    "if",
    "then",
    "else",
    "contains",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
)
DEFINITIONS = ("$defs", "definitions")
ANNOTATIONS = ("title", "description", "examples", "example", "$comment")
NULL = {"type": "null"}


class NotStrict(ValueError):
    """A schema allows what strict mode cannot express; the text says what and where."""


def adapt_schema(schema: Schema, dialect: str, *, compact: bool = False) -> Schema:
    """Return the schema as providers of ``dialect`` read it.

    A schema that refers to itself raises ToolDefinitionError for ``gemini``; one that strict
    mode cannot express raises NotStrict for ``strict``.
    """
    try:
        adapt = _ADAPTERS[dialect]
    except KeyError:
        raise Misused(
            f"There is no schema dialect {dialect!r}.{did_you_mean(dialect, DIALECTS)} "
            f"Dialects are: {', '.join(DIALECTS)}."
        ) from None
    return adapt(compact_schema(schema) if compact else schema)


def compact_schema(schema: Schema) -> Schema:
    """Return the schema without titles, descriptions and examples."""
    return rewrite(schema, lambda node: _without(node, ANNOTATIONS))


def rewrite(schema: Schema, change: Callable[[Schema], Schema]) -> Schema:
    """Return the schema with ``change`` applied to every schema in it, inner ones first."""
    return change(_each(schema, lambda inner: rewrite(inner, change)))


def _each(schema: Schema, change: Callable[[Schema], Any]) -> Schema:
    """Return the schema with ``change`` applied to the schemas directly in it."""
    result = dict(schema)
    for keyword in result.keys() & MAPS:
        result[keyword] = {n: _changed(s, change) for n, s in result[keyword].items()}
    for keyword in result.keys() & LISTS:
        result[keyword] = [_changed(inner, change) for inner in result[keyword]]
    for keyword in result.keys() & SINGLE:
        result[keyword] = _changed(result[keyword], change)
    return result


def _changed(schema: Any, change: Callable[[Schema], Any]) -> Any:
    # True and False are schemas too.
    return change(schema) if isinstance(schema, dict) else schema


def references(schema: Schema) -> list[str]:
    """Return what the schemas in ``schema`` refer to."""
    found: list[str] = []

    def see(node: Schema) -> Schema:
        found.extend(node[keyword] for keyword in ("$ref", "$dynamicRef") if keyword in node)
        return node

    rewrite(schema, see)
    return found


def resolve(root: Schema, reference: str) -> Schema:
    """Return what a reference such as ``#/$defs/Node`` points at."""
    node: Any = root
    try:
        for part in reference.removeprefix("#").split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            node = node[int(part)] if isinstance(node, list) else node[part]
        return dict(node)
    except (LookupError, TypeError, ValueError):
        raise ToolDefinitionError(
            f"The schema refers to {reference!r}, which is not in it."
        ) from None


def is_null(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.get("type") == "null"


def allows_null(schema: Schema) -> bool:
    """Return whether a null fits; True where that cannot be seen."""
    if "anyOf" in schema:
        return any(is_null(branch) or branch == {} for branch in schema["anyOf"])
    if "enum" in schema:
        return None in schema["enum"]
    if "$ref" in schema or "const" in schema:
        return False
    types = schema.get("type")
    return types is None or types == "null" or (isinstance(types, list) and "null" in types)


def _without(schema: Schema, keywords: tuple[str, ...]) -> Schema:
    return {name: value for name, value in schema.items() if name not in keywords}


# -- strict ---------------------------------------------------------------------------------

STRICT_DROPS = (
    *("default", "title", "examples", "discriminator", "uniqueItems", "contentEncoding"),
    *("minLength", "maxLength", "minProperties", "maxProperties", "contentMediaType"),
)
STRICT_FORMATS = (
    *("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"),
)
STRICT_REFUSES = (
    *("allOf", "not", "if", "then", "else", "prefixItems", "patternProperties"),
    *("propertyNames", "dependentRequired", "dependentSchemas", "contains"),
)


def strict_schema(schema: Schema) -> Schema:
    """Return the schema for strict mode, or raise NotStrict."""
    return rewrite(schema, _strict)


def _strict(schema: Schema) -> Schema:
    for keyword in STRICT_REFUSES:
        if keyword in schema:
            raise NotStrict(f"it uses {keyword!r}")
    schema = _without(schema, STRICT_DROPS)
    if "oneOf" in schema:
        schema["anyOf"] = schema.pop("oneOf")
    if "$ref" in schema and len(schema) > 1:
        schema["anyOf"] = [{"$ref": schema.pop("$ref")}]  # nothing may stand beside a $ref
    if schema.get("format") not in STRICT_FORMATS:
        schema.pop("format", None)
    if "(?" in str(schema.get("pattern", "")):
        del schema["pattern"]  # look-around is not read
    if not any(key in schema for key in ("type", "anyOf", "$ref", "enum", "const")):
        raise NotStrict("it takes any value somewhere")
    if schema.get("type") == "array" and "items" not in schema:
        raise NotStrict("it takes a list of anything")
    return _closed(schema) if schema.get("type") == "object" else schema


def _closed(schema: Schema) -> Schema:
    """Return an object's schema with nothing open and everything required."""
    properties = schema.get("properties")
    if schema.get("additionalProperties") or properties is None:
        raise NotStrict("it takes an object with any keys")
    required = schema.get("required", ())
    closed = {
        name: inner if name in required else _nullable(inner) for name, inner in properties.items()
    }
    return schema | {
        "properties": closed,
        "required": list(closed),
        "additionalProperties": False,
    }


def _nullable(schema: Schema) -> Schema:
    if allows_null(schema):
        return schema
    kept = {key: schema[key] for key in ("description",) if key in schema}
    inner = _without(schema, tuple(kept))
    branches = inner["anyOf"] if set(inner) == {"anyOf"} else [inner]
    return {"anyOf": [*branches, NULL]} | kept


def without_nulls(value: Any, schema: Schema, root: Schema) -> Any:
    """Return data without the nulls that strict mode makes a model send for "not given".

    ``schema`` is the full schema: a null goes where a property is optional there and either
    not nullable or has another default.
    """
    if "$ref" in schema:
        schema = resolve(root, schema["$ref"])
    for branch in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        value = without_nulls(value, branch, root)
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        return [without_nulls(item, schema["items"], root) for item in value]
    properties = schema.get("properties")
    if not isinstance(value, dict) or properties is None:
        return value
    required = schema.get("required", ())
    return {
        name: without_nulls(item, properties[name], root) if name in properties else item
        for name, item in value.items()
        if item is not None or name in required or _means_null(properties.get(name, {}))
    }


def _means_null(schema: Schema) -> bool:
    return allows_null(schema) and schema.get("default") is None


# -- Gemini ---------------------------------------------------------------------------------

GEMINI_KEEPS = (
    *("type", "format", "description", "nullable", "enum", "items", "properties", "required"),
    *("anyOf", "minimum", "maximum", "minItems", "maxItems", "minLength", "maxLength"),
    *("minProperties", "maxProperties", "pattern"),
)
GEMINI_FORMATS = ("date-time", "enum", "float", "double", "int32", "int64")


def gemini_schema(schema: Schema) -> Schema:
    """Return the schema with every reference written out, in Gemini's subset of OpenAPI."""
    return rewrite(_inlined(schema, schema, ()), _gemini)


def _inlined(schema: Schema, root: Schema, open_references: tuple[str, ...]) -> Schema:
    """Return the schema with its references replaced by what they point at."""
    if "$ref" in schema:
        reference = schema["$ref"]
        if reference in open_references:
            raise ToolDefinitionError(
                f"The schema refers to itself through {reference.split('/')[-1]!r}, which "
                f"Gemini cannot read. Give this tool parameters that do not nest without end."
            )
        target = resolve(root, reference) | _without(schema, ("$ref",))
        return _inlined(target, root, (*open_references, reference))
    own = _without(schema, DEFINITIONS)
    return _each(own, lambda inner: _inlined(inner, root, open_references))


def _gemini(schema: Schema) -> Schema:
    schema = _merged(schema)
    schema = _without_null_type(schema)
    if "const" in schema:
        schema["enum"] = [schema["const"]]
    if "prefixItems" in schema:
        schema["items"] = _one_of(schema["prefixItems"])
    if schema.get("type") == "array" and not isinstance(schema.get("items"), dict):
        schema["items"] = {"type": "string"}  # as for any other value, see below
    if schema.get("properties") == {}:
        del schema["properties"]
    if schema.get("format") not in GEMINI_FORMATS:
        schema.pop("format", None)
    schema = _enum_of_strings(schema)
    if not any(key in schema for key in ("type", "anyOf")):
        schema["type"] = "string"  # a type is needed, and text can say anything
    return {keyword: schema[keyword] for keyword in GEMINI_KEEPS if keyword in schema}


def _merged(schema: Schema) -> Schema:
    """Return the schema with ``allOf`` merged into it and ``oneOf`` as ``anyOf``."""
    merged = dict(schema)
    for part in merged.pop("allOf", ()):
        merged = part | merged | _joined(part, merged)
    if "oneOf" in merged:
        merged["anyOf"] = merged.pop("oneOf")
    return merged


def _joined(one: Schema, other: Schema) -> Schema:
    joined: Schema = {}
    if "properties" in one and "properties" in other:
        joined["properties"] = one["properties"] | other["properties"]
    if "required" in one and "required" in other:
        joined["required"] = list(dict.fromkeys([*one["required"], *other["required"]]))
    return joined


def _without_null_type(schema: Schema) -> Schema:
    """Return the schema with ``nullable`` in place of a null type."""
    branches = schema.get("anyOf", [])
    kinds = schema.get("type")
    if isinstance(kinds, list):
        branches = [schema | {"type": kind} for kind in kinds if kind != "null"]
        schema = {"anyOf": branches} | ({"nullable": True} if "null" in kinds else {})
    kept = [branch for branch in branches if not is_null(branch)]
    if len(kept) < len(branches):
        schema = schema | {"anyOf": kept, "nullable": True}
    if len(kept) == 1:
        schema = kept[0] | _without(schema, ("anyOf",))
    if None in schema.get("enum", ()):
        schema = schema | {"enum": [v for v in schema["enum"] if v is not None], "nullable": True}
    return schema


def _one_of(schemas: list[Schema]) -> Schema:
    distinct = [s for index, s in enumerate(schemas) if s not in schemas[:index]]
    return distinct[0] if len(distinct) == 1 else {"anyOf": distinct}


def _enum_of_strings(schema: Schema) -> Schema:
    """Return the schema with an enum of other values than strings put into words."""
    values = schema.get("enum", [])
    if all(isinstance(value, str) for value in values):
        return schema | ({"type": "string"} if values else {})
    listed = f"One of: {', '.join(repr(value) for value in values)}."
    description = f"{schema.get('description', '')} {listed}".strip()
    kinds = {_TYPES[type(value)] for value in values if type(value) in _TYPES}
    named = {"type": kinds.pop()} if len(kinds) == 1 else {}
    return _without(schema, ("enum",)) | named | {"description": description}


_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}

_ADAPTERS: dict[str, Callable[[Schema], Schema]] = {
    "openai": lambda schema: schema,
    "gemini": gemini_schema,
    "strict": strict_schema,
}
DIALECTS = tuple(_ADAPTERS)
