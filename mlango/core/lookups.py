"""Arguments that stand for a row: what the model writes is its key, what the tool gets is it.

The core knows Django's models only by what they offer; whoever makes the run fetches them.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import GenericAlias, UnionType
from typing import Annotated, Any, Union, get_args, get_origin
from uuid import UUID

from mlango.exceptions import ToolDefinitionError

WHOLE_NUMBERS = ("AutoField", "BigAutoField", "SmallAutoField", "IntegerField", "BigIntegerField")


@dataclass(frozen=True, slots=True)
class Lookup:
    """Says by which unique field a row is named: ``Annotated[Order, Lookup("number")]``."""

    field: str = "pk"


@dataclass(frozen=True, slots=True)
class Reference:
    """A parameter that gets a row of ``model`` for its ``field``, or with ``many`` a list."""

    model: Any
    field: str
    many: bool = False

    @property
    def noun(self) -> str:
        return str(self.model._meta.verbose_name)

    @property
    def label(self) -> str:
        """What a person calls the field."""
        meta = self.model._meta
        field = meta.pk if self.field == "pk" else meta.get_field(self.field)
        return str(field.verbose_name)

    def description(self) -> str:
        """Return what the model is told if the docstring says nothing."""
        if self.many:
            return f"The {self.label} of each {self.noun}."
        return f"The {self.label} of the {self.noun}."


def reference_of(annotation: Any, where: str) -> tuple[Reference | None, Any]:
    """Return the reference that an annotation means, and the annotation of its key.

    Without one, the annotation is returned as it is. ``where`` names it in errors.
    """
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _annotated(annotation, inner, where)
    if origin in (Union, UnionType) and len(inner) == 2 and type(None) in inner:
        wanted = inner[0] if inner[1] is type(None) else inner[1]
        reference, key = reference_of(wanted, where)
        return reference, annotation if reference is None else key | None
    if origin is list:
        reference, key = reference_of(inner[0], where)
        if reference is None or reference.many:
            return None, annotation
        return Reference(reference.model, reference.field, many=True), GenericAlias(list, (key,))
    if not is_model(annotation):
        return None, annotation
    return _made(annotation, "pk", where)


def is_model(annotation: Any) -> bool:
    """Return whether an annotation is a class of rows."""
    return (
        isinstance(annotation, type)
        and hasattr(annotation, "_meta")
        and hasattr(annotation, "_default_manager")
    )


def _annotated(annotation: Any, inner: tuple[Any, ...], where: str) -> tuple[Any, Any]:
    chosen = next((each.field for each in inner[1:] if isinstance(each, Lookup)), "pk")
    if not is_model(inner[0]):
        reference, key = reference_of(inner[0], where)
        return reference, (annotation if reference is None else key)
    return _made(inner[0], chosen, where)


def _made(model: Any, name: str, where: str) -> tuple[Reference, Any]:
    known = {field.name: field for field in model._meta.concrete_fields}
    field = model._meta.pk if name == "pk" else known.get(name)
    if field is None:
        unique = [each.name for each in known.values() if each.unique]
        raise ToolDefinitionError(
            f"{where}: {model.__name__} has no field {name!r} to look up. "
            f"Unique fields are: {', '.join(unique)}."
        )
    if not field.unique:
        raise ToolDefinitionError(
            f"{where}: the field {name!r} of {model.__name__} is not unique, so it does not "
            f"name one row."
        )
    return Reference(model, name), _key_type(field)


def _key_type(field: Any) -> Any:
    while field.remote_field is not None:  # a key that is another row's
        field = field.target_field
    kind = field.get_internal_type()
    if kind in WHOLE_NUMBERS or kind.startswith("Positive"):
        return int
    return UUID if kind == "UUIDField" else str
