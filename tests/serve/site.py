"""A site that serves agents, and clients that ask them."""

import asyncio
import json
from unittest import mock

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.core.signals import request_finished
from django.db import transaction
from django.test import override_settings

from mlango.agents import Agent, Context, MetastoreMemory, fields, tool
from mlango.agents.providers import ScriptedProvider
from mlango.exceptions import RateLimited
from mlango.serve import include, path

SECRET = "s3cret: /etc/passwd"


@tool
def who(ctx: Context) -> str:
    """Tell who asks, and on which page."""
    return f"{ctx.user} of {ctx.request.user} at {ctx.request.path}"


@tool
def count_groups() -> int:
    """Count the groups."""
    return Group.objects.count()


@tool
def make_groups(count: int) -> int:
    """Make groups."""
    return len([Group.objects.create(name=str(number)) for number in range(count)])


class Asked(Agent):
    """Answers over HTTP."""

    tone = fields.CharField(default="plain")

    class Meta:
        app_label = "served"
        memory = MetastoreMemory()
        tools = [who, count_groups, make_groups]

    def get_system(self):
        return f"Be {self.tone}."


class Broken(Agent):
    class Meta:
        app_label = "served"
        provider = ScriptedProvider()

    def get_model(self):
        raise ValueError(SECRET)


class Limited(Agent):
    class Meta:
        app_label = "served"

    def get_model(self):
        raise RateLimited(SECRET, provider="x", status=429)


class Plain(Agent):
    class Meta:
        app_label = "served"


class Waiting(ScriptedProvider):
    """Says a word and then nothing more; counts who came and who has left it."""

    came = left = 0

    async def astream(self, **options):
        self.came += 1
        try:
            yield "word"
            await asyncio.Event().wait()
        finally:
            self.left += 1


class Endless(ScriptedProvider):
    """Never stops to talk; counts its words."""

    words = 0

    async def astream(self, **options):
        while True:
            self.words += 1
            yield "word "


class Slow(Agent):
    class Meta:
        app_label = "served"
        provider = Waiting()


class Chatty(Agent):
    class Meta:
        app_label = "served"
        provider = Endless()


@transaction.non_atomic_requests
async def own_view(request):
    """A view of a project's own."""
    stream = Asked().astream("hi", user=await request.auser())
    return stream.as_response()


urlpatterns = [
    path("ask/", Asked.as_endpoint()),
    path("formal/", Asked.as_endpoint(tone="formal")),
    path("only/", Asked.as_endpoint(permission="auth.view_group")),
    path("stream/", Asked.as_stream_endpoint()),
    path("own/", own_view),
    path("broken/", Broken.as_endpoint()),
    path("broken/stream/", Broken.as_stream_endpoint()),
    path("limited/", Limited.as_endpoint()),
    path("plain/", Plain.as_endpoint()),
    path("plain/stream/", Plain.as_stream_endpoint()),
    path("slow/", Slow.as_endpoint()),
    path("slow/stream/", Slow.as_stream_endpoint()),
    path("chatty/stream/", Chatty.as_stream_endpoint()),
    path("in/<slug:tenant>/", include([path("ask/", Asked.as_endpoint())])),
]

served = override_settings(ROOT_URLCONF=__name__)


def make_user(name="ann", **fields):
    return get_user_model().objects.create_user(name, **fields)


def events_of(body):
    """Return the (id, event, data) of every event in a body."""
    blocks = [block for block in body.decode().split("\n\n") if block and block[0] != ":"]
    return [event_of(block) for block in blocks]


def event_of(block):
    lines = dict(line.split(": ", 1) for line in block.split("\n"))
    return int(lines["id"]), lines["event"], json.loads(lines["data"])


def leave(response):
    """Close a response as a server does when its reader has left, but keep the connection."""
    with mock.patch.object(request_finished, "send"):
        response.close()


class Posting:
    """Posts JSON as ann."""

    def setUp(self):
        self.user = make_user()
        self.client.force_login(self.user)

    def post(self, url="/ask/", data=None, client=None, **options):
        data = {"message": "hi"} if data is None else data
        return (client or self.client).post(url, data, content_type="application/json", **options)

    def assert_problem(self, response, status, detail):
        problem = json.loads(response.content)
        self.assertEqual(response.status_code, status)
        self.assertEqual(response["Content-Type"], "application/problem+json")
        self.assertEqual(problem["status"], status)
        self.assertIn(detail, problem["detail"])
        self.assertEqual(len(problem["id"]), 32)
        return problem
