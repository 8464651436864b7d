"""The live line that tells how long a terminal's user has been waiting, and for what."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from types import TracebackType
from typing import Self

from mlango.management.terminal import Screen, columns, is_dumb, tail, width

PERIOD = 1.0  # seconds; who waits less than one sees nothing


class Waiting:
    """Shows, while its ``with`` block lasts, a line on ``err`` that is not kept.

    There is none where ``err`` is no terminal, and none within a line of the answer.
    """

    def __init__(self, out: Screen, err: Screen, clock: Callable[[], float] = monotonic) -> None:
        self.what = "the model"
        self.typed = ""  # what the user has typed meanwhile
        self._out = out
        self._err = err
        self._clock = clock
        self._since = clock()
        self._lock = threading.RLock()  # a signal may come while it is held
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        if self._err.is_terminal and not is_dumb():
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        with self._lock:
            self._err.erase()

    @contextmanager
    def interrupted(self) -> Iterator[None]:
        """Leave the terminal to others; from then on it is waited anew."""
        with self._lock:
            self._err.erase()
            yield
            self._since = self._clock()

    def show(self) -> None:
        """Write the line as it is now."""
        with self._lock:
            in_answer = self._out.is_terminal and self._out.in_line
            if not in_answer and not self._ended.is_set():
                self._err.live(self._text())

    def _text(self) -> str:
        text = f"… {self.what} {self._clock() - self._since:.0f} s"
        if not self.typed:
            return text
        room = columns() - width(text) - 4
        return f"{text} > {tail(self.typed, room)}"

    def _run(self) -> None:
        while not self._ended.wait(PERIOD):
            self.show()
