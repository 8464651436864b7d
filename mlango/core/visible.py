"""Text that deceives nobody who has to decide by it."""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any

# Printable by their category, and yet nothing is seen of them.
BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
VARIANTS = re.compile("[\u180b-\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef]")
WORD = re.compile(r"\w+")
# Scripts with letters that look like Latin ones.
ALIKE = frozenset(("GREEK", "CYRILLIC", "ARMENIAN", "CHEROKEE"))


def canonical(value: Any) -> str:
    """Return a JSON-safe value as one line of JSON in which everything can be seen."""
    return visible(json.dumps(value, ensure_ascii=False, sort_keys=True))


def visible(text: str) -> str:
    """Return a text with its hidden characters written as in JSON.

    Hidden are controls, what turns text around or takes no room, and, in a word that has
    Latin letters too, letters that look like those.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_seen, WORD.sub(_unmixed, text)))


def _unmixed(found: re.Match[str]) -> str:
    word = found.group()
    scripts = [_script(char) for char in word]
    if word.isascii() or "LATIN" not in scripts:
        return word
    pairs = zip(word, scripts, strict=True)
    return "".join(_escaped(char) if script in ALIKE else char for char, script in pairs)


def _script(char: str) -> str:
    return unicodedata.name(char, "").partition(" ")[0]


def _seen(char: str) -> str:
    is_seen = char.isprintable() and char not in BLANK and not VARIANTS.match(char)
    return char if is_seen else _escaped(char)


def _escaped(char: str) -> str:
    return json.dumps(char)[1:-1]
