"""How stored values are shown: escaped, and never more than a page can bear."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from django.utils.html import format_html
from django.utils.safestring import SafeString

from mlango.core.numbers import plain
from mlango.core.values import clean

MAX_SHOWN = 4_000  # characters of one value: a page with megabytes in it stops the browser
NOTHING = "-"


def block(text: str) -> SafeString | str:
    """Return text as a block of its own; a dash for none."""
    return format_html("<pre>{}</pre>", clean(text)) if text else NOTHING


def cut(text: str, length: int | None = None) -> str:
    """Return the beginning of a text and how much was left out.

    ``length`` tells how long the text is if it was cut before.
    """
    length = max(len(text), length or 0)
    if length <= MAX_SHOWN:
        return text
    left_out = length - MAX_SHOWN
    return f"{text[:MAX_SHOWN]}\n[… {left_out:,} of {length:,} characters left out]"


def readable(stored: str, length: int | None = None) -> str:
    """Return stored JSON as people read it; what is too long for that, cut as it is stored."""
    if max(len(stored), length or 0) > MAX_SHOWN:
        return cut(stored, length)
    try:
        return _written(json.loads(stored)) if stored else ""
    except (ValueError, RecursionError):  # a row that something else wrote
        return stored


def _written(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and set(value) == {"role", "content"}:  # a message
        return _written(value["content"])
    return "" if value in (None, {}, []) else json.dumps(value, indent=2, ensure_ascii=False)


def seconds(value: float | None) -> str:
    """Return a duration for people."""
    return NOTHING if value is None else f"{value:,.2f} s"


def dollars(value: Decimal | None) -> str:
    """Return a cost for people; a dash where a price is unknown."""
    if value is None:
        return NOTHING
    return f"${value:,.2f}" if value >= 1 else f"${plain(round(value, 6))}"
