"""The turn of a session: one run at a time, in this process and over all of them.

Runs of one process queue here and go in the order in which they came. The turn between
processes is a column of the session's row; it ends by itself when its holder's process dies.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from time import monotonic
from typing import Any

from django.contrib.auth import get_user_model
from django.db import OperationalError, connections, transaction

from mlango.conf import settings
from mlango.core.hearing import said_text
from mlango.core.memory import SessionKey, check_session_id
from mlango.core.run import LOST, Run
from mlango.core.watch import Interrupted
from mlango.exceptions import SessionBusy
from mlango.models import Session
from mlango.runtime import database
from mlango.runtime.redaction import redact
from mlango.runtime.writer import writer

logger = logging.getLogger("mlango.traces")

FIRST_POLL, LAST_POLL = 0.05, 1.0  # seconds between two looks at the row, growing
# How long PostgreSQL waits for a row that another transaction is about to add.
LOCK_TIMEOUT = "200ms"
LOCK_NOT_AVAILABLE = "55P03"
MAX_TITLE = 80
RELEASE_TIMEOUT = 10.0


class Queues:
    """Who waits for which session in this process, first come, first served."""

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._queues: dict[SessionKey, deque[Future[None]]] = {}

    def join(self, key: SessionKey) -> Future[None]:
        """Return a future that is done when it is one's turn."""
        place: Future[None] = Future()
        with self._lock:
            queue = self._queues.setdefault(key, deque())
            queue.append(place)
            if len(queue) == 1:
                place.set_result(None)
        return place

    def leave(self, key: SessionKey, place: Future[None]) -> None:
        """Give up one's place or turn; the next in the queue goes on."""
        with self._lock:
            queue = self._queues[key]
            was_first = queue[0] is place
            queue.remove(place)
            if not queue:
                del self._queues[key]
            elif was_first and queue[0].set_running_or_notify_cancel():
                queue[0].set_result(None)


queues = Queues()


