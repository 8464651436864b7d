"""Code of the project inside a run: plain or async, in the run's thread, within its time."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from mlango.core.run import Run
from mlango.core.threads import in_thread


async def called(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function returns. A plain one runs in the thread of the context."""
    if inspect.iscoroutinefunction(function):
        return await function(*arguments)
    value = await in_thread(function, *arguments)
    return await value if inspect.isawaitable(value) else value


async def called_in(run: Run, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function returns, between two steps of a run.

    When the run's time is up or it is stopped, what the function does is left behind.
    """
    task = run.spawn(called(function, *arguments))
    try:
        return await run.watch.wait(asyncio.shield(task), run.deadline)
    except BaseException:
        run.leave_behind(task)
        # A thread cannot be cancelled, and its end is to be known.
        if inspect.iscoroutinefunction(function):
            task.cancel()
        raise
