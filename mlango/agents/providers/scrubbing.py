"""What must never be written to a cassette."""

from __future__ import annotations

from typing import Any

from mlango.runtime.redaction import NAMES, REDACTED, Redactor


class Scrubber(Redactor):
    """Replaces secrets in JSON data, by the name of their key too."""

    def item(self, key: str, value: Any) -> Any:
        return REDACTED if isinstance(value, str) and NAMES.search(key) else self.data(value)