class SessionTurn:
    """A run's turn in a session, given to the Run as ``turn``.

    ``pk`` is the key of the session's row; None until it is known.
    """

    def __init__(self, key: SessionKey) -> None:
        check_session_id(key.session_id)
        self.key = key
        self.pk: int | None = None
        self._queued: Future[None] | None = None
        self._alias = ""
        self._place: database.Place | None = None
        self._entered = False
        self._timer: asyncio.TimerHandle | None = None
        self._lease = 0.0

    async def take(self, run: Run) -> None:
        """Wait for the turn. Raise SessionBusy if another run keeps it too long."""
        deadline = monotonic() + settings.SESSION_WAIT
        self._lease = settings.LEASE_SECONDS
        self._queued = queues.join(self.key)
        await self._wait_here(run, self._queued, deadline)
        try:
            await self._find_place()
            await self._wait_for_row(run, deadline)
        except (Interrupted, SessionBusy):
            raise
        except Exception as error:  # noqa: BLE001 - best effort: runs of this process still queue
            self._log(error)

    async def release(self, run: Run) -> None:
        """Give the turn back, or stop waiting for it."""
        if self._timer is not None:
            self._timer.cancel()
        if self._entered:
            writer.leave()
        try:
            if self._alias and run.status != LOST:  # else the turn is that of another process
                await self._do(
                    lambda: self._row().release_turn(run.uuid, _title(run)), RELEASE_TIMEOUT
                )
        except Exception as error:  # noqa: BLE001 - best effort: the turn ends by itself
            self._log(error)
        finally:
            if self._queued is not None:
                queues.leave(self.key, self._queued)
                self._queued = None

    # -- waiting --------------------------------------------------------------------------------

    async def _wait_here(self, run: Run, queued: Future[None], deadline: float) -> None:
        mine = asyncio.wrap_future(queued)
        while not queued.done():
            self._check(run, deadline)
            await asyncio.wait(
                [mine, run.watch.waker()],
                timeout=max(0, deadline - monotonic()),
                return_when=asyncio.FIRST_COMPLETED,
            )

    async def _wait_for_row(self, run: Run, deadline: float) -> None:
        poll = FIRST_POLL
        while not await self._do(lambda: self._take_turn(run), settings.SESSION_WAIT + 1):
            self._check(run, deadline)
            await asyncio.wait([run.watch.waker()], timeout=poll * random.uniform(0.5, 1))
            poll = min(poll * 1.6, LAST_POLL)
        if self._place is None:
            self._keep(run, asyncio.get_running_loop())

    def _check(self, run: Run, deadline: float) -> None:
        if run.aborted:
            raise Interrupted
        if monotonic() >= deadline:
            raise SessionBusy(
                f"Another run has the turn of the session {self.key.session_id!r} of "
                f"{self.key.agent} and did not end within {settings.SESSION_WAIT:g} seconds."
            )

    def _log(self, error: BaseException) -> None:
        reason = (str(error).splitlines() or [""])[0]
        logger.error(
            "The turn of the session %r of %s is kept in this process only: %s: %s",
            self.key.session_id,
            self.key.agent,
            type(error).__name__,
            reason,
        )

    # -- the row --------------------------------------------------------------------------------

    async def _find_place(self) -> None:
        """Decide on whose connection the row is written, as the journal does."""
        alias = database.alias()
        self._place = await database.place_of(alias)
        self._alias = alias
        if self._place is None:
            writer.enter()
            self._entered = True

    async def _do(self, function: Callable[[], Any], timeout: float) -> Any:
        if self._place is not None:
            return await self._place(partial(self._guarded, function))
        done = writer.send(self._alias, function)
        return await asyncio.wait_for(asyncio.wrap_future(done), timeout)

    def _guarded(self, function: Callable[[], Any]) -> Any:
        """Call a function so that an error of the database leaves the caller's block whole."""
        with transaction.atomic(using=self._alias):
            return function()

    def _take_turn(self, run: Run) -> bool:
        with transaction.atomic(using=self._alias):
            try:
                self.pk = self.pk or self._pk(run)
            except OperationalError as error:
                if getattr(error.__cause__, "sqlstate", "") == LOCK_NOT_AVAILABLE:
                    transaction.set_rollback(True, using=self._alias)
                    return False
                raise
            # A row that another transaction has locked is one that another run has.
            row = self._row()
            if connections[self._alias].features.has_select_for_update_skip_locked:
                row = row.filter(pk__in=list(self._unlocked()))
            taken: bool = row.take_turn(run.uuid, self._lease)
            return taken

    def _pk(self, run: Run) -> int:
        connection = connections[self._alias]
        if connection.vendor == "postgresql" and self._place is None:
            with connection.cursor() as cursor:
                cursor.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
        key, user = self.key, run.user
        row, _ = Session.objects.using(self._alias).get_or_create(
            agent=key.agent,
            owner_key=key.owner,
            key=key.session_id,
            defaults={
                "owner_id": user.pk if isinstance(user, get_user_model()) else None,
                "title": _title(run),
            },
        )
        return row.pk

    def _row(self) -> Any:
        assert self.pk is not None
        return Session.objects.using(self._alias).filter(pk=self.pk)

    def _unlocked(self) -> Any:
        return self._row().select_for_update(skip_locked=True).values_list("pk", flat=True)

    # -- keeping it -----------------------------------------------------------------------------

    def _keep(self, run: Run, loop: asyncio.AbstractEventLoop) -> None:
        """Renew the turn while the run goes on."""
        self._timer = loop.call_later(self._lease / 3, self._renew, run, loop)

    def _renew(self, run: Run, loop: asyncio.AbstractEventLoop) -> None:
        renewed = writer.send(self._alias, lambda: self._row().renew_turn(run.uuid, self._lease))
        renewed.add_done_callback(self._note)
        self._keep(run, loop)

    def _note(self, renewed: Future[bool]) -> None:
        error = renewed.exception()
        if error is not None:
            self._log(error)
        elif not renewed.result():
            self._log(SessionBusy("another run took the turn"))


def _title(run: Run) -> str:
    """Return what a session is called that begins with a run, as far as it may be told."""
    return redact(said_text(run.heard))[:MAX_TITLE] if run.capture_content else ""
