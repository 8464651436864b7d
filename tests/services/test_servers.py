"""One site on real servers, uvicorn, daphne and granian, with real clients."""

import json
import os
import re
import socket
import subprocess
import sys
from contextlib import contextmanager
from datetime import timedelta
from http.client import HTTPConnection
from itertools import islice

import pytest
from django.db import connection
from django.test import Client
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from mlango.models import Event, Trace
from tests.serve.site import make_user
from tests.services.processes import kill, until

pytestmark = pytest.mark.django_db(transaction=True)

APP = "tests.services.asgi:application"
COMMANDS = {
    "uvicorn": "uvicorn --port {port} --no-access-log",
    "daphne": "daphne --bind 127.0.0.1 --port {port}",
    "granian": "granian --interface asginl --port {port} --workers 1",
}
TOKEN = "a" * 32
SOON = 10  # seconds; at the next heartbeat, in 15, any server would notice that nobody reads
VOLATILE = re.compile(rb'[0-9a-f]{32}|"at": "[^"]*"|"(elapsed|duration_s)": [0-9.e-]+')
OF_THE_SERVER = {"connection", "date", "server", "transfer-encoding"}


class Server:
    """A process that serves the site, and what it has logged."""

    def __init__(self, name, folder):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.log = folder / f"{name}-{self.port}.log"
        command = [sys.executable, "-m", *COMMANDS[name].format(port=self.port).split(), APP]
        environment = os.environ | {
            "DJANGO_SETTINGS_MODULE": "tests.services.website",
            "SITE_DATABASE": str(connection.settings_dict["NAME"]),
        }
        with self.log.open("w") as output:
            self.process = subprocess.Popen(
                command, env=environment, stdout=output, stderr=output, start_new_session=True
            )

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


@pytest.fixture(scope="module")
def servers(django_db_setup, tmp_path_factory):
    started = {name: Server(name, tmp_path_factory.mktemp("servers")) for name in COMMANDS}
    yield started
    for server in started.values():
        kill(server.process)


@pytest.fixture
def cookies():
    client = Client()
    client.force_login(make_user())
    return f"sessionid={client.cookies['sessionid'].value}; csrftoken={TOKEN}"


@pytest.fixture
def visitor_of(servers, cookies):
    """Return a function that returns a visitor of a server by its name."""

    def visitor_of(name):
        until(servers[name].answers)
        return Visitor(servers[name], cookies)

    yield visitor_of
    for server in servers.values():
        assert "Traceback" not in server.log.read_text()


@pytest.fixture(params=COMMANDS)
def visitor(request, visitor_of):
    return visitor_of(request.param)


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
    while frame.get("kind") != "finished":
        frame = json.loads(ws.recv(timeout=60))
        yield frame


def is_cancelled(uuid):
    return Trace.objects.filter(pk=uuid, status="cancelled", ended_at__isnull=False).exists()


def texts_of(documents):
    return [each["text"] for each in documents if each["kind"] == "text_chunk"]


# -- streams ----------------------------------------------------------------------------------


def test_every_server_sends_the_same_bytes(visitor_of):
    def sent_by(name):
        with visitor_of(name).stream("speaker", 'use add {"a": 1, "b": 2}\nété 🌍') as response:
            headers = {name.lower(): value for name, value in response.getheaders()}
            body = VOLATILE.sub(b"", response.read())
        return {name: headers[name] for name in headers.keys() - OF_THE_SERVER}, body.splitlines()

    first, *others = map(sent_by, COMMANDS)

    assert first[0]["content-type"] == "text/event-stream"
    assert b"tool results: 3" in first[1][-2]
    for headers, lines in others:
        assert headers == first[0]
        assert lines == first[1]


def test_a_client_who_leaves_cancels_the_run(visitor):
    with visitor.stream("counter", "count") as response:
        started = json.loads(next(events_of(response))["data"])

    until(lambda: is_cancelled(started["run"]), SOON)


# daphne takes all that is sent into its memory, and waits for nobody.
@pytest.mark.parametrize("visitor", ["uvicorn", "granian"], indirect=True)
def test_a_client_who_reads_no_more_is_dropped_and_its_run_cancelled(visitor):
    with visitor.stream("shouter", "shout") as response:
        started = json.loads(next(events_of(response))["data"])

        until(lambda: is_cancelled(started["run"]), SOON)


def test_another_process_tells_the_rest_when_one_is_killed(visitor_of, cookies, tmp_path):
    doomed = Server("uvicorn", tmp_path)
    try:
        until(doomed.answers)
        with Visitor(doomed, cookies).stream("counter", "count") as response:
            seen = list(islice(events_of(response), 5))
            uuid = json.loads(seen[0]["data"])["run"]
            until(lambda: len(logged(uuid)) > 50)
            kill(doomed.process)
    finally:
        kill(doomed.process)

    with visitor_of("daphne").follow("counter", uuid, seen[-1]["id"]) as response:
        told = events_of(response)
        seen += islice(told, len(logged(uuid)) - len(seen))
        assert Trace.objects.mark_lost(timedelta(0)) == 1
        *rest, last = told

    documents = [json.loads(each["data"]) for each in (*seen, *rest)]
    assert [each["id"] for each in (*seen, *rest)] == list(map(str, range(len(documents))))
    assert texts_of(documents) == [f"{number} " for number in range(len(texts_of(documents)))]
    assert last["event"] == "failed"
    assert len(documents) > 50


def logged(uuid):
    return [each for row in Event.objects.filter(trace=uuid) for each in row.told()]


# -- WebSockets -------------------------------------------------------------------------------


def test_an_agent_answers_over_a_websocket(visitor):
    with visitor.socket("speaker") as ws:
        ws.send(json.dumps({"type": "send", "message": 'use add {"a": 1, "b": 2}'}))
        frames = list(frames_of(ws))

    assert [frame["id"] for frame in frames] == list(map(str, range(len(frames))))
    assert frames[-1]["output"] == "tool results: 3"


def test_a_lost_websocket_cancels_its_run_and_the_rest_is_told_elsewhere(visitor, visitor_of):
    with visitor.socket("counter") as ws:
        ws.send(json.dumps({"type": "send", "message": "count"}))
        seen = list(islice(frames_of(ws), 5))
    until(lambda: is_cancelled(seen[0]["run"]), SOON)

    with visitor_of("daphne").socket("counter") as ws:
        ws.send(json.dumps({"type": "follow", "run": seen[0]["run"], "after": seen[-1]["id"]}))
        seen += frames_of(ws)

    assert [frame["id"] for frame in seen] == list(map(str, range(len(seen))))
    assert texts_of(seen) == [f"{number} " for number in range(len(texts_of(seen)))]
    assert seen[-1]["status"] == "cancelled"


@pytest.mark.parametrize("visitor", ["uvicorn", "granian"], indirect=True)
def test_a_websocket_of_which_nothing_is_read_is_dropped_and_its_run_cancelled(visitor):
    with visitor.socket("shouter") as ws:
        ws.send(json.dumps({"type": "send", "message": "shout"}))
        started = next(frames_of(ws))

        until(lambda: is_cancelled(started["run"]), SOON)


@pytest.mark.parametrize(("path", "is_known"), [("speaker", False), ("nowhere", True)])
def test_a_websocket_is_refused_to_nobody_and_nowhere(visitor, path, is_known):
    if not is_known:
        visitor.cookies = ""

    with pytest.raises(InvalidStatus) as caught, visitor.socket(path):
        pass

    assert caught.value.response.status_code in (401, 403, 404)
