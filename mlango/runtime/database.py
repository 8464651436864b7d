"""Where the rows of a run are written: which database, and on whose connection."""

from __future__ import annotations

from asgiref.sync import AsyncToSync, SyncToAsync
from django.db import connections, router

from mlango.models import Trace
from mlango.runtime.sync import Caller


def alias() -> str:
    """Return the alias of the database that holds the rows."""
    return router.db_for_write(Trace)


def has_caller() -> bool:
    """Return whether plain code waits for the current task, and works for it meanwhile."""
    if getattr(AsyncToSync.executors, "current", None) is not None:
        return True
    sensitive = SyncToAsync.thread_sensitive_context.get(None)
    executors = SyncToAsync.context_to_thread_executor
    return sensitive is not None and isinstance(executors.get(sensitive), Caller)


def is_in_memory(alias: str) -> bool:
    """Return whether a database is SQLite's in memory, which another thread cannot share."""
    connection = connections[alias]
    return connection.vendor == "sqlite" and connection.is_in_memory_db()  # type: ignore[attr-defined]


def in_transaction(alias: str) -> bool:
    """Return whether the current thread is inside ``transaction.atomic()``."""
    return connections[alias].in_atomic_block
