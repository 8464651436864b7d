"""Runs whose answers are held back until they are complete, and so can be asked for anew."""

import asyncio
import json

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth import get_user_model
from django.test import AsyncClient, Client, override_settings
from django.urls import path

from mlango.agents import Agent, Regex, Retry, Retrying, TextChunk, tool
from mlango.agents.execution import execute_now
from mlango.agents.providers import ScriptedProvider, ToolCall
from mlango.exceptions import Misused, ProviderTimeout, ProviderUnavailable
from mlango.models import Trace
from tests.serve.test_sockets import Talker

pytestmark = pytest.mark.django_db(transaction=True)

AT_ONCE = Retry(max_retries=2, base_delay=0)


def broken(text="Half of "):
    """Return an answer that breaks off."""
    return {"text": text, "error": ProviderUnavailable("The line is dead.")}


@tool
def look() -> str:
    """Look."""
    return "seen"


class Desk(Agent):
    class Meta:
        app_label = "buffered"
        tools = [look]
        retry = AT_ONCE


class Lead(Agent):
    class Meta:
        app_label = "buffered"
        subagents = [Desk]
        retry = AT_ONCE


class Flaky(ScriptedProvider):
    """A provider by dotted path, for endpoints."""

    def __init__(self):
        super().__init__([broken(), "All of it."])


class Steady(ScriptedProvider):
    def __init__(self):
        super().__init__(["All of it."])


served = override_settings(
    ROOT_URLCONF=__name__,
    MLANGO={"PROVIDERS": {"flaky": f"{__name__}.Flaky"}, "DEFAULT_PROVIDER": "flaky"},
)
urlpatterns = [
    path("json/", Desk.as_endpoint()),
    path("stream/", Desk.as_stream_endpoint()),
]


def texts(events):
    return "".join(event.text for event in events if isinstance(event, TextChunk))


def kinds(events):
    return [event.kind for event in events]


def run(agent, message, **options):
    return list(agent.stream(message, **options))


def astream(agent, message, **options):
    async def read():
        return [event async for event in agent.astream(message, **options)]

    return asyncio.run(read())


paths = pytest.mark.parametrize("read", [run, astream])


@paths
def test_an_answer_that_breaks_off_is_tried_again(read):
    model = ScriptedProvider([broken(), broken(), "All of it."])
    events = read(Desk(), "hi", provider=model, buffered=True)

    assert texts(events) == "All of it."
    assert [event.attempt for event in events if isinstance(event, Retrying)] == [1, 2]
    assert events[-1].result.ok
    assert [event.seq for event in events] == list(range(len(events)))


@paths
def test_without_it_the_reader_has_its_beginning_and_the_run_fails(read):
    events = read(Desk(), "hi", provider=ScriptedProvider([broken(), "All of it."]))
    assert texts(events) == "Half of "
    assert events[-1].kind == "failed"


def test_an_answer_is_told_in_the_pieces_in_which_it_came():
    model = ScriptedProvider([[ToolCall("a", "look", {})], "One two three."])
    live = kinds(Desk().stream("hi", provider=model))
    model.reset()
    assert kinds(Desk().stream("hi", provider=model, buffered=True)) == live


def test_nothing_is_told_before_the_answer_is_complete():
    told = []

    class Watched(ScriptedProvider):
        async def astream(self, **request):
            async for delta in super().astream(**request):
                yield delta
                told.append(stream._run.released)

    stream = Desk().stream("hi", provider=Watched(["One two three."]), buffered=True)
    list(stream)
    assert told
    assert not any(told)


def test_it_holds_for_runs_that_tell_nothing():
    model = ScriptedProvider([broken(), "All of it."])
    assert Desk().run("hi", provider=model, buffered=True).text == "All of it."
    model.reset()
    assert asyncio.run(Desk().arun("hi", provider=model, buffered=True)).text == "All of it."


def test_the_last_error_has_what_had_arrived_and_each_attempt_is_a_span():
    model = ScriptedProvider([broken(), broken(), broken("Almost")])
    with pytest.raises(ProviderUnavailable) as caught:
        Desk().run("hi", provider=model, buffered=True)

    assert caught.value.text == "Almost"
    assert caught.value.run.text == ""
    spans = Trace.objects.get().spans.values_list("error_type", flat=True)
    assert list(spans) == ["ProviderUnavailable"] * 3


def test_what_a_guardrail_has_not_checked_is_not_in_the_error():
    class Guarded(Desk):
        class Meta:
            guardrails = [Regex(pattern="secret", on=["output"])]

    with pytest.raises(ProviderUnavailable) as caught:
        Guarded().run("hi", provider=ScriptedProvider([broken()] * 3), buffered=True)
    assert caught.value.text == ""


def test_an_answer_that_stalls_is_tried_again(settings):
    settings.MLANGO = {**settings.MLANGO, "LLM_CHUNK_TIMEOUT": 0.01}

    class Stalling(ScriptedProvider):
        async def astream(self, **request):
            async for delta in super().astream(**request):
                yield delta
                if len(self.calls) == 1:
                    await asyncio.Event().wait()

    model = Stalling(["Half of it.", "All of it."])
    events = list(Desk().stream("hi", provider=model, buffered=True))
    assert [e.exception_type for e in events if isinstance(e, Retrying)] == [
        ProviderTimeout.__name__
    ]
    assert texts(events) == "All of it."


