"""What must hold on every path a run can take."""

import asyncio

import pytest
from django.contrib.auth import get_user_model
from django.test import override_settings
from django.urls import path

from mlango.agents import Agent, deny, tool
from mlango.agents.providers import ScriptedProvider, ToolCall
from mlango.models import Trace
from tests.http import over_asgi, over_wsgi

pytestmark = pytest.mark.django_db(transaction=True)

effects = []


@tool
def erase(order: int) -> str:
    """Erase an order."""
    effects.append(order)
    return "erased"


@tool(permission="auth.delete_user")
def erase_user(user_id: int) -> str:
    """Erase a user."""
    effects.append(user_id)
    return "erased"


@tool(approval=True)
def refund(order: int) -> str:
    """Refund an order."""
    effects.append(order)
    return "refunded"


@tool
async def look_up(order: int) -> str:
    """Look an order up."""
    return f"order {order}"


def forbidden():
    """Return turns in which the model calls all that it may not call."""
    calls = [
        ToolCall("a", "erase", {"order": 1}),
        ToolCall("b", "erase_user", {"user_id": 1}),
        ToolCall("c", "refund", {"order": 1}),
        ToolCall("d", "nowhere", {}),
    ]
    return [calls, "Sorry.", "Sorry."]


class Desk(Agent):
    """Helps."""

    class Meta:
        app_label = "control"
        tools = [erase, erase_user, refund, look_up]
        permissions = [deny("erase")]


class Lead(Agent):
    """Leads."""

    class Meta:
        app_label = "control"
        subagents = [Desk]


@pytest.fixture(autouse=True)
def _no_effects():
    effects.clear()


@pytest.fixture
def ann():
    return get_user_model().objects.create_user("ann", password="x")


class Scripted(ScriptedProvider):
    """A provider by dotted path, for endpoints; plays the forbidden turns anew each time."""

    def __init__(self):
        super().__init__(forbidden())


served = override_settings(
    ROOT_URLCONF=__name__,
    MLANGO={
        "PROVIDERS": {"forbidden": f"{__name__}.Scripted"},
        "DEFAULT_PROVIDER": "forbidden",
    },
)
urlpatterns = [
    path("json/", Desk.as_endpoint()),
    path("stream/", Desk.as_stream_endpoint()),
]


class TestForbiddenTools:
    def test_run(self, ann):
        run = Desk().run("hi", user=ann, provider=ScriptedProvider(forbidden()))
        assert effects == []
        assert run.status == "waiting"  # for the refund; nothing else is open

    def test_arun(self, ann):
        asyncio.run(Desk().arun("hi", user=ann, provider=ScriptedProvider(forbidden())))
        assert effects == []

    def test_stream(self, ann):
        list(Desk().stream("hi", user=ann, provider=ScriptedProvider(forbidden())))
        assert effects == []

    def test_astream(self, ann):
        async def read():
            stream = Desk().astream("hi", user=ann, provider=ScriptedProvider(forbidden()))
            return [event async for event in stream]

        asyncio.run(read())
        assert effects == []

    def test_without_a_user(self):
        Desk().run("hi", provider=ScriptedProvider(forbidden()))
        assert effects == []

    def test_sub_agent(self, ann):
        turns = [[ToolCall("x", "desk", {"message": "hi"})], *forbidden(), "Done."]
        Lead().run("hi", user=ann, provider=ScriptedProvider(turns))
        assert effects == []
        assert Trace.objects.count() == 2

    def test_resume(self, ann):
        run = Desk().run("hi", user=ann, provider=ScriptedProvider(forbidden()))
        Desk().resume(run, provider=ScriptedProvider(["Sorry."]))
        assert effects == []

    @served
    @pytest.mark.parametrize("url", ["/json/", "/stream/"])
    @pytest.mark.parametrize("server", [over_wsgi, over_asgi])
    def test_endpoints(self, ann, server, url):
        status, _ = server(url, ann)
        assert status == 200
        assert effects == []
        assert Trace.objects.get().status == "waiting"
