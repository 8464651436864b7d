"""Answers that are a Django form: bound, valid and ready for ``save()``."""

from __future__ import annotations

from typing import Any

from django import forms
from django.core.exceptions import NON_FIELD_ERRORS
from django.forms import BaseForm

from mlango.agents.output.kinds import Invalid, OutputType, bounded, described, worded
from mlango.core.values import dumps
from mlango.exceptions import Misconfigured

# The first class that a field belongs to counts.
KINDS: tuple[tuple[type[forms.Field], dict[str, Any]], ...] = (
    (forms.NullBooleanField, {"anyOf": [{"type": "boolean"}, {"type": "null"}]}),
    (forms.BooleanField, {"type": "boolean"}),
    (forms.DecimalField, {"type": "number"}),
    (forms.FloatField, {"type": "number"}),
    (forms.IntegerField, {"type": "integer"}),
    (forms.DateTimeField, {"type": "string", "format": "date-time"}),
    (forms.DateField, {"type": "string", "format": "date"}),
    (forms.TimeField, {"type": "string", "format": "time"}),
    (forms.DurationField, {"type": "string", "format": "duration"}),
    (forms.EmailField, {"type": "string", "format": "email"}),
    (forms.URLField, {"type": "string", "format": "uri"}),
    (forms.UUIDField, {"type": "string", "format": "uuid"}),
    (forms.JSONField, {}),
)


class FormOutput(OutputType):
    """Makes a form that was checked with the answer as its data."""

    def __init__(self, owner: str, form: Any) -> None:
        fields = {name: f for name, f in form.base_fields.items() if not f.disabled}
        files = [name for name, field in fields.items() if isinstance(field, forms.FileField)]
        self._fields = {name: field for name, field in fields.items() if name not in files}
        unfit = [name for name in files if fields[name].required]
        unfit += [n for n, f in self._fields.items() if isinstance(f.widget, forms.MultiWidget)]
        if unfit:
            raise Misconfigured(
                f"{owner}.Meta.output: a model cannot fill in the field {unfit[0]!r} of "
                f"{form.__name__}. Use a form with fields of one value, and without files."
            )
        super().__init__(form, self._schema())

    def _schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {name: _property(field) for name, field in self._fields.items()},
            "required": [name for name, field in self._fields.items() if field.required],
        }

    def value_of(self, data: Any) -> BaseForm:
        if not isinstance(data, dict):
            raise Invalid("a JSON object is needed.")
        form: BaseForm = self.declared(data={n: self._sent(n, v) for n, v in data.items()})
        if form.is_valid():
            return form
        raise worded(
            [
                ("" if name == NON_FIELD_ERRORS else name, str(text))
                for name, texts in form.errors.items()
                for text in texts
            ]
        )

    def _sent(self, name: str, value: Any) -> Any:
        """Return a value as a browser would have sent it."""
        return dumps(value) if isinstance(self._fields.get(name), forms.JSONField) else value


def _property(field: forms.Field) -> dict[str, Any]:
    return described(bounded(_kind(field), field), field)


def _kind(field: forms.Field) -> dict[str, Any]:
    if isinstance(field, forms.ModelMultipleChoiceField):
        return {"type": "array", "items": _key(field)}
    if isinstance(field, forms.ModelChoiceField):
        return _key(field)
    if isinstance(field, forms.MultipleChoiceField):
        return {"type": "array", "items": _choice(field)}
    if isinstance(field, forms.ChoiceField):
        return _choice(field)
    found = next((schema for kind, schema in KINDS if isinstance(field, kind)), {"type": "string"})
    return dict(found)


def _choice(field: forms.ChoiceField) -> dict[str, Any]:
    values = [str(value) for value, _ in _flat(field.choices) if value not in ("", None)]
    return {"type": "string", "enum": values} if values else {"type": "string"}


def _flat(choices: Any) -> list[tuple[Any, Any]]:
    """Return the choices without their groups."""
    flat: list[tuple[Any, Any]] = []
    for value, label in choices:
        flat += label if isinstance(label, list | tuple) else [(value, label)]
    return flat


def _key(field: Any) -> dict[str, Any]:
    """Return the schema of what picks a row; the rows themselves are not read."""
    model = field.queryset.model
    column = model._meta.get_field(field.to_field_name) if field.to_field_name else model._meta.pk
    is_number = column.get_internal_type().endswith(("AutoField", "IntegerField"))
    return {"type": "integer" if is_number else "string"}
