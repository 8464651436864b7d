"""One site on real servers, and clients of theirs."""

import json
import os
import socket
import subprocess
import sys
from contextlib import contextmanager
from http.client import HTTPConnection

from django.db import connection
from websockets.sync.client import connect

APP = "tests.services.asgi:application"
COMMANDS = {
    "uvicorn": "uvicorn --port {port} --no-access-log",
    "daphne": "daphne --bind 127.0.0.1 --port {port}",
    "granian": "granian --interface asginl --port {port} --workers 1",
}
TOKEN = "a" * 32


def started(command, **options):
    """Start a process of the site, on the database of the tests."""
    environment = os.environ | {
        "DJANGO_SETTINGS_MODULE": "tests.services.website",
        "SITE_DATABASE": str(connection.settings_dict["NAME"]),
    }
    return subprocess.Popen(command, env=environment, start_new_session=True, **options)


class Server:
    """A process that serves the site, and what it has logged."""

    def __init__(self, name, folder):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.log = folder / f"{name}-{self.port}.log"
        command = [sys.executable, "-m", *COMMANDS[name].format(port=self.port).split(), APP]
        with self.log.open("w") as output:
            self.process = started(command, stdout=output, stderr=output)

    def answers(self):
        assert self.process.poll() is None, self.log.read_text()
        try:
            with self.asked("GET", "/health") as response:
                return response.status == 200
        except ConnectionError:
            return False

    @contextmanager
    def asked(self, method, url, body=None, **headers):
        """Send a request and yield the answer; the client leaves with the block."""
        client = HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            client.request(method, url, body, headers)
            with client.getresponse() as response:
                yield response
        finally:
            client.close()


class Visitor:
    """A client of a server, with the cookies of who is logged in."""

    def __init__(self, server, cookies):
        self.server = server
        self.cookies = cookies

    def stream(self, agent, message):
        """Have an agent run, and read its events."""
        return self.server.asked(
            "POST",
            f"/{agent}/stream/",
            json.dumps({"message": message}),
            **{"Content-Type": "application/json", "X-CSRFToken": TOKEN, "Cookie": self.cookies},
        )

    def follow(self, agent, uuid, last):
        """Come back to a run, behind the event that was read last."""
        headers = {"Last-Event-ID": last, "Cookie": self.cookies}
        return self.server.asked("GET", f"/{agent}/runs/{uuid}/events/", **headers)

    def socket(self, path):
        """Open a WebSocket as a page of the site does."""
        address = f"127.0.0.1:{self.server.port}"
        return connect(
            f"ws://{address}/ws/{path}/",
            origin=f"http://{address}",
            additional_headers={"Cookie": self.cookies},
            proxy=None,
            close_timeout=0.2,
        )


def events_of(response):
    """Yield the events of a stream as they come."""
    assert response.status == 200, response.read()
    pending = b""
    while data := response.read1():
        *blocks, pending = (pending + data).split(b"\n\n")
        for block in blocks:
            if not block.startswith(b":"):
                yield dict(line.split(": ", 1) for line in block.decode().split("\n"))


def frames_of(ws):
    """Yield the frames that a server sends, up to the last event of a run."""
    frame = {}
    while frame.get("kind") not in ("finished", "failed"):
        frame = json.loads(ws.recv(timeout=60))
        yield frame


def texts_of(documents):
    return [each["text"] for each in documents if each["kind"] == "text_chunk"]
