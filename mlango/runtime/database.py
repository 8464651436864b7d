"""Where the rows of a run are written: which database, and in whose transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from asgiref.sync import AsyncToSync, SyncToAsync
from django.db import connections, router

from mlango.core.run import Run
from mlango.core.threads import in_pool, in_thread
from mlango.models import Trace
from mlango.runtime.sync import Caller

T = TypeVar("T")

# Calls a function where it sees a transaction, and returns its result.
Place = Callable[[Callable[[], Any]], Awaitable[Any]]


def alias() -> str:
    """Return the alias of the database that holds the rows."""
    return router.db_for_write(Trace)


async def place_of(alias: str) -> Place | None:
    """Return the place whose transaction the rows of the current run belong to.

    It is None where there is no transaction, so that any connection will do.
    """
    with _loop_hidden():
        loop_was_started_in_a_transaction = in_transaction(alias)
    if loop_was_started_in_a_transaction:
        return _in_loop
    if is_in_memory(alias) or (has_caller() and await in_thread(in_transaction, alias)):
        return in_thread
    return None


async def ask(function: Callable[..., T], /, *args: Any) -> T:
    """Call a function that asks the database, in the caller's transaction if he has one.

    No connection stays open after it: a caller's thread has his connection, and a pool's
    thread gives its own back at once.
    """
    place = await place_of(alias())
    if place is None:
        place = in_thread if has_caller() else in_pool
    result: T = await place(partial(function, *args))
    return result


async def write(run: Run, function: Callable[..., T], /, *args: Any) -> T:
    """Call a function that writes rows for a run, while this process may write for it."""
    return await (run.journal.do if run.journal.saves else ask)(function, *args)


def has_caller() -> bool:
    """Return whether plain code waits for the current task, and works for it meanwhile."""
    if getattr(AsyncToSync.executors, "current", None) is not None:
        return True
    sensitive = SyncToAsync.thread_sensitive_context.get(None)
    executors = SyncToAsync.context_to_thread_executor
    return sensitive is not None and isinstance(executors.get(sensitive), Caller)


def is_in_memory(alias: str) -> bool:
    """Return whether a database is SQLite's in memory, which another thread cannot share."""
    name = str(connections.settings[alias]["NAME"])
    return name == ":memory:" or "mode=memory" in name


def in_transaction(alias: str) -> bool:
    """Return whether this thread is inside ``transaction.atomic()``."""
    opened = connections.all(initialized_only=True)
    return any(connection.alias == alias and connection.in_atomic_block for connection in opened)


async def _in_loop(function: Callable[[], Any]) -> Any:
    """Call a function in the event loop's own thread, while the loop stands still."""
    with _loop_hidden():
        return function()


@contextmanager
def _loop_hidden() -> Iterator[None]:
    """Let Django see this thread as it was before the event loop was started in it.

    A loop that was started inside ``atomic()``, as for an async test, has the transaction in
    its own thread, and Django hides connections from code under a running loop.
    """
    loop = asyncio.get_running_loop()
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(loop)
