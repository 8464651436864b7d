"""Durable runs over HTTP and WebSockets: their clients leave and come back."""

import asyncio
import json
import threading

import pytest
from django.contrib.auth import get_user_model
from django.db import connections
from django.test import AsyncClient, Client

from mlango.agents import tool
from mlango.agents.enqueue import Asked
from mlango.agents.execution import execute_now
from mlango.agents.providers import ScriptedProvider
from mlango.agents.worker import Worker
from mlango.core.context import Context
from mlango.exceptions import RateLimited
from mlango.models import DurableRun, Event, Instruction, Trace
from mlango.runtime.following import asker
from mlango.runtime.live import running
from mlango.serve import include, path
from tests.durable.agents import LEDGER, Clerk, Speaker, plan
from tests.durable.processes import until, worker
from tests.serve.site import make_user
from tests.serve.test_events import blocks_of
from tests.serve.test_sockets import Talker, cookies_of

User = get_user_model()

pytestmark = pytest.mark.django_db(transaction=True)


@tool
def draw(name: str, ctx: Context) -> str:
    """Draw something."""
    ctx.artifact(b"<svg/>", "image/svg+xml", name)
    return "drawn"


class Plain(Clerk):
    """Does the same in the request."""

    class Meta(Clerk.Meta):
        durable = False
        tools = [*Clerk.Meta.tools, draw]


class Kept(Plain):
    """Does the same, whatever becomes of the request."""

    class Meta(Plain.Meta):
        durable = True


class Throttled(Clerk):
    """Has a model that says no."""

    class Meta(Clerk.Meta):
        provider = ScriptedProvider([RateLimited("s3cret", retryable=False)])


urlpatterns = [
    path("plain/", include(Plain.urls)),
    path("kept/", include(Kept.urls)),
    path("throttled/", include(Throttled.urls)),
    path("clerk/", include(Clerk.urls)),
    path("speaker/", include(Speaker.urls)),
]


@pytest.fixture(autouse=True)
def _site(settings):
    settings.ROOT_URLCONF = __name__
    settings.MLANGO = {"QUEUE": "immediate"}
    LEDGER.clear()
    yield
    asker.close()
    connections.close_all()


@pytest.fixture
def way(monkeypatch, tmp_path):
    monkeypatch.setenv("WAY", str(tmp_path / "way"))
    return tmp_path / "way"


@pytest.fixture
def client():
    client = Client()
    client.force_login(make_user())
    return client


def is_over(uuid):
    return Trace.objects.get(pk=uuid).status in Trace.ENDED and running(uuid) is None


def frames_of(response):
    assert response.status_code == 200, response.content
    return blocks_of(b"".join(response.streaming_content))


def data_of(frame):
    return json.loads(frame.split(b"data: ")[1])


def rest_of(client, agent, uuid, **data):
    return frames_of(client.get(f"/{agent}/runs/{uuid}/events/", data))


async def glance(client, message):
    """Ask a speaker under ASGI, and leave at his first words; return the frames."""
    asgi = AsyncClient()
    asgi.cookies = client.cookies
    body = {"message": message}
    response = await asgi.post("/speaker/stream/", body, content_type="application/json")
    seen = b""
    async for part in response.streaming_content:
        seen += part
        if b"text_chunk" in seen:
            break
    response.streaming_content = response._iterator
    response.close()
    return blocks_of(seen)


def test_the_stream_is_that_of_the_log(client):
    asked = {"message": plan([["put", {"what": "a"}]], "Done.")}

    frames = frames_of(client.post("/clerk/stream/", asked, content_type="application/json"))

    trace = Trace.objects.get()
    assert frames == rest_of(client, "clerk", trace.pk)
    assert data_of(frames[-1])["output"] == "Done."
    assert trace.user.username == "ann"


def test_a_client_that_leaves_finds_the_rest_when_it_comes_back(client, way):
    seen = asyncio.run(glance(client, "Speak."))
    uuid, last = data_of(seen[0])["trace"], data_of(seen[-1])["seq"]
    way.touch()
    until(lambda: is_over(uuid))

    rest = rest_of(client, "speaker", uuid, after=last)

    assert [data_of(frame)["seq"] for frame in rest] == list(range(last + 1, last + 1 + len(rest)))
    assert data_of(rest[-1])["output"] == "All done."
    assert DurableRun.objects.get(pk=uuid).token == 1  # one process did it all


