"""Lazy public names: a package lists where each name lives, and loads it at first use."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


def exports(
    package: str, places: dict[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for a package; ``places`` maps name to module."""

    def __getattr__(name: str) -> Any:  # noqa: N807 - the module's own hook
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(places[name]), name)

    def __dir__() -> list[str]:  # noqa: N807
        return sorted(places)

    return __getattr__, __dir__
