"""Memory of each open stream on which nothing happens: its run waits for the model.

    python benchmarks/idle_streams.py

The floor is a raw ASGI application that has sent a few events and then waits.
"""

import asyncio
import resource
from pathlib import Path

from sse import request, site

COUNT = 2000
STEP = 50  # that are opened at once
APPS = ("raw", "direct", "django")


def rss_of(pid):
    """Return the KiB of memory that a process holds."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


async def opened(port, asked, count):
    """Open streams and wait for the first events of each; return the connections."""
    pairs = [await asyncio.open_connection("127.0.0.1", port) for _ in range(count)]
    for _, writer in pairs:
        writer.write(asked)
    for reader, _ in pairs:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in head, head
        await reader.readuntil(b"event: thinking")
    return pairs


async def measured(pid, port, asked):
    """Return the KiB that one more open stream takes."""
    pairs = await opened(port, asked, STEP)  # what is made once
    before = rss_of(pid)
    for _ in range(COUNT // STEP):
        pairs += await opened(port, asked, STEP)
    used = (rss_of(pid) - before) / COUNT
    for _, writer in pairs:
        writer.close()
    return used


def main():
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    print(f"an idle stream, {COUNT} open in one process")
    floor = None
    for name in APPS:
        with site() as (pid, port, cookie, token):
            asked = request(f"/{name}/idle", cookie, token)
            used = asyncio.run(measured(pid, port, asked))
        floor = floor or used
        print(f"  {name:8} {used:7.1f} KiB {used / floor:5.2f} x")


main()
