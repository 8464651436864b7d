"""Answers that are a serializer of Django REST framework, valid and ready for ``save()``.

Whoever declares one has imported the framework, so nothing here is imported before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mlango.agents.output.kinds import OutputType, bounded, described, worded

# By the name of a class that a field belongs to; the first counts.
KINDS: dict[str, dict[str, Any]] = {
    "BooleanField": {"type": "boolean"},
    "IntegerField": {"type": "integer"},
    "FloatField": {"type": "number"},
    "DecimalField": {"type": "number"},
    "DateTimeField": {"type": "string", "format": "date-time"},
    "DateField": {"type": "string", "format": "date"},
    "TimeField": {"type": "string", "format": "time"},
    "DurationField": {"type": "string"},
    "EmailField": {"type": "string", "format": "email"},
    "URLField": {"type": "string", "format": "uri"},
    "UUIDField": {"type": "string", "format": "uuid"},
    "DictField": {"type": "object"},
    "JSONField": {},
}


class SerializerOutput(OutputType):
    """Makes a serializer that was checked with the answer as its data."""

    def __init__(self, declared: Any) -> None:
        super().__init__(declared, _object(declared()))

    def value_of(self, data: Any) -> Any:
        serializer = self.declared(data=data)
        if serializer.is_valid():
            return serializer
        raise worded(list(_problems(serializer.errors, ())))


def _object(serializer: Any) -> dict[str, Any]:
    fields = {
        name: field
        for name, field in serializer.fields.items()
        if not field.read_only and not _is(field, "HiddenField")
    }
    return {
        "type": "object",
        "properties": {name: _property(field) for name, field in fields.items()},
        "required": [name for name, field in fields.items() if field.required],
    }


def _property(field: Any) -> dict[str, Any]:
    schema = bounded(_kind(field), field)
    if field.allow_null and schema:
        schema = {"anyOf": [schema, {"type": "null"}]}
    return described(schema, field)


def _kind(field: Any) -> dict[str, Any]:
    if _is(field, "ListSerializer", "ListField"):
        return {"type": "array", "items": _property(field.child)}
    if _is(field, "ManyRelatedField"):
        return {"type": "array", "items": _property(field.child_relation)}
    if _is(field, "BaseSerializer"):
        return _object(field) if hasattr(field, "fields") else {"type": "object"}
    if _is(field, "MultipleChoiceField"):
        return {"type": "array", "items": {"type": "string", "enum": _choices(field)}}
    if _is(field, "ChoiceField"):
        return {"type": "string", "enum": _choices(field)}
    if _is(field, "PrimaryKeyRelatedField"):
        key = field.get_queryset().model._meta.pk.get_internal_type()
        is_number = key.endswith(("AutoField", "IntegerField"))
        return {"type": "integer" if is_number else "string"}
    names = [kind.__name__ for kind in type(field).__mro__]
    return dict(next((KINDS[name] for name in names if name in KINDS), {"type": "string"}))


def _is(field: Any, *names: str) -> bool:
    return any(kind.__name__ in names for kind in type(field).__mro__)


def _choices(field: Any) -> list[str]:
    return [str(value) for value in field.choices if value != ""]


def _problems(errors: Any, path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield what a serializer found wrong, as paths and its own words."""
    if isinstance(errors, dict):
        for name, inner in errors.items():
            yield from _problems(inner, path if name == "non_field_errors" else (*path, str(name)))
    elif isinstance(errors, list) and any(isinstance(each, dict) for each in errors):
        for index, inner in enumerate(errors):
            yield from _problems(inner, (*path, str(index)))
    else:
        for text in errors if isinstance(errors, list) else [errors]:
            yield ".".join(path), str(text)
