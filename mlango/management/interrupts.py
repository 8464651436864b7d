"""What Ctrl-C and SIGTERM do to a run in the terminal."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

from mlango.agents.streams import RunStream
from mlango.management.terminal import Screen

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Stops a run at the first signal; a second Ctrl-C raises KeyboardInterrupt.

    ``code`` is the exit code that a shell expects of the last signal, 0 without one.
    """

    def __init__(self, stream: RunStream, err: Screen) -> None:
        self.code = 0
        self.has_to_leave = False
        self._stream = stream
        self._err = err
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        # Python lets only the main thread handle signals.
        if threading.current_thread() is threading.main_thread():
            self._previous = {each: signal.signal(each, self._handle) for each in SIGNALS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        is_second = bool(self.code)
        self.code = 128 + number
        self.has_to_leave = is_second or number == signal.SIGTERM
        self._stream.abort()
        if number == signal.SIGINT and is_second:
            signal.default_int_handler(number, frame)
        self._tell("Stopping. Press Ctrl-C again to leave at once.")

    def _tell(self, text: str) -> None:
        try:
            self._err.line(text)
        except RuntimeError:
            # The signal came while stderr was written to, which cannot be entered twice.
            return
