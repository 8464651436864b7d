"""JSON kept as text.

A JSONField would be decoded and encoded again wherever a page only passes it on, and would
refuse on PostgreSQL what it takes on SQLite.
"""

from __future__ import annotations

import json
from typing import Any

from mlango.core.values import dumps


def decoded(column: str, empty: Any = None) -> property:
    """Return a property that reads and sets the value of a text column with JSON in it.

    An empty text reads as ``empty``.
    """

    def read(self: Any) -> Any:
        text = getattr(self, column)
        return json.loads(text) if text else empty

    def write(self: Any, value: Any) -> None:
        setattr(self, column, "" if value is None else dumps(value))

    return property(read, write)
