"""What a terminal may be shown of a model's or a tool's text, and how."""

from __future__ import annotations

import os
import shutil
import unicodedata
from collections.abc import Mapping

from django.core.management.base import CommandError, OutputWrapper

# The states of the Sanitizer: in plain text, or inside what began with ...
TEXT, RETURN, ESCAPE, INTERMEDIATE, CSI, STRING = range(6)

BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
HIDDEN = "\ufffd"
MAX_LINE = 200  # characters of a tool's arguments or result in one line about it

RED, GREEN, DIM = "31", "32", "2"

# For a terminal that cannot show them.
SYMBOLS = str.maketrans(
    {
        "✓": "+",
        "✗": "x",
        "→": ">",
        "·": "-",
        "…": "...",
        "│": "|",
        "├": "|",
        "└": "`",
        "─": "-",
        "█": "#",
    }
)


def wants_colors(out: OutputWrapper, options: Mapping[str, object]) -> bool:
    """Return whether to colour what is written; who runs the command has the last word."""
    if options.get("force_color") or options.get("no_color"):
        return bool(options.get("force_color"))
    return out.isatty() and "NO_COLOR" not in os.environ and not is_dumb()


def is_dumb() -> bool:
    """Return whether the terminal can do no more than print."""
    return os.environ.get("TERM") == "dumb"


class Sanitizer:
    """Drops escape sequences, also across chunks; other controls become U+FFFD.

    Follows the states of a terminal (ECMA-48). A string such as a window's title ends at
    the latest with its line, so that one left open never hides the rest of an answer.
    """

    def __init__(self) -> None:
        self._state = TEXT

    def feed(self, chunk: str) -> str:
        """Return what of a chunk may be shown."""
        if self._state == TEXT and chunk.isprintable():
            return chunk
        return "".join(map(self._next, chunk))

    def _next(self, char: str) -> str:
        state, self._state = self._state, TEXT
        if state == TEXT:
            return self._text(char)
        if state == RETURN:
            return char if char == "\n" else HIDDEN + self._text(char)
        if char == "\x1b":
            self._state = ESCAPE
            return ""
        if state == STRING:
            return self._string(char)
        return self._sequence(state, char)

    def _text(self, char: str) -> str:
        """Return a character of plain text, or begin what it begins."""
        if char in "\r\x1b\x9b":
            self._state = {"\r": RETURN, "\x1b": ESCAPE, "\x9b": CSI}[char]
            return ""
        if char in "\x90\x98\x9d\x9e\x9f":
            self._state = STRING
            return ""
        if char.isprintable() or char in "\n\t":
            return char
        if "\x80" <= char <= "\x9f":
            return ""
        return HIDDEN if _is_hidden(char) else char

    def _string(self, char: str) -> str:
        if char == "\n":
            return char
        if char not in "\x07\x9c\x18\x1a":
            self._state = STRING
        return ""

    def _sequence(self, state: int, char: str) -> str:
        if state == ESCAPE and char == "[":
            self._state = CSI
        elif state == ESCAPE and char in "]PX^_":
            self._state = STRING
        elif " " <= char <= ("?" if state == CSI else "/"):
            self._state = CSI if state == CSI else INTERMEDIATE
        elif not " " <= char <= "~":  # the sequence is broken off
            return self._text(char)
        return ""


def _is_hidden(char: str) -> bool:
    """Return whether a character is a control, turns text around or is half of one."""
    return char < " " or char == "\x7f" or char in BIDI or "\ud800" <= char <= "\udfff"


def sanitize(text: str) -> str:
    """Return a whole text without what could steer a terminal."""
    return Sanitizer().feed(text)


def one_line(text: str, limit: int = MAX_LINE) -> str:
    """Return the beginning of a text, in one line."""
    line = " ".join(sanitize(text).split())
    return line if len(line) <= limit else f"{line[:limit]}…"


class Screen:
    """Writes to a command's stdout or stderr what may be shown there."""

    def __init__(self, out: OutputWrapper, *, colored: bool = False) -> None:
        self.is_terminal = out.isatty()
        self.in_line = False
        self._out = out
        self._colored = colored
        self._sanitizer = Sanitizer()
        self._live = ""
        # The wrapper hides the encoding of what it wraps.
        self._encoding = getattr(out._out, "encoding", None) or "utf-8"

    def write(self, chunk: str) -> None:
        """Write a piece of a longer text."""
        if text := self._sanitizer.feed(chunk):
            self._put(text)
            self.in_line = not text.endswith("\n")

    def fresh_line(self) -> None:
        """End the text written so far, and its line if it has not ended."""
        self._sanitizer = Sanitizer()
        if self.in_line:
            self._put("\n")
            self.in_line = False

    def line(self, text: str, color: str = "") -> None:
        """Write a text that is a line, or several, of its own."""
        self.fresh_line()
        shown = sanitize(text)
        if color and self._colored:
            shown = f"\x1b[{color}m{shown}\x1b[0m"
        self._put(f"{shown}\n")

    def short_line(self, text: str, color: str = "") -> None:
        """Write one line, no wider than a terminal."""
        self.line(cut(text, columns()) if self.is_terminal else text, color)

    def live(self, text: str) -> None:
        """Write a line that the next one takes the place of."""
        self.erase()
        live = cut(text, columns() - 1)
        self._put(live)
        self._live = live

    def erase(self) -> None:
        """Take a live line away."""
        if self._live:
            blank, self._live = " " * width(self._live), ""
            self._put(f"\r{blank}\r")

    def _put(self, text: str) -> None:
        if self._live:
            self.erase()
        try:
            self._out.write(self._fitting(text), ending="")
            self._out.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise CommandError(f"The output cannot be written: {error.strerror}.") from None

    def _fitting(self, text: str) -> str:
        try:
            text.encode(self._encoding)
        except UnicodeEncodeError:
            plain = text.translate(SYMBOLS)
            return plain.encode(self._encoding, "replace").decode(self._encoding)
        return text


def columns() -> int:
    """Return how wide the terminal is, or what COLUMNS says."""
    return shutil.get_terminal_size().columns


def width(text: str) -> int:
    """Return how many columns of a terminal a line takes."""
    return sum(map(_columns_of, text))


def _columns_of(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def tail(text: str, limit: int) -> str:
    """Return the end of a line that is at most ``limit`` columns wide."""
    while text and width(text) > limit:
        text = text[1:]
    return text


def cut(text: str, limit: int) -> str:
    """Return a line that is at most ``limit`` columns wide."""
    if width(text) <= limit:
        return text
    used = 0
    for place, char in enumerate(text):
        used += _columns_of(char)
        if used >= limit:
            return f"{text[:place]}…"
    return text
