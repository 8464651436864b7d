"""A proxy before PostgreSQL that breaks a connection at the n-th request which comes through it.

A request is what the server answers at one go: a simple query, or the messages up to a Sync.
"""

import asyncio
import threading
from contextlib import contextmanager, suppress

NO_ENCRYPTION = (80877103, 80877104)  # codes of the requests for SSL and GSSAPI
SYNC, QUERY, READY = b"S", b"Q", b"Z"

LOST_REQUEST = "the request is lost"
LOST_ANSWER = "the answer is lost"


class Proxy:
    """Stands before a server, in a thread of its own. ``port`` is where to find it."""

    def __init__(self, host, port):
        self._server = host, port
        self._loop = asyncio.new_event_loop()
        self._ended = asyncio.Event()
        self._links = set()
        self.count = self.fatal = self.port = 0
        self.fault = ""

    def meet(self, fatal, fault):
        """Have the n-th request from now on meet a fault."""
        self.count, self.fatal, self.fault = 0, fatal, fault

    @property
    def is_met(self):
        """Whether there were that many requests."""
        return self.count >= self.fatal

    def _cut(self):
        for link in [*self._links]:
            link.cut()

    @contextmanager
    def running(self):
        """Let connections come through."""
        ready = threading.Event()
        thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(ready),))
        thread.start()
        ready.wait()
        try:
            yield self
        finally:
            self._loop.call_soon_threadsafe(self._ended.set)
            thread.join()
            self._loop.close()

    async def _serve(self, ready):
        server = await asyncio.start_server(self._link, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        await self._ended.wait()
        server.close()
        self._cut()
        while self._links:  # noqa: ASYNC110 - they end at once
            await asyncio.sleep(0)

    async def _link(self, reader, writer):
        link = Link(self, reader, writer)
        self._links.add(link)
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                await link.open(*self._server)
        finally:
            link.cut()
            self._links.discard(link)

    def next(self):
        """Count a request, and return what happens to it."""
        self.count += 1
        return self.fault if self.count == self.fatal else ""


class Link:
    """One connection through the proxy."""

    def __init__(self, proxy, reader, writer):
        self._proxy = proxy
        self._client = reader, writer
        self._server = None
        self._is_deaf = False  # whether the next answer is lost

    def cut(self):
        """Close it as a broken network does."""
        for _, writer in (self._client, self._server or self._client):
            writer.transport.abort()

    async def open(self, host, port):
        """Pass on what is said until somebody hangs up."""
        reader, writer = self._client
        head = await reader.readexactly(8)
        while int.from_bytes(head[4:]) in NO_ENCRYPTION:
            writer.write(b"N")
            head = await reader.readexactly(8)
        self._server = await asyncio.open_connection(host, port)
        self._server[1].write(head + await reader.readexactly(int.from_bytes(head[:4]) - 8))
        answers = asyncio.ensure_future(self._pass_answers())
        try:
            await self._pass_requests()
        finally:
            self.cut()
            with suppress(OSError, asyncio.IncompleteReadError):
                await answers

    async def _pass_requests(self):
        reader, writer = self._client[0], self._server[1]
        request = b""
        while True:
            kind, message = await _message(reader)
            request += message
            if kind in (QUERY, SYNC):
                await self._pass_request(writer, request)
                request = b""
            elif kind not in (b"P", b"B", b"D", b"E", b"C", b"H"):  # as a password, or the end
                writer.write(request)
                request = b""

    async def _pass_request(self, writer, request):
        fault = self._proxy.next()
        if fault == LOST_REQUEST:
            self.cut()
        else:
            self._is_deaf = fault == LOST_ANSWER
            writer.write(request)

    async def _pass_answers(self):
        reader, writer = self._server[0], self._client[1]
        while True:
            kind, message = await _message(reader)
            if not self._is_deaf:
                writer.write(message)
            elif kind == READY:
                self.cut()


async def _message(reader):
    """Return the kind of the next message, and all of it."""
    head = await reader.readexactly(5)
    return head[:1], head + await reader.readexactly(int.from_bytes(head[1:]) - 4)
