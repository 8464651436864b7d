"""What an agent's runs leave, from its declaration to the rows."""

import asyncio

import pytest
from django.contrib.auth import get_user_model

from mlango.agents import Agent, MetastoreMemory, get_trace, recent_traces
from mlango.agents.providers import ScriptedProvider
from mlango.models import Session, Trace

User = get_user_model()

pytestmark = pytest.mark.django_db(transaction=True)


class Clerk(Agent):
    """Remembers a session from its traces."""

    class Meta:
        app_label = "shop"
        provider = "echo"
        memory = MetastoreMemory()
        system = "Be brief."


def scripted(*turns):
    return {"provider": ScriptedProvider(turns)}


def test_a_run_has_its_trace():
    run = Clerk().run("hi", **scripted("Hello."))

    assert run.trace.agent == "shop.Clerk"
    assert run.trace.messages == run.messages
    assert run.trace.opening["system"] == "Be brief."
    assert run.trace.fingerprint == Clerk._meta.fingerprint()
    assert get_trace(run.trace_uuid[:8]) == run.trace
    assert list(recent_traces(agent=Clerk)) == [run.trace]


def test_a_session_goes_on_in_the_next_run():
    ada = User.objects.create_user("ada")
    options = {"session_id": "s1", "user": ada}

    Clerk().run("I am Ada.", **options, **scripted("Hello Ada."))
    second = Clerk().run("Who am I?", **options, **scripted("Ada."))
    stranger = Clerk().run("Who am I?", session_id="s1", **scripted("No idea."))

    assert len(second.messages) == 4
    assert len(stranger.messages) == 2
    assert Session.objects.for_user(ada).get().traces.count() == 2
    assert second.trace.session_key == second.session_id == "s1"


def test_async_and_streamed_runs_leave_the_same_rows():
    async def both():
        await Clerk().arun("hi", **scripted("Hello."))
        async for _ in Clerk().astream("hi", **scripted("Hello.")):
            pass

    asyncio.run(both())
    for _ in Clerk().stream("hi", **scripted("Hello.")):
        pass
    Clerk().run("hi", **scripted("Hello."))

    rows = {(t.status, t.output, t.steps, t.span_count) for t in Trace.objects.all()}
    assert Trace.objects.count() == 4
    assert rows == {("finished", "Hello.", 1, 1)}


def test_without_tracing_there_is_no_trace(settings):
    settings.MLANGO = {"TRACING": False}

    run = Clerk().run("hi", **scripted("Hello."))

    assert run.trace is None
    assert not Trace.objects.exists()
