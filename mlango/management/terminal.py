"""What a terminal may be shown of a model's or a tool's text."""

from __future__ import annotations

import re
import unicodedata

# CSI, then OSC, DCS, SOS, PM and APC strings up to their end, then any other escape.
_ESCAPE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f]).*?(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-Z\\-~]",
    re.DOTALL,
)
_OPEN = re.compile(r"(?:\x1b|[\x90\x98\x9b\x9d-\x9f])[^\x07\x9c]*\Z", re.DOTALL)
_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
MAX_HELD = 256


class Sanitizer:
    """Drops escape sequences, also those cut by a chunk's end; other controls become U+FFFD."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, chunk: str) -> str:
        """Return what of the text so far may be shown."""
        text = _ESCAPE.sub("", self._held + chunk)
        cut = _OPEN.search(text)
        self._held = cut[0] if cut and len(cut[0]) <= MAX_HELD else ""
        return _visible(text[: cut.start()] if cut and self._held else text)

    def end(self) -> str:
        """Return what is left when no more comes: an open escape sequence is dropped."""
        self._held = ""
        return ""


def sanitize(text: str) -> str:
    """Return a whole text without what could steer a terminal."""
    return Sanitizer().feed(text)


def _visible(text: str) -> str:
    if text.isprintable():
        return text
    return "".join("\ufffd" if _is_hidden(char) else char for char in text)


def _is_hidden(char: str) -> bool:
    return char in _BIDI or (char not in "\n\t" and unicodedata.category(char) == "Cc")