# -- the answer in one piece ----------------------------------------------------------------------


def ask(client, url, *steps):
    return client.post(url, {"message": plan(*steps)}, content_type="application/json")


async def comes(rows):
    """Wait for a row that another thread writes."""
    while not await rows.aexists():  # noqa: ASYNC110 - the database does not tell
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "steps",
    [
        ([["put", {"what": "a"}], ["draw", {"name": "a.svg"}]], "Done."),
        ([["pay", {"amount": 3}]], "Paid."),
    ],
    ids=["finished", "waiting"],
)
def test_it_is_answered_as_without_durability(client, steps, settings, tmp_path):
    settings.MEDIA_ROOT = tmp_path

    plain, kept = (ask(client, f"/{name}/run/", *steps) for name in ("plain", "kept"))

    assert (plain.status_code, kept.status_code) == (200, 200), kept.content
    assert same_in(kept.json()) == same_in(plain.json())
    assert DurableRun.objects.get().agent.endswith("Kept")


def same_in(answer):
    """Return an answer without what tells one run from another; it is changed."""
    answer |= {"trace": "", "agent": answer["agent"].rpartition(".")[0]}
    for each in (*answer["approvals"], *answer["artifacts"]):
        for name in each.keys() & {"id", "approval", "trace", "agent", "created_at"}:
            each[name] = ""
    return answer


def test_a_client_that_leaves_changes_nothing_for_the_run(client, way):
    async def go():
        asgi = AsyncClient()
        asgi.cookies = client.cookies
        asking = asyncio.create_task(ask(asgi, "/speaker/run/", "Speak."))
        await comes(Event.objects.filter(kind="text_chunk"))
        asking.cancel()
        await asyncio.wait([asking])

    asyncio.run(go())
    way.touch()

    uuid = Trace.objects.get().pk
    until(lambda: is_over(uuid))
    assert Trace.objects.get().output == "All done."
    assert DurableRun.objects.get().token == 1  # one process did it all


def test_one_who_leaves_while_it_is_stored_has_asked_for_it(client, monkeypatch):
    reached, store = threading.Event(), Asked.store

    def slow(asked, **options):
        reached.set()
        left.wait(30)
        return store(asked, **options)

    async def go():
        asgi = AsyncClient()
        asgi.cookies = client.cookies
        asking = asyncio.create_task(ask(asgi, "/clerk/run/", "Hello."))
        await asyncio.to_thread(reached.wait, 30)
        asking.cancel()
        await asyncio.sleep(0)
        left.set()
        await asyncio.wait([asking])
        await comes(Trace.objects.filter(status="finished"))

    left = threading.Event()
    monkeypatch.setattr(Asked, "store", slow)
    asyncio.run(asyncio.wait_for(go(), 60))

    uuid = Trace.objects.get().pk
    until(lambda: is_over(uuid))


def test_a_worker_does_what_is_asked_for(client, settings, monkeypatch):
    settings.MLANGO = {"QUEUE": "worker"}
    monkeypatch.setattr("mlango.agents.queues.base.Queue.patience", 3600.0)

    async def go():
        asgi = AsyncClient()
        asgi.cookies = client.cookies
        worker = Worker()
        working = asyncio.create_task(worker.work())
        response = await ask(asgi, "/clerk/run/", "Hello.")
        worker.drain()
        await working
        return response, worker.done

    response, done = asyncio.run(asyncio.wait_for(go(), 60))

    assert (response.json()["output"], done) == ("Hello.", 1)


def test_a_failure_is_told_as_without_durability(client):
    response = ask(client, "/throttled/run/", "Hello.")

    assert response.status_code == 502
    assert response.json()["detail"] == "The model did not answer (RateLimited)."
    assert response.json()["id"] == Trace.objects.get().pk


# -- coming back to a stream ----------------------------------------------------------------------


def test_a_run_whose_client_left_can_be_stopped(client, way):
    seen = asyncio.run(glance(client, "Speak."))
    uuid = data_of(seen[0])["trace"]

    response = client.post(f"/speaker/runs/{uuid}/cancel/", {}, content_type="application/json")

    assert response.status_code == 202
    until(lambda: is_over(uuid))
    assert data_of(rest_of(client, "speaker", uuid)[-1])["status"] == "cancelled"


