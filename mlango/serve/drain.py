"""Whether this process is about to end, so that no new work should be sent to it."""

from __future__ import annotations

import signal
import threading
from typing import Any


class Drain:
    """Set by SIGTERM, once ``watch`` was called; the server's own handler runs after it."""

    def __init__(self) -> None:
        self._set = threading.Event()
        self._following: Any = None
        self._is_told = False

    @property
    def has_begun(self) -> bool:
        return self._set.is_set()

    def watch(self) -> None:
        """Notice SIGTERM from now on.

        Servers set their own handler when they start, so call this once requests come. It
        does nothing off the main thread, where Python sets no handlers.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        current = signal.getsignal(signal.SIGTERM)
        if current == self._notice:
            return
        self._following = current
        signal.signal(signal.SIGTERM, self._notice)

    def _notice(self, number: int, frame: Any) -> None:
        self._set.set()
        if self._is_told:  # by a handler that follows this one, and goes before it as well
            return
        self._is_told = True
        try:
            self._follow(number, frame)
        finally:
            self._is_told = False

    def _follow(self, number: int, frame: Any) -> None:
        if callable(self._following):
            self._following(number, frame)
        elif self._following == signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)


drain = Drain()
