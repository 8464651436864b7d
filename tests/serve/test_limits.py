"""How much is served at once, and what is too much."""

import asyncio
import gc
import threading
from contextlib import suppress
from types import SimpleNamespace

import pytest
from django.contrib.auth.models import AnonymousUser
from django.core.handlers.asgi import ASGIHandler
from django.http import HttpResponse, StreamingHttpResponse
from django.test import TestCase, override_settings

from mlango.models import Trace
from mlango.serve import limits
from mlango.serve.asgi import Guard
from mlango.serve.direct import Direct
from mlango.serve.limits import Full, Places, Streams, held
from mlango.serve.problems import Problem
from tests.serve.site import Posting, Slow, leave, served
from tests.serve.test_asgi import Exchange, cookies  # noqa: F401 - a fixture


def enter(places, timeout=60):
    return asyncio.ensure_future(places.enter(1, 1, timeout))


async def settled():
    for _ in range(5):
        await asyncio.sleep(0)


class TestPlaces:
    def test_who_comes_when_as_many_wait_as_may_is_refused(self):
        async def come():
            places = Places()
            await places.enter(1, 1, 60)
            waits = enter(places)
            await settled()

            with pytest.raises(Full):
                await places.enter(1, 1, 60)

            places.leave()
            await waits
            places.leave()
            assert places.taken == 0

        asyncio.run(come())

    def test_who_waits_too_long_is_refused(self):
        async def come():
            places = Places()
            await places.enter(1, 1, 60)

            with pytest.raises(Full):
                await places.enter(1, 1, 0)

            places.leave()
            assert places.taken == 0

        asyncio.run(come())

    def test_who_waits_first_comes_first(self):
        async def come():
            places, came = Places(), []

            async def visit(name):
                await places.enter(1, 9, 60)
                came.append(name)
                places.leave()

            await places.enter(1, 9, 60)
            visits = [asyncio.ensure_future(visit(name)) for name in "abc"]
            await settled()
            places.leave()
            await asyncio.gather(*visits)
            assert came == ["a", "b", "c"]
            assert places.taken == 0

        asyncio.run(come())

    @pytest.mark.parametrize("is_given", [False, True])
    def test_who_leaves_while_he_waits_leaves_no_place_taken(self, is_given):
        async def come():
            places = Places()
            await places.enter(1, 1, 60)
            waits = enter(places)
            await settled()
            if is_given:  # in the turn in which he leaves
                places.leave()
            waits.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waits
            if not is_given:
                places.leave()
            assert places.taken == 0

        asyncio.run(come())

    def test_they_come_from_different_loops(self):
        places = Places()
        asyncio.run(places.enter(1, 1, 60))

        async def come():
            waits = enter(places)
            await settled()
            await asyncio.to_thread(places.leave)
            await waits

        asyncio.run(come())
        assert places.taken == 1


class Collecting(int):
    """A limit at whose comparison the garbage collector releases what was lost."""

    def __new__(cls, number, release):
        limit = super().__new__(cls, number)
        limit.release = release
        return limit

    def __gt__(self, other):
        self.release()
        return int(self) > other

    def __le__(self, other):
        self.release()
        return int(self) <= other


