"""Tasks that start at once, where Python can do that."""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

if sys.version_info >= (3, 12):

    def start(coroutine: Coroutine[Any, Any, T], context: contextvars.Context) -> asyncio.Task[T]:
        """Start a task in a copy of ``context``; it runs at once, up to its first wait."""
        loop = asyncio.get_running_loop()
        return asyncio.Task(coroutine, loop=loop, context=context.copy(), eager_start=True)

else:

    def start(coroutine: Coroutine[Any, Any, T], context: contextvars.Context) -> asyncio.Task[T]:
        """Start a task in a copy of ``context``."""
        return asyncio.get_running_loop().create_task(coroutine, context=context.copy())