@pytest.mark.parametrize("what", ["steer", "follow-up"])
def test_a_run_that_another_process_does_is_told(client, settings, what):
    settings.MLANGO = {"QUEUE": "worker"}
    trace = Clerk().enqueue(plan("First."), user=User.objects.get())

    body = {"message": plan("Second.")}
    url = f"/clerk/runs/{trace.pk}/{what}/"
    response = client.post(url, body, content_type="application/json")

    assert (response.status_code, response.json()["status"]) == (202, "queued")
    assert execute_now(trace.pk).text == "Second."
    assert client.post(url, body, content_type="application/json").status_code == 409


def test_a_socket_that_closes_leaves_the_run_alone(way):
    async def go():
        async with Talker(Speaker, cookies) as ws:
            ws.say("send", message="Speak.")
            started = await ws.frame(kind="started")
            await ws.frame(kind="text_chunk")
        way.touch()
        async with Talker(Speaker, cookies) as ws:
            ws.say("follow", run=started["trace"], after=started["id"])
            thinking = await ws.frame(kind="thinking")
            last = await ws.frame(kind="finished")
        return thinking, last

    cookies = cookies_of(make_user("bob"))
    thinking, last = asyncio.run(go())

    assert thinking["id"] == "1"
    assert last["output"] == "All done."


def test_a_socket_stops_a_durable_run(way):
    async def go():
        async with Talker(Speaker, cookies) as ws:
            ws.say("send", message="Speak.")
            await ws.frame(kind="text_chunk")
            ws.say("abort")
            return await ws.frame(kind="finished")

    cookies = cookies_of(make_user("bob"))

    assert asyncio.run(go())["status"] == "cancelled"


@pytest.fixture
def ann(settings):
    """A user of a site whose runs are done by workers, of which there are none."""
    settings.MLANGO = {"QUEUE": "worker"}
    return make_user("ann")


def test_a_run_that_is_followed_is_stopped_over_the_socket(ann, way):
    uuid = Speaker().enqueue("Speak.", user=ann).pk
    cookies = cookies_of(ann)

    async def go():
        async with Talker(Speaker, cookies) as ws:
            ws.say("follow", run=uuid)
            await ws.frame(kind="text_chunk")
            ws.say("cancel")
            return await ws.frame(kind="finished")

    with worker(WAY=str(way)):
        assert asyncio.run(go())["status"] == "cancelled"


def test_a_run_that_is_followed_is_told_over_the_socket(ann, way):
    uuid = Speaker().enqueue("Speak.", user=ann).pk
    cookies = cookies_of(ann)

    async def go():
        async with Talker(Speaker, cookies) as ws:
            ws.say("follow", run=uuid)
            ws.say("steer", message="Not so loud.")
            ws.say("follow_up", message="And now?")
            ws.say("steer", message="x", ref="wrong", now=1)
            await ws.frame(type="error", ref="wrong", status=400)
            ws.say("ping")
            await ws.frame(type="pong")

    asyncio.run(go())

    told = [(each.kind, each.said[0]["content"]) for each in Instruction.objects.order_by("pk")]
    assert told == [("steer", "Not so loud."), ("follow_up", "And now?")]


def test_a_run_that_has_ended_is_told_nothing_over_the_socket(ann, way):
    uuid = Speaker().enqueue("Speak.", user=ann).pk
    Trace.objects.get(pk=uuid).cancel()
    cookies = cookies_of(ann)

    async def go():
        async with Talker(Speaker, cookies) as ws:
            ws.say("follow", run=uuid)
            await ws.frame(kind="finished")
            for kind, fields in (("cancel", {}), ("steer", {"message": "Wait."})):
                ws.say(kind, ref=kind, **fields)
                await ws.frame(type="error", ref=kind, status=409)

    asyncio.run(go())


def test_who_is_gone_tells_the_run_that_he_follows_nothing(ann, way):
    uuid = Speaker().enqueue("Speak.", user=ann).pk
    cookies = cookies_of(ann)

    def deactivate():
        User.objects.update(is_active=False)
        connections.close_all()

    async def go():
        async with Talker(Speaker, cookies) as ws:
            ws.say("follow", run=uuid)
            ws.say("ping")
            await ws.frame(type="pong")
            await asyncio.to_thread(deactivate)
            ws.say("cancel")
            return await ws.frame(type="error")

    assert asyncio.run(go())["status"] == 401
    assert Trace.objects.get(pk=uuid).status == "queued"
