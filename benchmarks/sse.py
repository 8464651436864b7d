"""CPU time of each event that a server sends, and how long a stream takes, with 64 clients.

    python benchmarks/sse.py

The floor is a raw ASGI application that sends the same bytes; it knows no user and no run.
"""

import asyncio
import json
import os
import statistics
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen

CLIENTS = 64
ROUNDS = 7
APPS = ("raw", "bytes", "direct", "django")
LAST = b"0\r\n\r\n"
TICK = os.sysconf("SC_CLK_TCK")


@contextmanager
def site():
    """Run the site in a process of its own; yield its process id and what it tells."""
    program = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("streaming.py"))]
    with Popen(program, stdout=PIPE, text=True) as process:
        try:
            port, cookie, token = process.stdout.readline().strip().split("|")
            yield process.pid, int(port), cookie, token
        finally:
            process.terminate()


def request(path, cookie, token):
    body = json.dumps({"message": "hi"})
    return (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        f"Cookie: {cookie}\r\nX-CSRFToken: {token}\r\n\r\n{body}"
    ).encode()


def cpu_of(pid):
    """Return the seconds of CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


async def stream(connection, asked):
    """Ask on an open connection, read to the end; return the events and the time it took."""
    reader, writer = connection
    began, count, tail = time.perf_counter(), 0, b""
    writer.write(asked)
    while True:
        data = await reader.read(2**16)
        assert data, "The server closed the connection."
        both = tail + data
        count += both.count(b"\ndata: ") - tail.count(b"\ndata: ")
        tail = both[-8:]
        if both.endswith(LAST):
            assert count > 200, both[-2000:]
            return count, time.perf_counter() - began


async def measured(pid, port, asked, each=3):
    """Have all clients read some streams; return the CPU time of an event, and p50 and p99."""

    async def client(connection):
        return [await stream(connection, asked) for _ in range(each)]

    opened = [asyncio.open_connection("127.0.0.1", port) for _ in range(CLIENTS)]
    connections = await asyncio.gather(*opened)
    before = cpu_of(pid)
    streams = [each for own in await asyncio.gather(*map(client, connections)) for each in own]
    used = cpu_of(pid) - before
    for _, writer in connections:
        writer.close()
    times = sorted(took for _, took in streams)
    p50, p99 = (times[int(len(times) * part)] for part in (0.5, 0.99))
    return used / sum(count for count, _ in streams), p50, p99


async def main(pid, port, cookie, token):
    asked = {name: request(f"/{name}/words", cookie, token) for name in APPS}
    rounds = [
        {name: await measured(pid, port, asked[name]) for name in APPS}
        for _ in range(ROUNDS + 1)  # the first one warms up
    ][1:]
    print(f"an event of a stream, {CLIENTS} clients")
    for name in APPS:
        figures = [[each[name][i] for each in rounds] for i in range(3)]
        floors = [[each["raw"][i] for each in rounds] for i in range(3)]
        cpu, p50, p99 = map(shown, figures, floors, (1e6, 1e3, 1e3))
        print(f"  {name:8} CPU {cpu} us   a stream: p50 {p50} ms   p99 {p99} ms")


def shown(own, floor, unit):
    """Return a median, and the median of the rounds' ratios to the floor."""
    ratio = statistics.median(a / b for a, b in zip(own, floor, strict=True))
    return f"{statistics.median(own) * unit:7.1f} {ratio:5.2f} x"


if __name__ == "__main__":
    with site() as told:
        asyncio.run(main(*told))
