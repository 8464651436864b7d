"""The endpoint that tells a run's events again and goes on with them."""

import asyncio
import json

import pytest
from django.db import connections
from django.test import AsyncClient, Client, override_settings

from mlango.agents import Agent
from mlango.models import Event, Trace
from mlango.runtime.following import asker
from mlango.serve import batches, include, path
from mlango.serve.owned import own_trace
from mlango.serve.problems import Problem
from tests.serve.site import make_user

pytestmark = pytest.mark.django_db(transaction=True)


class Replayed(Agent):
    class Meta:
        app_label = "served"


class Other(Agent):
    class Meta:
        app_label = "served"


urlpatterns = [
    path("replayed/", include(Replayed.urls)),
    path("other/", include(Other.urls)),
]

served = override_settings(ROOT_URLCONF=__name__)


@pytest.fixture(autouse=True)
def _site():
    with served:
        yield
    asker.close()
    connections.close_all()


@pytest.fixture
def client():
    client = Client()
    client.force_login(make_user())
    return client


def blocks_of(body):
    return [block for block in body.split(b"\n\n") if block and not block.startswith(b":")]


def stream(client, message="hello you"):
    """Run over the stream; return the run's uuid and its frames."""
    response = client.post(
        "/replayed/stream/", {"message": message}, content_type="application/json"
    )
    frames = blocks_of(b"".join(response.streaming_content))
    return json.loads(frames[0].split(b"data: ")[1])["trace"], frames


def events(client, uuid, agent="replayed", **options):
    return client.get(f"/{agent}/runs/{uuid}/events/", **options)


def frames_of(response):
    assert response.status_code == 200
    assert response["Content-Type"] == "text/event-stream"
    return blocks_of(b"".join(response.streaming_content))


def test_every_id_gives_the_rest_byte_by_byte(client):
    uuid, frames = stream(client)

    assert frames_of(events(client, uuid)) == frames
    for index, each in enumerate(frames[:-1]):
        last = each.split(b"\n")[0].removeprefix(b"id: ").decode()
        header = {"headers": {"Last-Event-ID": last}}
        assert frames_of(events(client, uuid, **header)) == frames[index + 1 :]
        assert frames_of(events(client, uuid, data={"after": last})) == frames[index + 1 :]


def test_after_the_last_event_nobody_needs_to_come_back(client):
    uuid, frames = stream(client)

    response = events(client, uuid, headers={"Last-Event-ID": str(len(frames) - 1)})

    assert response.status_code == 204


@pytest.mark.parametrize(
    ("last", "detail"),
    [("99", "has no event 99"), ("x", "is not the id of an event"), ("1.0", "is not the id")],
)
def test_an_id_that_is_none_is_refused(client, last, detail):
    uuid, _ = stream(client)

    response = events(client, uuid, headers={"Last-Event-ID": last})

    assert response.status_code == 400
    assert detail in json.loads(response.content)["detail"]


def test_what_is_gone_is_told_by_a_resync(client):
    uuid, frames = stream(client)
    Event.objects.prune(Trace.objects.get().ended_at.replace(year=2100))

    [resync, finished] = frames_of(events(client, uuid, data={"after": "1"}))

    assert resync.startswith(b"id: %d\nevent: resync\n" % (len(frames) - 2))
    assert finished == frames[-1]


@pytest.mark.parametrize("uuid", ["0" * 32, "nothing", "%00", "A" * 32])
def test_unknown_runs_are_not_found(client, uuid):
    assert events(client, uuid).status_code == 404


def test_runs_of_others_and_of_other_agents_are_not_found(client):
    uuid, _ = stream(client)
    stranger = Client()
    stranger.force_login(make_user("bob"))

    assert events(stranger, uuid).status_code == 404
    assert events(client, uuid, agent="other").status_code == 404
    assert events(Client(), uuid).status_code == 401


def test_who_comes_back_before_the_row_was_written_waits_for_it(client, monkeypatch):
    uuid, frames = stream(client)
    trace, told = Trace.objects.get(), list(Event.objects.filter(trace=uuid))
    Trace.objects.all().delete()

    def behind(visit):
        """Look, and have the rows written once it was too early."""
        try:
            return own_trace(visit)
        except Problem:
            trace.save(force_insert=True)
            Event.objects.bulk_create(told)
            raise

    monkeypatch.setattr("mlango.serve.events.own_trace", behind)

    assert events(client, uuid).status_code == 404
    Trace.objects.all().delete()
    assert frames_of(events(client, uuid, headers={"Last-Event-ID": "0"})) == frames[1:]


def test_a_run_of_another_that_was_waited_for_is_found_no_more_than_none(client, monkeypatch):
    monkeypatch.setattr("mlango.serve.events.GRACE", 0.01)
    uuid, _ = stream(client)
    stranger = Client()
    stranger.force_login(make_user("bob"))

    foreign = events(stranger, uuid, headers={"Last-Event-ID": "0"})
    unknown = events(stranger, "0" * 32, headers={"Last-Event-ID": "0"})

    assert foreign.status_code == unknown.status_code == 404
    assert json.loads(foreign.content)["detail"] == json.loads(unknown.content)["detail"]


def test_only_get_is_allowed(client):
    assert client.post("/replayed/runs/x/events/", {}).status_code in (403, 405)


def test_a_run_that_goes_on_is_followed_over_asgi(client):
    uuid, frames = stream(client)
    rows = list(Event.objects.filter(trace=uuid))
    Event.objects.filter(pk__in=[row.pk for row in rows[1:]]).delete()
    Trace.objects.filter(pk=uuid).update(status="running")

    async def follow():
        asgi = AsyncClient()
        asgi.cookies = client.cookies
        response = await asgi.get(f"/replayed/runs/{uuid}/events/")
        found, goes_on = b"", False
        async for part in response.streaming_content:
            found += part
            if not goes_on:
                goes_on = True
                await asyncio.to_thread(go_on)
        return blocks_of(found)

    def go_on():
        Event.objects.bulk_create(rows[1:])
        Trace.objects.filter(pk=uuid).update(status="finished")
        connections.close_all()

    assert asyncio.run(follow()) == frames


def test_a_run_whose_reader_left_is_told_to_its_end(client, monkeypatch):
    monkeypatch.setattr(batches, "MAX_FRAMES", 1)  # so that the run is not over yet

    async def leave():
        asgi = AsyncClient()
        asgi.cookies = client.cookies
        response = await asgi.post(
            "/replayed/stream/", {"message": "a b c"}, content_type="application/json"
        )
        first = await anext(aiter(response.streaming_content))
        response.streaming_content = response._iterator
        response.close()
        return first

    first = asyncio.run(leave())
    uuid = json.loads(first.split(b"data: ")[1])["trace"]

    frames = frames_of(events(client, uuid, data={"after": "0"}))

    assert b"event: finished" in frames[-1]
    assert [frame.split(b"\n")[0] for frame in frames] == [
        b"id: %d" % number for number in range(1, len(frames) + 1)
    ]


def test_a_waiting_worker_lets_a_reader_go_under_wsgi(client, monkeypatch):
    monkeypatch.setattr("mlango.serve.events.WSGI_SECONDS", 0)
    uuid, frames = stream(client)
    Event.objects.filter(trace=uuid, kind="finished").delete()
    Trace.objects.filter(pk=uuid).update(status="running")

    assert frames_of(events(client, uuid)) == frames[:-1]
