"""Which rows a user's agents may touch, as an app's ``scopes.py`` says::

@scope(Order)
def orders(user):
    return Order.objects.filter(customer=user)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from django.core.exceptions import ValidationError

from mlango.core.context import Context
from mlango.core.lookups import Reference
from mlango.exceptions import Misconfigured, ToolError

F = TypeVar("F", bound=Callable[..., Any])

_scopes: dict[Any, Callable[..., Any]] = {}


def scope(model: Any) -> Callable[[F], F]:
    """Register a function that returns the rows of ``model`` that a user may touch.

    It gets the run's user, who may be None, and if it takes two arguments the Context.
    """

    def register(function: F) -> F:
        known = _scopes.setdefault(model, function)
        if known is not function and _place(known) != _place(function):
            raise Misconfigured(
                f"{model.__name__} has two scopes: {_place(known)} and {_place(function)}. "
                f"Keep one."
            )
        _scopes[model] = function
        return function

    return register


def _place(function: Any) -> str:
    return f"{function.__module__}.{function.__qualname__}"


def has_scope(model: Any) -> bool:
    """Return whether a scope is registered for a model."""
    return model in _scopes


def rows_of(model: Any, context: Context) -> Any:
    """Return the rows of a model that the run's user may touch: without a scope, staff's all."""
    function = _scopes.get(model)
    if function is not None:
        given = (context.user, context)[: len(inspect.signature(function).parameters)]
        return function(*given)
    manager = model._default_manager
    return manager.all() if getattr(context.user, "is_staff", False) else manager.none()


def fetch(context: Context, reference: Reference, key: Any) -> Any:
    """Return the row, or the rows in the order of their keys, that a call means.

    Raises ToolError if there is none; it says the same of a row out of the user's reach.
    """
    rows = rows_of(reference.model, context)
    if reference.many:
        return [_row(rows, reference, each) for each in key]
    return _row(rows, reference, key)


def _row(rows: Any, reference: Reference, key: Any) -> Any:
    # A TypeError is a mistake in the scope, such as rows that were sliced.
    try:
        found = rows.filter(**{reference.field: key}).first()
    except (ValueError, OverflowError, ValidationError):
        found = None
    if found is None:
        raise ToolError(f"There is no {reference.noun} with the {reference.label} {key!r}.")
    return found
