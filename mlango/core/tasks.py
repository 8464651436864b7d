"""Tasks that start at once: most of what a run starts ends without having to wait."""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def failure_of(error: BaseException) -> Exception | None:
    """Return the failure that an exception stands for; None for one that is what it says.

    Code of others may call sys.exit(), which would end the event loop and leave whoever waits
    for it hanging, or let through that something of its own was cancelled or closed.
    """
    if isinstance(error, Exception):
        return None
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        if task is None or task.cancelling():
            return None
    elif isinstance(error, GeneratorExit) and not _is_in_task():  # its event loop has ended
        return None
    return RuntimeError(f"{type(error).__name__}: {error}")


def _is_in_task() -> bool:
    try:
        return asyncio.current_task() is not None
    except RuntimeError:
        return False


async def contained(coroutine: Coroutine[Any, Any, T]) -> T:
    """Await code of others; what it may not raise is a RuntimeError."""
    try:
        return await coroutine
    except BaseException as error:
        if failure := failure_of(error):
            raise failure from error
        raise


if sys.version_info >= (3, 12):

    def start(coroutine: Coroutine[Any, Any, T], context: contextvars.Context) -> asyncio.Task[T]:
        """Start a task in a copy of ``context``; it runs at once, up to its first wait."""
        loop = asyncio.get_running_loop()
        return asyncio.Task(coroutine, loop=loop, context=context.copy(), eager_start=True)

else:
    from asyncio.tasks import _enter_task, _leave_task, current_task

    def start(coroutine: Coroutine[Any, Any, T], context: contextvars.Context) -> asyncio.Task[T]:
        """Start a task in a copy of ``context``; it runs at once, up to its first wait.

        A task asks its loop to call its first step soon. Here that step is taken from it
        and called now, as another task's would be: with itself as the current task.
        """
        loop: Any = asyncio.get_running_loop()
        outer, own = current_task(loop), context.copy()
        steps: list[Callable[[], None]] = []

        def call_soon(step: Callable[[], None], *, context: contextvars.Context) -> None:
            steps.append(step)

        loop.call_soon = call_soon
        try:
            task = asyncio.Task(coroutine, loop=loop, context=own)
        finally:
            del loop.call_soon
        if outer is not None:
            _leave_task(loop, outer)
        try:
            own.run(*steps)
        finally:
            if outer is not None:
                _enter_task(loop, outer)
        return task
