"""Servers that are killed while they stream, and the readers who come back to another one."""

import json
import sys
from contextlib import contextmanager
from datetime import timedelta
from itertools import islice

import pytest

from mlango.models import DurableRun, Event, Trace
from tests.services.processes import kill, until
from tests.services.servers import Server, Visitor, events_of, frames_of, started, texts_of

pytestmark = pytest.mark.django_db(transaction=True)


class Streams:
    """Talks with agents as a page that reads server-sent events."""

    @contextmanager
    def begin(self, visitor, agent, message):
        with visitor.stream(agent, message) as response:
            yield documents_of(response)

    @contextmanager
    def follow(self, visitor, agent, uuid, after):
        with visitor.follow(agent, uuid, after) as response:
            yield documents_of(response)


class Sockets:
    """Talks with agents over WebSockets."""

    @contextmanager
    def begin(self, visitor, agent, message):
        with visitor.socket(agent) as ws:
            ws.send(json.dumps({"type": "send", "message": message}))
            yield frames_of(ws)

    @contextmanager
    def follow(self, visitor, agent, uuid, after):
        with visitor.socket(agent) as ws:
            ws.send(json.dumps({"type": "follow", "run": uuid, "after": after}))
            yield frames_of(ws)


def documents_of(response):
    """Yield the events of a stream as a socket has them."""
    for event in events_of(response):
        yield {"id": event["id"], **json.loads(event["data"])}


@pytest.fixture(params=[Streams, Sockets])
def way(request):
    return request.param()


@pytest.fixture
def doomed(cookies, tmp_path):
    """A visitor of a server that a test may kill."""
    server = Server("uvicorn", tmp_path)
    try:
        until(server.answers)
        yield Visitor(server, cookies)
    finally:
        kill(server.process)


@contextmanager
def worker(tmp_path):
    """Have a process do durable runs."""
    log = tmp_path / "worker.log"
    with log.open("w") as output:
        process = started([sys.executable, "-m", "django", "agentworker"], stderr=output)
    try:
        until(lambda: "Doing runs" in log.read_text())
        yield
    finally:
        kill(process)


def logged(uuid):
    """Return the events of a run as a socket has them."""
    told = [each for row in Event.objects.filter(trace=uuid) for each in row.told()]
    return [{"id": str(each.cursor), **each.describe()} for each in told]


def test_another_server_tells_the_rest_of_what_a_killed_one_did(way, doomed, visitor_of):
    with way.begin(doomed, "counter", "count") as told:
        seen = list(islice(told, 5))
        uuid = seen[0]["run"]
        until(lambda: len(logged(uuid)) > 50)
        kill(doomed.server.process)

    with way.follow(visitor_of("daphne"), "counter", uuid, seen[-1]["id"]) as told:
        seen += islice(told, len(logged(uuid)) - len(seen))
        assert Trace.objects.mark_lost(timedelta(0)) == 1
        *rest, last = told

    seen += rest
    assert [each["id"] for each in seen] == list(map(str, range(len(seen))))
    assert texts_of(seen) == [f"{number} " for number in range(len(texts_of(seen)))]
    assert last["kind"] == "failed"
    assert len(seen) > 50


def test_a_durable_run_outlives_its_server_and_is_told_whole(way, doomed, visitor_of, tmp_path):
    end = tmp_path / "end"
    with way.begin(doomed, "reciter", str(end)) as told:
        seen = read_to("text_chunk", told)
        kill(doomed.server.process)

    with (
        worker(tmp_path),
        way.follow(visitor_of("daphne"), "reciter", seen[0]["run"], seen[-1]["id"]) as told,
    ):
        seen += read_to("thinking", told)
        end.touch()
        seen += told

    assert_is_whole(seen)
    assert [each["kind"] for each in seen].count("started") == 2  # the attempts
    assert DurableRun.objects.get().token == 2


def test_a_worker_goes_on_when_the_server_is_killed_that_told_its_run(
    way, doomed, visitor_of, tmp_path
):
    end = tmp_path / "end"
    with worker(tmp_path), way.begin(doomed, "reciter", str(end)) as told:
        seen = read_to("text_chunk", told)
        kill(doomed.server.process)
        with way.follow(visitor_of("granian"), "reciter", seen[0]["run"], seen[-1]["id"]) as told:
            end.touch()
            seen += told

    assert_is_whole(seen)
    assert [each["kind"] for each in seen].count("started") == 1
    assert DurableRun.objects.get().token == 1


def read_to(kind, told):
    """Return the events up to the first of a kind."""
    seen = [next(told)]
    while seen[-1]["kind"] != kind:
        seen.append(next(told))
    return seen


def assert_is_whole(seen):
    """Check that a reader has seen each event of a durable run once, and it did all once."""
    assert seen == logged(seen[0]["run"])
    assert [each["seq"] for each in seen] == sorted(each["seq"] for each in seen)
    assert [each["kind"] for each in seen].count("tool_finished") == 1
    assert seen[-1]["status"] == "finished"
    begun_last = max(n for n, each in enumerate(seen) if each["kind"] == "thinking")
    assert "".join(texts_of(seen[begun_last:])) == seen[-1]["output"]
