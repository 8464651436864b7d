"""The queue of ``manage.py agentworker``, which looks into the table, and needs no broker."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from django.db import Error, connections, router

from mlango.agents.queues.base import Queue
from mlango.models import DurableRun as Row

if TYPE_CHECKING:
    from mlango.models import DurableRun

logger = logging.getLogger("mlango.durable")

CHANNEL = "mlango_runs"
HEAR = 1.0  # seconds to listen before looking whether to go on
REST = 5.0  # seconds until the next attempt to listen


class DatabaseQueue(Queue):
    """Wakes workers by NOTIFY on PostgreSQL; elsewhere they look once a second."""

    def ring(self, run: DurableRun) -> None:
        connection = connections[router.db_for_write(Row)]
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_notify(%s, %s)", [CHANNEL, run.queue])


class Bell:
    """Listens for NOTIFY in a thread of its own, where the database can do that."""

    def __init__(self, queue: str, heard: Callable[[], Any]) -> None:
        self._queue = queue
        self._heard = heard
        self._ended = threading.Event()
        self._alias = router.db_for_write(Row)
        self._thread = threading.Thread(target=self._listen, name="mlango-bell", daemon=True)

    def start(self) -> None:
        if connections[self._alias].vendor == "postgresql":
            self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(HEAR + 1)

    def _listen(self) -> None:
        while not self._ended.is_set():
            connection = connections[self._alias].copy()
            try:
                with connection.cursor() as cursor:
                    cursor.execute(f"LISTEN {CHANNEL}")
                with connection.wrap_database_errors:  # of the driver, which is asked itself
                    self._hear(connection.connection)
            except Error as error:
                logger.info("The worker cannot listen, so it looks: %s", type(error).__name__)
                self._ended.wait(REST)
            finally:
                connection.close()

    def _hear(self, driver: Any) -> None:
        while not self._ended.is_set():
            for notice in driver.notifies(timeout=HEAR):
                if notice.payload == self._queue:
                    self._heard()
