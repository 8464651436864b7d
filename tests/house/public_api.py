"""Print the public API: what users import, with its signatures.

Write the snapshot anew, and read its diff before you commit it::

    .venv/bin/python -m tests.house.public_api > tests/house/public_api.txt
"""

import importlib
import inspect
import os
from collections.abc import Iterator
from types import FunctionType

import django
from django.db.models import Model
from django.dispatch import Signal
from django.utils.module_loading import module_has_submodule

PATHS = [
    "mlango",
    "mlango.a2a",
    "mlango.agents",
    "mlango.agents.fields",
    "mlango.agents.providers",
    "mlango.core.signals",
    "mlango.evals",
    "mlango.exceptions",
    "mlango.mcp",
    "mlango.models",
    "mlango.serve",
    "mlango.telemetry",
    "mlango.test",
]


def exists(path: str) -> bool:
    """Return whether the module is there; one that is there and fails to import is an error."""
    parent, _, name = path.rpartition(".")
    return not parent or module_has_submodule(importlib.import_module(parent), name)


def public_names(module) -> list[str]:
    """Return ``__all__``, else the module's own names without a leading underscore."""
    if hasattr(module, "__all__"):
        return sorted(module.__all__)
    return sorted(name for name, value in vars(module).items() if is_public(name, value))


def is_public(name: str, value) -> bool:
    """Return whether a module without ``__all__`` offers this name."""
    if name.startswith("_"):
        return False
    if inspect.isclass(value) or inspect.isroutine(value):
        return value.__module__.startswith("mlango")
    return isinstance(value, Signal)


def plain(parameter: inspect.Parameter) -> inspect.Parameter:
    """Return the parameter without its annotation, which Python versions print differently."""
    default = parameter.default
    if default is not parameter.empty and not isinstance(default, str | int | float | None):
        default = Shown(default)
    return parameter.replace(annotation=parameter.empty, default=default)


class Shown:
    """A default that prints without its address in memory."""

    def __init__(self, value):
        self.text = "..." if " at 0x" in repr(value) else repr(value)

    def __repr__(self):
        return self.text


def signature(value) -> str:
    """Return the parameters of a callable: names, kinds and defaults."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return "(...)"
    parameters = [plain(parameter) for parameter in found.parameters.values()]
    return str(inspect.Signature(parameters))


def members(cls: type) -> Iterator[str]:
    """Yield the public methods and properties that mlango itself gives to a class."""
    for name, value in inspect.getmembers(cls):
        home = next((base for base in cls.__mro__ if name in vars(base)), None)
        if name.startswith("_") or home is None or not home.__module__.startswith("mlango"):
            continue
        if isinstance(vars(home)[name], FunctionType | classmethod | staticmethod):
            yield f"{name}{signature(value)}"
        elif isinstance(value, property):
            yield f"{name} (property)"


def fields(model: type[Model]) -> Iterator[str]:
    """Yield the fields of a model."""
    for field in model._meta.fields:
        yield f"{field.name}: {type(field).__name__}"


def described(name: str, value) -> Iterator[str]:
    """Yield the lines for one public name."""
    is_model = inspect.isclass(value) and issubclass(value, Model)
    yield f"  {name}{signature(value)}" if callable(value) and not is_model else f"  {name}"
    if is_model:
        yield from (f"    {line}" for line in fields(value))
    if inspect.isclass(value):
        yield from (f"    {line}" for line in members(value))


def lines() -> Iterator[str]:
    """Yield the whole API. What several paths offer is described at the first."""
    seen = set()
    for path in PATHS:
        if not exists(path):
            yield f"{path}: to come"
            continue
        module = importlib.import_module(path)
        yield path
        for name in public_names(module):
            value = getattr(module, name)
            if inspect.isclass(value) and value in seen:
                yield f"  {name}, as above"
                continue
            yield from described(name, value)
            if inspect.isclass(value):
                seen.add(value)


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()
    print(*lines(), sep="\n")  # noqa: T201 - this is a command
