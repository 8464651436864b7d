"""One HTTP session per event loop, shared by the providers and closed with the loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import aiohttp

MAX_CONNECTIONS = 1000
CONNECT_TIMEOUT = 30.0

Close = Callable[[], Awaitable[None]]
_sessions: dict[asyncio.AbstractEventLoop, aiohttp.ClientSession] = {}
_ends: dict[tuple[asyncio.AbstractEventLoop, Close], AsyncGenerator[None]] = {}


async def session() -> aiohttp.ClientSession:
    """Return the session of the running loop."""
    loop = asyncio.get_running_loop()
    kept = _sessions.get(loop)
    if kept is None or kept.closed:
        _sessions[loop] = kept = _made()
        await close_with_loop(close)
    return kept


async def close() -> None:
    """Close the session of the running loop."""
    kept = _sessions.pop(asyncio.get_running_loop(), None)
    if kept is not None:
        await kept.close()


async def close_with_loop(close: Close) -> None:
    """Have ``close`` called when the running loop is shut down, once however often this is."""
    key = (asyncio.get_running_loop(), close)
    if key not in _ends:
        _forget_closed_loops()
        _ends[key] = end = _end(*key)
        await anext(end)


async def _end(loop: asyncio.AbstractEventLoop, close: Close) -> AsyncGenerator[None]:
    # A loop that is shut down closes its asynchronous generators.
    try:
        yield
    finally:
        _ends.pop((loop, close), None)
        await close()


def _made() -> aiohttp.ClientSession:
    # Only a process that calls a model needs this package, which takes 0.3 s to load.
    import aiohttp

    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=MAX_CONNECTIONS),
        # The run's own clock watches the answer.
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"Accept": "text/event-stream"},
    )


def _forget_closed_loops() -> None:
    for loop in [loop for loop in _sessions if loop.is_closed()]:
        del _sessions[loop]
    for key in [key for key in _ends if key[0].is_closed()]:
        del _ends[key]
