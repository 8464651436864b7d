"""Streams that are answered before Django's handler."""

import asyncio
import json

import pytest
from django.core.handlers.asgi import ASGIHandler
from django.db import connections
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from mlango.core.events import TextChunk, iso
from mlango.core.values import encode
from mlango.models import Trace
from mlango.serve.direct import Direct
from mlango.serve.wire import text_of
from tests.serve.site import Slow, events_of, make_user, served
from tests.serve.test_asgi import TOKEN, Exchange, others_end
from tests.traces.test_writer import assert_none_is_left, open_connections

pytestmark = pytest.mark.django_db(transaction=True)


def nobody(scope, receive, send):
    raise AssertionError(f"{scope['path']} went on to Django.")


class Straight(Exchange):
    """An exchange with Direct; ``behind`` is the application that it stands before."""

    def __init__(self, cookies, url, message="hi", behind=nobody, sparing=()):
        super().__init__(cookies, url, message)
        self.app = Direct(behind, sparing=sparing)
        self.headers = {}

    async def send(self, message):
        self.headers |= dict(message.get("headers", ()))
        await super().send(message)

    def head(self, name, value):
        """Set a header of the request."""
        kept = [pair for pair in self.scope["headers"] if pair[0] != name]
        self.scope["headers"] = [*kept, (name, value)]
        return self


@pytest.fixture
def cookies():
    with served:
        client = Client()
        client.force_login(make_user())
        connections.close_all()
        yield f"sessionid={client.cookies['sessionid'].value}; csrftoken={TOKEN}"


def go(exchange):
    async def gone():
        return await exchange.go()

    return asyncio.run(gone())


def test_a_stream_is_answered(cookies):
    exchange = go(Straight(cookies, "/stream/", "use who"))

    assert exchange.status == 200
    assert exchange.headers[b"content-type"] == b"text/event-stream"
    assert exchange.headers[b"x-content-type-options"] == b"nosniff"
    events = events_of(exchange.body)
    assert [number for number, _, _ in events] == list(range(len(events)))
    assert events[-1][2]["output"] == "tool results: ann of ann at /stream/"
    assert Trace.objects.get().status == "finished"


def test_the_bytes_are_those_of_the_view(cookies):
    direct = go(Straight(cookies, "/stream/", "a\nb é"))
    behind = go(Exchange(cookies, "/stream/", "a\nb é"))

    def plain(body):
        events = [
            {**data, "run": "", "trace": "", "at": "", "elapsed": 0}
            for _, _, data in events_of(body)
        ]
        return json.dumps(events)

    assert plain(direct.body) == plain(behind.body)


def test_all_else_goes_on_to_django(cookies):
    assert json.loads(go(Straight(cookies, "/ask/", behind=ASGIHandler())).body)["output"]
    assert go(Straight(cookies, "/nowhere/", behind=ASGIHandler())).status == 404
    getting = Straight(cookies, "/stream/", behind=ASGIHandler())
    getting.scope["method"] = "GET"
    assert go(getting).status == 405


def test_nobody_is_refused(cookies):
    exchange = go(Straight(f"csrftoken={TOKEN}", "/stream/"))

    assert exchange.status == 401
    assert exchange.headers[b"content-type"] == b"application/problem+json"


def test_a_post_of_another_site_is_refused(cookies):
    exchange = go(Straight(cookies, "/stream/").head(b"x-csrftoken", b""))

    assert exchange.status == 403
    assert not Trace.objects.exists()


def test_another_host_is_refused(cookies, settings):
    settings.ALLOWED_HOSTS = ["here.example"]
    settings.MLANGO = {**settings.MLANGO, "CORS_ORIGINS": ["https://app.example"]}
    asked = Straight(cookies, "/stream/").head(b"host", b"evil.example")

    exchange = go(asked.head(b"origin", b"https://app.example"))

    assert exchange.status == 400
    assert exchange.headers[b"access-control-allow-origin"] == b"https://app.example"


def test_plain_http_is_sent_to_https(cookies, settings):
    settings.SECURE_SSL_REDIRECT = True

    exchange = go(Straight(cookies, "/stream/").head(b"host", b"here.example"))

    assert exchange.status == 301
    assert exchange.headers[b"location"] == b"https://here.example/stream/"


def test_a_body_over_the_limit_is_refused(cookies, settings):
    settings.MLANGO = {**settings.MLANGO, "MAX_HTTP_BODY_BYTES": 100}

    exchange = go(Straight(cookies, "/stream/", "x" * 200).head(b"content-length", b"10"))

    assert exchange.status == 413


def test_middleware_that_it_does_not_know_is_not_left_out(cookies, settings):
    own = "tests.serve.test_asgi.blocking"
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, own]

    with pytest.raises(AssertionError, match="went on to Django"):
        go(Straight(cookies, "/stream/"))
    assert go(Straight(cookies, "/stream/", sparing=[own])).status == 200


def test_a_new_secret_key_keeps_the_login(cookies, settings):
    settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY]
    settings.SECRET_KEY = "another"

    exchange = go(Straight(cookies, "/stream/"))

    assert exchange.status == 200
    fresh = exchange.headers[b"set-cookie"].decode().partition(";")[0]
    assert go(Straight(f"{fresh}; csrftoken={TOKEN}", "/stream/")).status == 200


def test_a_reader_who_leaves_cancels_the_run(cookies):
    left = Slow._meta.provider.left

    async def leave():
        exchange = Straight(cookies, "/slow/stream/")
        going = asyncio.create_task(exchange.go())
        await exchange.until(b"event: text_chunk")
        exchange.leave()
        await going

    asyncio.run(leave())

    assert Trace.objects.get().status == "cancelled"
    assert Slow._meta.provider.left == left + 1


def test_who_leaves_before_the_body_came_is_forgotten(cookies):
    exchange = Straight(cookies, "/stream/")
    exchange.incoming.get_nowait()
    exchange.leave()

    assert go(exchange).status == 0


def test_a_server_that_stops_cancels_the_run(cookies):
    async def stop():
        exchange = Straight(cookies, "/slow/stream/")
        going = asyncio.create_task(exchange.go())
        await exchange.until(b"event: text_chunk")
        going.cancel()
        await asyncio.wait([going])
        await others_end()

    asyncio.run(stop())

    assert Trace.objects.get().status == "cancelled"


def test_many_at_once_leave_no_connection(cookies):
    async def ask_all():
        straight = Straight(cookies, "/stream/")
        exchanges = [Straight(cookies, "/stream/", "use count_groups") for _ in range(40)]
        for exchange in exchanges:
            exchange.app = straight.app
        await asyncio.gather(*(exchange.go() for exchange in exchanges))
        return exchanges

    before = open_connections()
    exchanges = asyncio.run(ask_all())

    assert all(b"tool results: 0" in exchange.body for exchange in exchanges)
    connections.close_all()
    assert_none_is_left(before)


@given(st.text(), st.floats(0, 4e9), st.integers(0, 9), st.none() | st.just("b" * 32))
def test_a_chunk_is_written_as_every_event_is(text, at, step, parent):
    event = TextChunk(7, "a" * 32, step, at, parent, text)

    assert text_of(event) == encode(event.describe())


@given(st.floats(0, 4e9) | st.integers(0, 10**9).map(float))
def test_times_are_those_of_datetime(at):
    from datetime import UTC, datetime

    assert iso(at) == datetime.fromtimestamp(at, UTC).isoformat()
