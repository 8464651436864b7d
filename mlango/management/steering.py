"""What is typed while a run goes on: each line is told to the run."""

from __future__ import annotations

import codecs
import os
import select
import sys
import threading
from types import TracebackType
from typing import Self

from mlango.agents.streams import RunStream
from mlango.exceptions import MlangoError
from mlango.management.keyboard import raw_keys
from mlango.management.terminal import DIM, HIDDEN, RED, Sanitizer, Screen
from mlango.management.waiting import Waiting

LATER = "/later"
BACKSPACES = "\x7f\x08"
CLEAR, CLEAR_WORD = "\x15", "\x17"  # Ctrl-U, Ctrl-W


class Line:
    """A line that is being typed, key by key."""

    def __init__(self, text: str = "") -> None:
        self.text = text
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._sanitizer = Sanitizer()

    def feed(self, keys: bytes) -> list[str]:
        """Return the lines that these keys end; what follows is in ``text``."""
        return [line for key in self._decoder.decode(keys) if (line := self._press(key))]

    def _press(self, key: str) -> str:
        if key in "\r\n":
            line, self.text = self.text.strip(), ""
            return line
        if key in BACKSPACES:
            self.text = self.text[:-1]
        elif key == CLEAR:
            self.text = ""
        elif key == CLEAR_WORD:
            self.text = self.text.rstrip().rpartition(" ")[0]
        else:  # the arrows and the like are escape sequences
            typed = self._sanitizer.feed(key.replace("\t", " "))
            self.text += typed if typed.isprintable() and typed != HIDDEN else ""
        return ""


class Steering:
    """Reads what a user types while a run goes on, and tells the run each line.

    The terminal does not echo it: it stands in the line that tells how long one waits. What
    was not sent when the run has ended is ``typed``, for the next prompt.
    """

    def __init__(self, out: Screen, err: Screen) -> None:
        self.typed = ""
        self._out = out
        self._err = err

    def of(self, stream: RunStream, waiting: Waiting) -> Reading:
        """Return what reads the keys for a run while its ``with`` block lasts."""
        return Reading(self, stream, waiting)

    def tell(self, stream: RunStream, line: str) -> None:
        """Tell a run a line, and show that it was told."""
        word, _, rest = line.partition(" ")
        is_command = word.startswith("/") and "/" not in word[1:]
        if self._out.is_terminal:
            self._out.fresh_line()
        if is_command and not (word == LATER and rest):
            self._err.line(f"While a run goes on, {LATER} TEXT is the only command.", RED)
            return
        try:
            if is_command:
                stream.follow_up(rest.strip())
            else:
                stream.steer(line.removeprefix("/") if line.startswith("//") else line)
        except MlangoError as error:
            self._err.line(str(error), RED)
        else:
            self._err.short_line(f"you> {line}", DIM)


class Reading:
    """A thread that reads the keyboard until its ``with`` block ends."""

    def __init__(self, steering: Steering, stream: RunStream, waiting: Waiting) -> None:
        self._steering = steering
        self._stream = stream
        self._waiting = waiting
        self._line = Line(steering.typed)
        self._keys = raw_keys()
        self._thread: threading.Thread | None = None
        self._ending: tuple[int, int] | None = None

    def __enter__(self) -> Self:
        if self._keys.__enter__():
            self._ending = os.pipe()
            self._thread = threading.Thread(target=self._read, daemon=True)
            self._thread.start()
            self._waiting.typed = self._line.text
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._thread is not None and self._ending is not None:
            ours, theirs = self._ending
            os.close(theirs)
            self._thread.join()
            os.close(ours)
            self._steering.typed = self._line.text
        self._keys.__exit__(kind, error, traceback)

    def _read(self) -> None:
        assert self._ending is not None
        keyboard, end = sys.stdin.fileno(), self._ending[0]
        while True:
            ready, _, _ = select.select([keyboard, end], [], [])
            if end in ready:
                return
            keys = os.read(keyboard, 1024)
            if not keys:
                return
            for line in self._line.feed(keys):
                self._waiting.typed = ""
                with self._waiting.interrupted():
                    self._steering.tell(self._stream, line)
            self._waiting.typed = self._line.text
            self._waiting.show()