def ends(work):
    """Return whether a call comes to an end."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(10)
    return not thread.is_alive()


def test_what_is_lost_is_released_while_another_is_taken(monkeypatch):
    places, streams = Places(), Streams()
    asyncio.run(places.enter(2, 0, 60))
    close = streams.open(User(1), "")
    few = SimpleNamespace(MAX_STREAMS_PER_USER=Collecting(5, close))
    monkeypatch.setattr(limits, "settings", few)

    assert ends(lambda: asyncio.run(places.enter(Collecting(5, places.leave), 0, 60)))
    assert ends(lambda: streams.open(User(2), ""))
    assert (places.taken, len(streams)) == (1, 1)


class User:
    def __init__(self, pk):
        self.pk = pk
        self.is_authenticated = True


class TestStreams:
    def test_one_user_has_only_so_many(self, settings):
        settings.MLANGO = {"MAX_STREAMS_PER_USER": 1}
        streams = Streams()
        close = streams.open(User(1), "10.0.0.1")

        with pytest.raises(
            Problem, match=r"You have 1 streams open.*MAX_STREAMS_PER_USER"
        ) as info:
            streams.open(User(1), "10.0.0.2")
        assert (info.value.status, info.value.headers) == (429, {"Retry-After": "5"})
        streams.open(User(2), "10.0.0.1")()

        close()
        streams.open(User(1), "10.0.0.1")()
        assert len(streams) == 0

    def test_one_address_has_only_so_many(self, settings):
        settings.MLANGO = {"MAX_STREAMS_PER_IP": 1}
        streams = Streams()
        streams.open(User(1), "10.0.0.1")

        with pytest.raises(Problem, match=r"Your address has.*MAX_STREAMS_PER_IP"):
            streams.open(User(2), "10.0.0.1")

    def test_nobody_from_nowhere_is_not_counted(self, settings):
        settings.MLANGO = {"MAX_STREAMS_PER_IP": 1, "MAX_STREAMS_PER_USER": 1}
        streams = Streams()

        streams.open(AnonymousUser(), "")
        streams.open(AnonymousUser(), "")

        assert len(streams) == 0


class TestHeld:
    def hold(self, made):
        """Return what was released, and what ``made`` returned."""
        released = []

        async def answer():
            return made()

        with suppress(ZeroDivisionError):
            return released, asyncio.run(held(answer(), lambda: released.append(1)))
        return released, None

    def test_an_answer_holds_nothing(self):
        assert self.hold(HttpResponse)[0] == [1]

    def test_a_failure_holds_nothing(self):
        assert self.hold(lambda: 1 / 0)[0] == [1]

    def test_a_stream_holds_until_it_is_closed_and_no_longer(self):
        released, response = self.hold(StreamingHttpResponse)
        assert released == []

        response.close()
        response.close()
        assert released == [1]

    def test_a_stream_that_middleware_drops_holds_nothing(self):
        released, response = self.hold(StreamingHttpResponse)
        del response
        gc.collect()

        assert released == [1]


@served
class LimitTests(Posting, TestCase):
    @override_settings(MLANGO={"DEFAULT_PROVIDER": "echo", "MAX_CONCURRENT_REQUESTS": 1})
    def test_the_next_comes_when_one_has_ended(self):
        self.assertEqual(self.post().status_code, 200)
        self.assertEqual(self.post().status_code, 200)
        self.assert_problem(self.post(data={}), 400, "message")
        self.assertEqual(limits.runs.taken, 0)

    @override_settings(
        MLANGO={
            "DEFAULT_PROVIDER": "echo",
            "MAX_CONCURRENT_REQUESTS": 1,
            "REQUEST_QUEUE_TIMEOUT": 2.5,
        }
    )
    def test_a_stream_has_its_place_until_it_is_closed(self):
        stream = self.post("/stream/")

        problem = self.post()
        self.assert_problem(problem, 503, "MAX_CONCURRENT_REQUESTS")
        self.assertEqual(problem["Retry-After"], "3")

        leave(stream)
        self.assertEqual(self.post().status_code, 200)

    @override_settings(MLANGO={"DEFAULT_PROVIDER": "echo", "MAX_STREAMS_PER_USER": 1})
    def test_a_second_stream_is_refused_while_the_first_is_open(self):
        stream = self.post("/stream/")

        problem = self.post("/stream/")
        self.assert_problem(problem, 429, "MAX_STREAMS_PER_USER")
        self.assertEqual(problem["Retry-After"], "5")
        self.assertEqual(self.post().status_code, 200)

        leave(stream)
        leave(self.post("/stream/"))
        self.assertEqual(len(limits.streams), 0)

    @override_settings(MLANGO={"DEFAULT_PROVIDER": "echo", "MAX_INPUT_CHARS": 100})
    def test_a_body_of_very_many_items_is_not_read(self):
        body = '{"message": [' + "0," * 10_200 + "0]}"

        response = self.client.post("/ask/", body, content_type="application/json")

        self.assert_problem(response, 400, "more than 10000 items")

    def test_a_deep_body_and_a_key_twice_are_refused(self):
        for body, detail in (
            ('{"message": ' + "[" * 200_000, "nested"),
            ('{"message": "a", "message": "b"}', "twice"),
            ('{"message": NaN}', "NaN"),
        ):
            response = self.client.post("/ask/", body, content_type="application/json")
            self.assert_problem(response, 400, detail)


@pytest.mark.django_db(transaction=True)
class TestUnderAsgi:
    def test_who_leaves_while_he_waits_frees_his_place_in_the_line(self, cookies, settings):  # noqa: F811
        settings.MLANGO = {
            "DEFAULT_PROVIDER": "echo",
            "MAX_CONCURRENT_REQUESTS": 1,
            "MAX_QUEUE_BACKLOG": 1,
            "REQUEST_QUEUE_TIMEOUT": 60,
        }

        async def come():
            first = Exchange(cookies, "/slow/stream/")
            going = asyncio.create_task(first.go())
            await first.until(b"event: text_chunk")
            waits = Exchange(cookies, "/ask/")
            waiting = asyncio.create_task(waits.go())
            while not limits.runs._waiting:  # noqa: ASYNC110 - a turn, not a time
                await asyncio.sleep(0)
            refused = await Exchange(cookies, "/ask/").go()
            waits.leave()
            await waiting
            first.leave()
            await going
            served = await Exchange(cookies, "/ask/").go()
            return refused.status, waits.status, served.status

        assert asyncio.run(come()) == (503, 0, 200)
        assert limits.runs.taken == 0
        assert Trace.objects.filter(status="finished").count() == 1

    def test_a_reader_who_leaves_frees_his_stream(self, cookies):  # noqa: F811
        async def leave():
            exchange = Exchange(cookies, "/slow/stream/")
            going = asyncio.create_task(exchange.go())
            await exchange.until(b"event: text_chunk")
            assert len(limits.streams) == 1
            exchange.leave()
            await going

        asyncio.run(leave())

        assert len(limits.streams) == 0
        assert Slow._meta.provider.came == Slow._meta.provider.left


class Sent:
    """Sends a body in chunks, without a length, to an application behind the guard."""

    def __init__(self, url, chunks, app=None, **headers):
        self.app = app or Guard(ASGIHandler())
        self.headers = {}
        self.scope = {
            "type": "http",
            "method": "POST",
            "path": url,
            "query_string": b"",
            "headers": [
                (b"content-type", b"application/json"),
                *((name.encode(), value.encode()) for name, value in headers.items()),
            ],
        }
        self.chunks = iter(chunks)
        self.status = 0
        self.body = b""
        self.left = 0

    async def receive(self):
        chunk = next(self.chunks, None)
        if chunk is None:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": chunk, "more_body": chunk != b""}

    async def send(self, message):
        self.status = message.get("status", self.status)
        self.headers |= dict(message.get("headers", ()))
        self.body += message.get("body", b"")

    def go(self):
        asyncio.run(self.app(self.scope, self.receive, self.send))
        self.left = len(list(self.chunks))
        return self


@pytest.fixture
def small(settings):
    """A site that takes ten bytes."""
    settings.ROOT_URLCONF = "tests.serve.site"
    settings.MLANGO = {"MAX_HTTP_BODY_BYTES": 10}


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("small")
class TestGuard:
    def test_it_stops_to_read_where_the_body_is_too_large(self):
        sent = Sent("/ask/", [b"12345"] * 100 + [b""]).go()

        assert sent.status == 413
        assert b"MAX_HTTP_BODY_BYTES" in sent.body
        assert sent.left == 98

    @pytest.mark.parametrize("make", [Guard, Direct])
    def test_pages_of_allowed_origins_read_why(self, make, settings):
        origin = "https://app.example.com"
        settings.MLANGO = {**settings.MLANGO, "CORS_ORIGINS": [origin]}
        app = make(ASGIHandler())

        sent = Sent("/stream/", [b"12345"] * 100, app, origin=origin).go()
        other = Sent("/stream/", [b"12345"] * 100, app, origin="https://evil.example").go()

        assert (sent.status, other.status) == (413, 413)
        assert sent.headers[b"access-control-allow-origin"] == origin.encode()
        assert b"access-control-allow-origin" not in other.headers
        assert other.headers[b"vary"] == b"Origin"

    @pytest.mark.parametrize("url", ["/own/", "/nowhere/"])
    def test_it_lets_other_views_have_their_bodies(self, url):
        sent = Sent(url, [b"12345"] * 100 + [b""]).go()

        assert sent.left == 0
        assert sent.status != 413
