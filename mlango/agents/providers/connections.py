"""One HTTP session per event loop, shared by the providers and closed with the loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import aiohttp

MAX_CONNECTIONS = 1000
CONNECT_TIMEOUT = 30.0

Keeper = AsyncGenerator["aiohttp.ClientSession", None]
_sessions: dict[asyncio.AbstractEventLoop, tuple[aiohttp.ClientSession, Keeper]] = {}


async def session() -> aiohttp.ClientSession:
    """Return the session of the running loop."""
    loop = asyncio.get_running_loop()
    kept = _sessions.get(loop)
    if kept is None or kept[0].closed:
        _forget_closed_loops()
        keeper = _keep()
        _sessions[loop] = kept = (await anext(keeper), keeper)
    return kept[0]


async def close() -> None:
    """Close the session of the running loop."""
    kept = _sessions.pop(asyncio.get_running_loop(), None)
    if kept is not None:
        await kept[1].aclose()


async def _keep() -> Keeper:
    # A loop that is shut down closes its asynchronous generators, and so this session.
    made = _made()
    try:
        yield made
    finally:
        _sessions.pop(asyncio.get_running_loop(), None)
        await made.close()


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
