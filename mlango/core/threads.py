"""Blocking functions, run off the event loop.

``in_thread`` keeps to the one thread that owns the caller's database connections;
``in_pool`` runs in parallel. A StopIteration that left a thread would hang its awaiter for
ever, and a GeneratorExit close it, so both turn these into a RuntimeError.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from asgiref.sync import _restore_context, sync_to_async

UNRAISABLE = (StopIteration, StopAsyncIteration, GeneratorExit)

# Called in a pool's thread after each call; the Django side closes connections there.
after_pool_call: list[Callable[[], None]] = []


def _guarded(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    try:
        return function(*args, **kwargs)
    except UNRAISABLE as error:
        raise RuntimeError(f"{type(error).__name__}: {error}") from error


def raised(error: BaseException) -> BaseException:
    """Return what a function raised, if it was turned into a RuntimeError on its way."""
    # Coroutines and generators do so too, by themselves.
    cause = error.__cause__
    if isinstance(error, RuntimeError) and isinstance(cause, UNRAISABLE):
        return cause
    return error


def settle(context: contextvars.Context) -> None:
    """Make a context from another thread this thread's own.

    Django keeps the language, the time zone and more in asgiref's Local, whose values are
    marked with their thread and seen in no other; asgiref's own bridges do the same as this.
    """
    context.run(_settle)


def _settle() -> None:
    _restore_context(contextvars.copy_context())


_sensitively = sync_to_async(_guarded, thread_sensitive=True)  # made once, as that takes a while


async def in_thread(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call ``function`` in the thread-sensitive thread of the current context."""
    return await _sensitively(function, args, kwargs)


def _pooled(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    _settle()
    try:
        return _guarded(function, args, kwargs)
    finally:
        for clean in after_pool_call:
            clean()


class Pool:
    """The threads for blocking functions that may run side by side; made at first use."""

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None
        self.workers = 32

    def executor(self) -> ThreadPoolExecutor:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self.workers, thread_name_prefix="mlango-pool")
        return self._executor


pool = Pool()


async def in_pool(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call ``function`` in a pool's thread, in a copy of the current context."""
    context = contextvars.copy_context()
    call = partial(context.run, _pooled, function, args, kwargs)
    return await asyncio.get_running_loop().run_in_executor(pool.executor(), call)
