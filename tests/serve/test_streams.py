"""What ``as_stream_endpoint()`` and ``as_response()`` send."""

import json
from contextlib import aclosing
from unittest import mock

from django.conf import settings
from django.test import TestCase, modify_settings, override_settings

from mlango.models import Session, Trace
from mlango.serve import sse, streaming
from tests.serve.site import Posting, Slow, events_of, leave, make_user, served


@served
class StreamTests(Posting, TestCase):
    def test_events_come_with_id_kind_and_data(self):
        response = self.post("/stream/", {"message": "a\nb\r\u2028c", "session_id": "s1"})

        events = events_of(response.getvalue())
        self.assertEqual([number for number, _, _ in events], list(range(len(events))))
        self.assertEqual(events[0][1], "started")
        self.assertEqual(events[-1][1], "finished")
        self.assertEqual(events[-1][2]["output"], "echo: a\nb\r\u2028c")
        self.assertEqual(events[-1][2]["trace"], Trace.objects.get().uuid)
        for _, kind, data in events:
            self.assertEqual(data["kind"], kind)

    @modify_settings(MIDDLEWARE={"prepend": "django.middleware.gzip.GZipMiddleware"})
    def test_nothing_on_the_way_may_hold_the_events_back(self):
        response = self.post("/stream/", headers={"accept-encoding": "gzip"})

        self.assertEqual(response["Content-Type"], "text/event-stream")
        self.assertEqual(response["Cache-Control"], "no-cache")
        self.assertEqual(response["X-Accel-Buffering"], "no")
        self.assertEqual(response["Content-Encoding"], "identity")
        self.assertEqual(events_of(response.getvalue())[-1][1], "finished")

    def test_tools_see_the_data_of_the_caller_and_the_request(self):
        body = self.post("/stream/", {"message": "use who"}).getvalue()

        self.assertEqual(events_of(body)[-1][2]["output"], "tool results: ann of ann at /stream/")

    def test_a_failed_run_ends_with_one_event_that_tells_nothing_inside(self):
        response = self.post("/broken/stream/")

        events = events_of(response.getvalue())
        self.assertEqual([kind for _, kind, _ in events], ["started", "failed"])
        self.assertEqual(events[-1][2]["exception_type"], "ValueError")
        self.assertNotIn("s3cret", json.dumps(events))

    def test_a_busy_session_is_the_last_event(self):
        Session.objects.create(
            agent="served.Asked", owner=self.user, owner_key=str(self.user.pk), key="s1"
        )
        Session.objects.filter(key="s1").take_turn("other", 60)

        with override_settings(MLANGO=settings.MLANGO | {"SESSION_WAIT": 0}):
            body = self.post("/stream/", {"message": "hi", "session_id": "s1"}).getvalue()

        self.assertEqual(events_of(body)[-1][2]["exception_type"], "SessionBusy")

    def test_a_reader_who_leaves_stops_the_run(self):
        response = self.post("/stream/", {"message": "use count_groups"})

        next(iter(response.streaming_content))
        leave(response)

        self.assertEqual(Trace.objects.get().status, "cancelled")

    def test_a_response_that_nobody_reads_starts_no_run(self):
        leave(self.post("/stream/"))

        self.assertFalse(Trace.objects.exists())


@served
class AsyncStreamTests(TestCase):
    """The same where the server has an event loop."""

    def setUp(self):
        self.user = make_user()
        self.async_client.force_login(self.user)

    async def post(self, url, **data):
        return await self.async_client.post(
            url, {"message": "hi"} | data, content_type="application/json"
        )

    async def test_an_answer_comes(self):
        response = await self.post("/ask/", message="use who")

        self.assertEqual(response.json()["output"], "tool results: ann of ann at /ask/")

    async def test_nobody_is_refused(self):
        await self.async_client.alogout()

        for url in ("/ask/", "/stream/"):
            self.assertEqual((await self.post(url)).status_code, 401)

    async def test_a_failed_run_names_its_trace_and_nothing_else(self):
        with self.assertLogs("mlango.serve", "ERROR"):
            response = await self.post("/limited/")

        self.assertEqual(response.status_code, 502)
        self.assertNotIn("s3cret", response.content.decode())

    async def test_a_wrong_session_id_is_told_before_the_stream_begins(self):
        response = await self.post("/stream/", session_id="a b")

        self.assertEqual(response.status_code, 400)

    async def test_events_come_with_id_kind_and_data(self):
        response = await self.post("/stream/", message="use count_groups")

        events = events_of(b"".join([part async for part in response.streaming_content]))
        self.assertEqual([number for number, _, _ in events], list(range(len(events))))
        self.assertEqual(events[-1][1], "finished")
        self.assertEqual(events[-1][2]["output"], "tool results: 0")

    async def test_a_view_of_the_project_returns_a_stream(self):
        response = await self.async_client.get("/own/")

        self.assertEqual(response["Content-Type"], "text/event-stream")
        events = events_of(b"".join([part async for part in response.streaming_content]))
        self.assertEqual(events[-1][2]["output"], "echo: hi")
        self.assertEqual((await Trace.objects.aget()).user_id, self.user.pk)

    async def test_heartbeats_come_while_nothing_happens(self):
        parts = []

        with mock.patch.object(streaming, "HEARTBEAT_SECONDS", 0):
            async with aclosing(sse.frames_of(Slow().astream("hi"))) as frames:
                async for part in frames:
                    parts.append(part)
                    if b"event: text_chunk" in b"".join(parts) and part == b": \n\n":
                        break

        self.assertEqual((await Trace.objects.aget()).status, "cancelled")
