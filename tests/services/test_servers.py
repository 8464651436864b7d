"""One site on real servers, uvicorn, daphne and granian, with real clients."""

import json
import re
from itertools import islice

import pytest
from websockets.exceptions import InvalidStatus

from mlango.models import Trace
from tests.services.processes import until
from tests.services.servers import COMMANDS, events_of, frames_of, texts_of

pytestmark = pytest.mark.django_db(transaction=True)

SOON = 10  # seconds; at the next heartbeat, in 15, any server would notice that nobody reads
VOLATILE = re.compile(rb'[0-9a-f]{32}|"at": "[^"]*"|"(elapsed|duration_s)": [0-9.e-]+')
OF_THE_SERVER = {"connection", "date", "server", "transfer-encoding"}


def is_cancelled(uuid):
    return Trace.objects.filter(pk=uuid, status="cancelled", ended_at__isnull=False).exists()


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
