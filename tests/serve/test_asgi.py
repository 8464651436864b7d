"""The endpoints under Django's ASGI handler, spoken to as a server does."""

import asyncio
import json

import pytest
from django.contrib.auth.models import Group
from django.core.handlers.asgi import ASGIHandler
from django.db import connections
from django.test import Client
from django.utils.decorators import sync_only_middleware

from mlango.models import Trace
from tests.serve.site import Chatty, Slow, events_of, make_user, served
from tests.traces.test_writer import assert_none_is_left, open_connections

pytestmark = pytest.mark.django_db(transaction=True)
TOKEN = "a" * 32


@sync_only_middleware
def blocking(get_response):
    """Middleware that knows no event loop."""
    return lambda request: get_response(request)


class Exchange:
    """One request and what came back. ``send`` waits while ``reads`` is not set."""

    def __init__(self, cookies, url, message="hi", app=None):
        self.app = app or ASGIHandler()
        body = json.dumps({"message": message}).encode()
        self.scope = {
            "type": "http",
            "method": "POST",
            "path": url,
            "query_string": b"",
            "headers": [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                (b"x-csrftoken", TOKEN.encode()),
                (b"cookie", cookies.encode()),
            ],
        }
        self.incoming = asyncio.Queue()
        self.incoming.put_nowait({"type": "http.request", "body": body})
        self.status = 0
        self.body = b""
        self.came = asyncio.Event()
        self.reads = asyncio.Event()
        self.reads.set()
        self.is_over = False

    async def send(self, message):
        await self.reads.wait()
        self.status = message.get("status", self.status)
        self.body += message.get("body", b"")
        self.came.set()

    async def go(self):
        try:
            await self.app(self.scope, self.incoming.get, self.send)
        finally:
            self.is_over = True
            self.came.set()
        await others_end()
        return self

    async def until(self, text):
        """Wait until the body holds a text."""
        while text not in self.body:
            assert not self.is_over, f"{self.status}: {self.body[-200:]!r}"
            await self.came.wait()
            self.came.clear()

    def leave(self):
        self.incoming.put_nowait({"type": "http.disconnect"})


@pytest.fixture
def cookies():
    with served:
        client = Client()
        client.force_login(make_user())
        connections.close_all()
        yield f"sessionid={client.cookies['sessionid'].value}; csrftoken={TOKEN}"


def ask(*args):
    async def asked():
        return await Exchange(*args).go()

    return asyncio.run(asked())


def test_an_answer_comes(cookies):
    exchange = ask(cookies, "/ask/", 'use make_groups {"count": 1}')

    assert exchange.status == 200
    assert json.loads(exchange.body)["output"] == "tool results: 1"
    assert Group.objects.exists()


def test_events_come(cookies):
    exchange = ask(cookies, "/stream/", "use count_groups")

    assert events_of(exchange.body)[-1][2]["output"] == "tool results: 0"


@pytest.mark.parametrize(
    "middleware",
    [
        "tests.serve.test_asgi.blocking",
        "django.middleware.gzip.GZipMiddleware",
        "django.contrib.auth.middleware.LoginRequiredMiddleware",
    ],
)
def test_any_middleware_may_stand_before(cookies, settings, middleware):
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, middleware]

    assert json.loads(ask(cookies, "/ask/").body)["output"] == "echo: hi"
    assert events_of(ask(cookies, "/stream/").body)[-1][1] == "finished"


def test_atomic_requests_are_no_matter(cookies, monkeypatch):
    monkeypatch.setitem(connections["default"].settings_dict, "ATOMIC_REQUESTS", True)

    assert ask(cookies, "/ask/").status == 200
    assert ask(cookies, "/stream/").status == 200


def test_a_reader_who_leaves_cancels_the_run(cookies, settings):
    left = Slow._meta.provider.left

    async def leave():
        exchange = Exchange(cookies, "/slow/stream/")
        going = asyncio.create_task(exchange.go())
        await exchange.until(b"event: text_chunk")
        exchange.leave()
        await going

    asyncio.run(leave())

    assert Trace.objects.get().status == "cancelled"
    assert Slow._meta.provider.left == left + 1


def test_who_leaves_before_the_answer_cancels_the_run(cookies):
    came, left = Slow._meta.provider.came, Slow._meta.provider.left

    async def leave():
        exchange = Exchange(cookies, "/slow/")
        going = asyncio.create_task(exchange.go())
        while Slow._meta.provider.came == came:  # noqa: ASYNC110 - a turn, not a time
            await asyncio.sleep(0)
        exchange.leave()
        await going

    asyncio.run(leave())

    assert Trace.objects.get().status == "cancelled"
    assert Slow._meta.provider.left == left + 1


def test_a_reader_who_does_not_read_stops_the_model(cookies):
    provider = Chatty._meta.provider

    async def stall():
        exchange = Exchange(cookies, "/chatty/stream/")
        going = asyncio.create_task(exchange.go())
        await exchange.until(b"event: text_chunk")
        exchange.reads.clear()
        await turns(50)
        said = provider.words
        await turns(500)
        assert provider.words == said
        exchange.leave()
        await going

    asyncio.run(stall())

    assert Trace.objects.get().status == "cancelled"


async def others_end():
    """Wait for the tasks that a server's loop, which lives on, would end later."""
    await asyncio.sleep(0)
    while closing := [task for task in asyncio.all_tasks() if "athrow" in repr(task.get_coro())]:
        await asyncio.wait(closing)


async def turns(count):
    """Let everything else have so many turns."""
    for _ in range(count):
        await asyncio.sleep(0)


def test_many_at_once_leave_no_connection(cookies):
    async def ask_all():
        urls = ["/ask/", "/stream/"] * 30
        exchanges = [Exchange(cookies, url, "use count_groups") for url in urls]
        return await asyncio.gather(*(exchange.go() for exchange in exchanges))

    before = open_connections()
    exchanges = asyncio.run(ask_all())

    assert {exchange.status for exchange in exchanges} == {200}
    assert all(b"tool results: 0" in exchange.body for exchange in exchanges)
    assert Trace.objects.filter(status="finished").count() == 60
    connections.close_all()
    assert_none_is_left(before)


def test_an_open_stream_holds_no_connection_of_its_request(cookies):
    async def streams():
        exchanges = [Exchange(cookies, "/slow/stream/") for _ in range(5)]
        going = [asyncio.create_task(exchange.go()) for exchange in exchanges]
        for exchange in exchanges:
            await exchange.until(b"event: text_chunk")
        opened.append(await asyncio.to_thread(counted))
        for exchange in exchanges:
            exchange.leave()
        await asyncio.gather(*going)

    opened = [counted()]
    asyncio.run(streams())
    # The one that writes the rows of all runs may be open; five would be those of requests.
    assert opened[1] <= opened[0] + 1


def counted():
    """Return how many connections are open, with the one that counts on PostgreSQL."""
    try:
        return open_connections()
    finally:
        connections.close_all()
