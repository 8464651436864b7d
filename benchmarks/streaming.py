"""A site whose agent says 200 words, and a raw ASGI application that sends the same bytes.

    python benchmarks/streaming.py

One uvicorn serves both, so that they take turns under the same conditions. ``/raw`` makes
frames of the JSON data of a run that happened, one by one, and asks nobody who is there;
``/bytes`` has made them before. ``/direct`` and
``/django`` run the agent for a user with a session, the one as `Direct` answers, the other
behind Django's handler and its default middleware. ``/…/idle`` says a word and then nothing.
It prints its port, and a cookie and a token for requests.
"""

import asyncio
import json
import socket

import ratios
import uvicorn
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.test import Client
from django.urls import path

from mlango.agents import Agent
from mlango.agents.providers import ScriptedProvider
from mlango.core.log import Places
from mlango.core.provider import Completion
from mlango.serve import sse, streaming
from mlango.serve.direct import Direct

WORDS = 200
TOKEN = "a" * 32
HEADERS = [(name.lower().encode(), value.encode()) for name, value in streaming.HEADERS.items()]
HEADERS.append((b"content-type", b"text/event-stream"))


class Words(ScriptedProvider):
    """Gives way to all others between two words, as a model does that is somewhere else."""

    async def astream(self, **options):
        for number in range(WORDS):
            await asyncio.sleep(0)
            yield f"word{number} "
        yield Completion(stop_reason=Completion.END_TURN)


class Silent(ScriptedProvider):
    async def astream(self, **options):
        yield "word"
        await asyncio.Event().wait()


class Speaker(Agent):
    class Meta:
        app_label = "benchmarks"
        provider = Words()


class Sleeper(Agent):
    class Meta:
        app_label = "benchmarks"
        provider = Silent()


urlpatterns = [
    path("words", Speaker.as_stream_endpoint()),
    path("idle", Sleeper.as_stream_endpoint()),
]
recorded = []
frames = []


async def record():
    stream = Speaker().astream("hi")
    places = Places(stream.uuid)
    async for event in stream:
        recorded.append(event.describe())
        frames.append(sse.framed(event, places))
    assert frames == [made(data) for data in recorded]


def made(data):
    text = json.dumps(data)
    return f"id: {data['seq']}\nevent: {data['kind']}\ndata: {text}\n\n".encode()


async def each(items):
    for item in items:
        await asyncio.sleep(0)
        yield item


def sending(items, frame):
    async def application(scope, receive, send):
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        is_idle = scope["path"] == "/idle"
        async for item in each(items[:3] if is_idle else items):
            await send({"type": "http.response.body", "body": frame(item), "more_body": True})
        if is_idle:
            await receive()  # that the client has left
        await send({"type": "http.response.body", "body": b""})

    return application


def application():
    django = get_asgi_application()
    apps = {
        "raw": sending(recorded, made),
        "bytes": sending(frames, bytes),
        "direct": Direct(django),
        "django": django,
    }

    async def chosen(scope, receive, send):
        if scope["type"] == "http":
            _, name, rest = scope["path"].split("/", 2)
            await apps[name]({**scope, "path": f"/{rest}"}, receive, send)

    return chosen


def cookie():
    from django.contrib.auth import get_user_model

    client = Client()
    client.force_login(get_user_model().objects.create_user("ann"))
    return f"sessionid={client.cookies['sessionid'].value}; csrftoken={TOKEN}"


def main():
    settings.ROOT_URLCONF = __name__
    settings.MLANGO = settings.MLANGO | {"MAX_STREAMS_PER_USER": None, "MAX_STREAMS_PER_IP": None}
    with ratios.database(), socket.socket() as listening:
        asyncio.run(record())
        listening.bind(("127.0.0.1", 0))
        listening.listen(256)
        print(listening.getsockname()[1], cookie(), TOKEN, sep="|", flush=True)
        config = uvicorn.Config(application(), access_log=False, log_level="error", lifespan="off")
        uvicorn.Server(config).run([listening])


if __name__ == "__main__":
    main()
