"""Readers who take nothing, and those who are answered all the same."""

import asyncio

import pytest
from django.core.handlers.asgi import ASGIHandler

from mlango.models import Trace
from mlango.serve import limits
from mlango.serve.asgi import Guard
from mlango.serve.direct import Direct
from tests.serve.site import Chatty
from tests.serve.test_asgi import Exchange, cookies  # noqa: F401 - a fixture

READERS = 200
SPEAKS = b"event: text_chunk"
pytestmark = pytest.mark.django_db(transaction=True)


class Stalled(Exchange):
    """Takes nothing more once the model speaks."""

    async def send(self, message):
        await super().send(message)
        if SPEAKS in self.body:
            self.reads.clear()


def test_two_hundred_who_do_not_read_stop_nobody_else(cookies, settings):  # noqa: F811
    settings.MLANGO = {"DEFAULT_PROVIDER": "echo", "MAX_STREAMS_PER_USER": None}
    provider = Chatty._meta.provider

    async def stall():
        # Django's own handler would open a connection to the database for each.
        app = Direct(ASGIHandler())
        exchanges = [Stalled(cookies, "/chatty/stream/", app=app) for _ in range(READERS)]
        going = [asyncio.create_task(exchange.go()) for exchange in exchanges]
        for exchange in exchanges:
            await exchange.until(SPEAKS)

        answers = [await Exchange(cookies, "/ask/").go() for _ in range(3)]
        said = provider.words
        answers += [await Exchange(cookies, "/ask/").go() for _ in range(3)]
        assert provider.words == said  # no model talks on into memory
        assert {answer.status for answer in answers} == {200}

        for exchange in exchanges:
            exchange.leave()
        await asyncio.gather(*going)

    asyncio.run(stall())

    assert len(limits.streams) == 0
    assert Trace.objects.filter(status="cancelled").count() == READERS
    assert not Trace.objects.filter(status="running").exists()


@pytest.mark.parametrize("handler", [ASGIHandler, lambda: Direct(ASGIHandler())])
@pytest.mark.parametrize("middleware", [[], ["tests.serve.test_asgi.blocking"]])
def test_who_takes_nothing_for_long_is_dropped(cookies, settings, handler, middleware):  # noqa: F811
    settings.MLANGO = {"DEFAULT_PROVIDER": "echo", "STREAM_SEND_TIMEOUT": 0.05}
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, *middleware]

    async def stall():
        return await Stalled(cookies, "/chatty/stream/", app=Guard(handler())).go()

    exchange = asyncio.run(stall())

    assert b"event: finished" not in exchange.body
    assert len(limits.streams) == 0
    assert Trace.objects.get().status == "cancelled"


@pytest.mark.parametrize(
    ("kind", "is_dropped"), [(b"video/mp4", False), (b"text/event-stream", True)]
)
def test_only_who_takes_no_events_is_dropped(settings, kind, is_dropped):
    settings.MLANGO = {"STREAM_SEND_TIMEOUT": 1e-9}
    head = {"type": "http.response.start", "headers": [(b"Content-Type", kind)]}

    async def application(scope, receive, send):
        leaving = asyncio.ensure_future(receive())
        for message in (head, {"type": "http.response.body", "body": b"all"}):
            await send(message)
        assert leaving.done() == is_dropped
        leaving.cancel()

    async def slow(message):
        for _ in range(5):  # turns of the loop
            await asyncio.sleep(0)

    asyncio.run(Guard(application)({"type": "http"}, asyncio.Event().wait, slow))
