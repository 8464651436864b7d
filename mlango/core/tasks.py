"""Tasks that start at once: most of what a run starts ends without having to wait."""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

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