def test_another_model_is_asked_after_an_answer_that_broke_off(settings):
    settings.MLANGO = {
        **settings.MLANGO,
        "PROVIDERS": {"flaky": f"{__name__}.Flaky", "steady": f"{__name__}.Steady"},
    }

    class Fallen(Agent):
        class Meta:
            app_label = "buffered"
            model = "flaky/one"
            fallback_models = ["steady/two"]
            retry = Retry(max_retries=0)

    events = list(Fallen().stream("hi", buffered=True))
    assert "fell_back" in kinds(events)
    assert texts(events) == "All of it."


def test_a_steering_message_ends_a_model_call_that_is_held_back():
    class Stalling(ScriptedProvider):
        async def astream(self, **request):
            async for delta in super().astream(**request):
                yield delta
                if len(self.calls) == 1:
                    stream.steer("Wait.", now=True)
                    await asyncio.Event().wait()

    stream = Desk().stream("hi", provider=Stalling(["Half", "All of it."]), buffered=True)
    events = list(stream)
    assert texts(events) == "All of it."
    assert "steered" in kinds(events)


def test_what_an_aborted_run_held_back_is_not_kept():
    class Stalling(ScriptedProvider):
        async def astream(self, **request):
            yield "Half"
            stream.abort()
            await asyncio.Event().wait()

    stream = Desk().stream("hi", provider=Stalling(), buffered=True)
    list(stream)
    assert (stream.run.status, stream.run.text) == ("cancelled", "")
    assert [message["role"] for message in stream.run.messages] == ["user"]


@paths
def test_sub_agents_are_held_back_with_their_lead(read):
    asked = [ToolCall("a", "desk", {"message": "hi"})]
    model = ScriptedProvider([asked, broken(), "All of it.", "Done."])
    events = read(Lead(), "hi", provider=model, buffered=True)
    assert texts(events) == "All of it.Done."
    assert events[-1].result.ok


def test_a_run_that_goes_on_may_be_held_back_too():
    begun = Desk().run("hi", provider=ScriptedProvider([broken()]), raise_on_error=False)
    model = ScriptedProvider([broken(), "All of it."])
    events = list(Desk().resume_stream(begun, provider=model, buffered=True))
    assert texts(events) == "All of it."


def test_a_run_that_was_held_back_is_so_when_it_goes_on():
    first = ScriptedProvider([broken()] * 3)
    begun = Desk().run("hi", provider=first, buffered=True, raise_on_error=False)
    model = ScriptedProvider([broken(), "All of it."])
    assert texts(Desk().resume_stream(begun, provider=model)) == "All of it."


@served
def test_a_queued_run_is_held_back_in_the_process_that_does_it():
    trace = Desk().enqueue("hi", buffered=True)
    assert execute_now(trace.pk).text == "All of it."
    assert not trace.events.filter(data_json__contains="Half").exists()


@pytest.mark.parametrize("wrong", ["yes", 1, 0, []])
def test_it_is_true_or_false(wrong):
    with pytest.raises(Misused, match="buffered must be True or False"):
        Desk().run("hi", buffered=wrong)


# -- over HTTP ----------------------------------------------------------------------------------


@pytest.fixture
def ann():
    return get_user_model().objects.create_user("ann")


def body_of(response):
    return b"".join(response.streaming_content) if response.streaming else response.content


@served
@pytest.mark.parametrize("url", ["/json/", "/stream/"])
@pytest.mark.parametrize("kind", ["json", "form"])
def test_a_request_may_ask_for_it_under_wsgi(ann, url, kind):
    client = Client()
    client.force_login(ann)
    if kind == "json":
        data = json.dumps({"message": "hi", "buffered": True})
        response = client.post(url, data, content_type="application/json")
    else:
        response = client.post(url, {"message": "hi", "buffered": "true"})
    body = body_of(response)
    assert response.status_code == 200
    assert b"Half" not in body
    assert Trace.objects.get().output == "All of it."


@served
@pytest.mark.parametrize("url", ["/json/", "/stream/"])
def test_and_under_asgi(ann, url):
    async def ask():
        client = AsyncClient()
        await client.aforce_login(ann)
        data = json.dumps({"message": "hi", "buffered": True})
        response = await client.post(url, data, content_type="application/json")
        if not response.streaming:
            return response.content
        return b"".join([part async for part in response.streaming_content])

    assert b"Half" not in async_to_sync(ask)()
    assert Trace.objects.get().output == "All of it."


@served
def test_and_over_a_socket(ann):
    client = Client()
    client.force_login(ann)
    cookies = f"sessionid={client.cookies['sessionid'].value}"

    async def talk():
        async with Talker(Desk, cookies) as talker:
            talker.say("send", message="hi", buffered=True)
            await talker.until(lambda message: '"kind": "finished"' in message.get("text", ""))
            return talker.heard

    heard = asyncio.run(talk())
    said = "".join(frame["text"] for frame in heard if frame.get("kind") == "text_chunk")
    assert said == "All of it."


@served
@pytest.mark.parametrize("wrong", ["yes", 1, None])
def test_a_request_that_is_unclear_about_it_is_refused(ann, wrong):
    client = Client()
    client.force_login(ann)
    for data, options in (
        (json.dumps({"message": "hi", "buffered": wrong}), {"content_type": "application/json"}),
        ({"message": "hi", "buffered": str(wrong)}, {}),
    ):
        response = client.post("/json/", data, **options)
        assert response.status_code == 400
        assert "'buffered' must be true or false" in response.json()["detail"]
