"""What wakes readers when there is something new to read: PostgreSQL's LISTEN.

It carries no data but the run's uuid, and may fail or not be there: readers look without it
too. One connection in a thread serves all readers of a process, while there are any.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from django.db import connections

from mlango.runtime.statements import CHANNEL

logger = logging.getLogger("mlango.traces")

RETRY = 10.0  # seconds until the next attempt to listen
LOOK = 30.0  # seconds between two looks whether the connection lives


class Ear:
    """One reader's: it can wait until it is rung, or for so many seconds."""

    def __init__(self, bell: Bell) -> None:
        self._bell = bell

    @property
    def rings(self) -> bool:
        """Whether something will ring, so that there is no need to look often."""
        return self._bell.listens


class LoopEar(Ear):
    """That of a reader on an event loop."""

    def __init__(self, bell: Bell) -> None:
        super().__init__(bell)
        self._rung = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def clear(self) -> None:
        self._rung.clear()

    async def wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._rung.wait()

    def ring(self) -> None:
        with suppress(RuntimeError):  # its loop is closed
            self._loop.call_soon_threadsafe(self._rung.set)


class ThreadEar(Ear):
    """That of a reader in a thread."""

    def __init__(self, bell: Bell) -> None:
        super().__init__(bell)
        self._rung = threading.Event()

    def clear(self) -> None:
        self._rung.clear()

    def wait(self, seconds: float) -> None:
        self._rung.wait(seconds)

    def ring(self) -> None:
        self._rung.set()


class Bell:
    """Rings for the readers of one database."""

    def __init__(self, alias: str) -> None:
        self._alias = alias
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._ears: dict[str, list[Any]] = {}
        self._thread: threading.Thread | None = None
        self._stop: int | None = None  # the end of a pipe; to write to it ends the thread
        self.listens = False

    @contextmanager
    def heard_in_loop(self, uuid: str) -> Iterator[LoopEar]:
        """Ring for a reader on an event loop."""
        with self._heard(uuid, ear := LoopEar(self)):
            yield ear

    @contextmanager
    def heard_in_thread(self, uuid: str) -> Iterator[ThreadEar]:
        """Ring for a reader in a thread."""
        with self._heard(uuid, ear := ThreadEar(self)):
            yield ear

    @contextmanager
    def _heard(self, uuid: str, ear: Any) -> Iterator[None]:
        with self._lock:
            self._ears.setdefault(uuid, []).append(ear)
            self._start()
        try:
            yield
        finally:
            with self._lock:
                self._ears[uuid].remove(ear)
                if not self._ears[uuid]:
                    del self._ears[uuid]
                if not self._ears:
                    self._end()

    def ring(self, uuid: str) -> None:
        """Wake the readers of a run."""
        with self._lock:
            ears = list(self._ears.get(uuid, ()))
        for ear in ears:
            ear.ring()

    def _ring_all(self) -> None:
        with self._lock:
            uuids = list(self._ears)
        for uuid in uuids:
            self.ring(uuid)

    # -- the thread ------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._thread is not None or connections[self._alias].vendor != "postgresql":
            return
        stopped, self._stop = os.pipe()
        self._thread = threading.Thread(
            target=self._work, args=(stopped,), name="mlango-bell", daemon=True
        )
        self._thread.start()

    def _end(self) -> None:
        if self._stop is not None:
            os.close(self._stop)  # which the other end can be read for
        self._thread, self._stop, self.listens = None, None, False

    def _work(self, stopped: int) -> None:
        try:
            while not _is_readable(stopped, 0):
                try:
                    self._listen(stopped)
                except Exception as error:  # noqa: BLE001 - readers look by themselves
                    logger.info("PostgreSQL cannot be listened to: %s", type(error).__name__)
                self._say(listens=False)
                if _is_readable(stopped, RETRY):
                    return
        finally:
            os.close(stopped)

    def _say(self, *, listens: bool) -> None:
        if threading.current_thread() is self._thread:
            self.listens = listens

    def _listen(self, stopped: int) -> None:
        wrapper = connections[self._alias].copy(self._alias)
        try:
            wrapper.ensure_connection()
            with wrapper.cursor() as cursor:
                cursor.execute(f"LISTEN {CHANNEL}")
            raw: Any = wrapper.connection
            socket = raw.pgconn
            self._say(listens=True)
            self._ring_all()  # what was written before this thread listened
            while not _is_readable(stopped, 0):
                select.select([socket.socket, stopped], [], [], LOOK)
                socket.consume_input()
                while (note := socket.notifies()) is not None:
                    self.ring(note.extra.decode())
        finally:
            wrapper.close()


def _is_readable(end: int, seconds: float) -> bool:
    return bool(select.select([end], [], [], seconds)[0])


_bells: dict[str, Bell] = {}
_making = threading.Lock()


def bell_of(alias: str) -> Bell:
    """Return the bell of a database."""
    with _making:
        if alias not in _bells:  # each one made is kept for ever, to be reset after a fork
            _bells[alias] = Bell(alias)
        return _bells[alias]
