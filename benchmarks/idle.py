"""Memory of each stream that is open and idle, with two thousand of them in one process.

    python benchmarks/idle.py

Each kind of stream has a server of its own, whose resident memory is read before they are
opened and when all have had their first word. The floor is a raw ASGI application that sends
a few frames and waits.
"""

import asyncio
import resource
import sys
from pathlib import Path

import sse

STREAMS, WARM = 2000, 100
APPS = ("raw", "direct", "django")


def memory_of(pid):
    """Return the resident memory of a process, in KiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


async def opened(port, asked):
    """Ask for a stream, and return its connection when the first word has come."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(asked)
    await reader.readuntil(b"event: text_chunk")
    return writer


async def several(count, port, asked, at_once=50):
    """Open so many streams, a few at a time."""
    left = asyncio.Semaphore(at_once)

    async def one():
        async with left:
            return await opened(port, asked)

    return await asyncio.gather(*(one() for _ in range(count)))


async def measured(app, pid, port, cookie, token):
    """Return the KiB of each stream."""
    asked = sse.request(f"/{app}/idle", cookie, token)
    warm = await several(WARM, port, asked)  # what is loaded once is no stream's
    before = memory_of(pid)
    streams = await several(STREAMS, port, asked)
    after = memory_of(pid)
    for writer in (*warm, *streams):
        writer.close()
    return (after - before) / STREAMS


def main():
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # the servers inherit it
    print(f"memory of an idle stream, {STREAMS} at once")
    floor = 0.0
    for app in APPS:
        with sse.site() as told:
            each = asyncio.run(measured(app, *told))
        floor = floor or each
        print(f"  {app:8} {each:7.1f} KiB {each / floor:5.2f} x", flush=True)


if __name__ == "__main__":
    sys.exit(main())
