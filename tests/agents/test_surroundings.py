"""A run is in the language and the time zone of whoever started it."""

import asyncio
import threading
from zoneinfo import ZoneInfo

import pytest
from django.utils import timezone, translation

from mlango.agents import Agent, Hooks, tool
from mlango.agents.execution import execute_now
from mlango.agents.providers import ScriptedProvider
from mlango.agents.providers.scripted import call
from mlango.models import Approval
from mlango.models.approval import Operator


def here():
    return f"{translation.get_language()} {timezone.get_current_timezone_name()}"


@tool
def plain() -> str:
    """Tell where it runs."""
    return here()


@tool
async def asynchronous() -> str:
    """Tell where it runs."""
    await asyncio.to_thread(lambda: None)
    return here()


@tool(thread_sensitive=False)
def pooled() -> str:
    """Tell where it runs."""
    assert threading.current_thread() is not threading.main_thread()
    return here()


@tool
def generator() -> str:
    """Tell where it runs."""
    yield here()


@tool
def wandering() -> str:
    """Go elsewhere."""
    translation.activate("fr")
    timezone.activate(ZoneInfo("Asia/Tokyo"))
    return here()


TOOLS = [plain, asynchronous, pooled, generator]
hooked = []


class Traveller(Agent):
    class Meta:
        tools = [*TOOLS, wandering]
        hooks = Hooks(before_model=lambda messages, ctx: hooked.append(here()))
        tracing = False
        abstract = True

    def get_system(self, ctx):
        return f"You are in {here()}."


def provider(*tools):
    return ScriptedProvider([[call(each.name) for each in tools or TOOLS], "ok"])


@pytest.fixture
def vienna():
    hooked.clear()
    with translation.override("de"), timezone.override(ZoneInfo("Europe/Vienna")):
        yield "de Europe/Vienna"


def results(run):
    return {result.content for result in run.tool_results}


def test_plain_code_gives_its_own_to_every_kind_of_tool(vienna):
    asked = provider()
    run = Traveller().run("hi", provider=asked)
    assert results(run) == set(hooked) == {vienna}
    assert asked.last_call.system == f"You are in {vienna}."


def test_a_stream_keeps_to_where_it_was_started(vienna):
    stream = Traveller().stream("hi", provider=provider())
    with translation.override("it"), timezone.override(None):
        events = list(stream)
    assert results(events[-1].result) == {vienna}


async def test_async_code_gives_its_own_to_every_kind_of_tool():
    with translation.override("de"), timezone.override(ZoneInfo("Europe/Vienna")):
        run = await Traveller().arun("hi", provider=provider())
    assert results(run) == {"de Europe/Vienna"}


async def test_runs_side_by_side_keep_apart():
    async def travel(language):
        with translation.override(language):
            run = await Traveller().arun("hi", provider=provider())
        return {result.split()[0] for result in results(run)}

    assert await asyncio.gather(*map(travel, ("de", "fr", "it"))) == [{"de"}, {"fr"}, {"it"}]


def test_where_a_tool_goes_stays_with_the_tool(vienna):
    run = Traveller().run("hi", provider=provider(wandering, plain))
    assert [result.content for result in run.tool_results] == ["fr Asia/Tokyo", vienna]
    assert here() == vienna


async def test_where_a_tool_goes_stays_with_the_tool_in_async_runs():
    with translation.override("de"), timezone.override(ZoneInfo("Europe/Vienna")):
        run = await Traveller().arun("hi", provider=provider(wandering, plain))
        assert here() == "de Europe/Vienna"
    assert [result.content for result in run.tool_results] == ["fr Asia/Tokyo", "de Europe/Vienna"]


@tool(approval=True)
def approved() -> str:
    """Tell where it runs."""
    return here()


class Settler(Agent):
    class Meta:
        tools = [plain, approved]
        app_label = "surroundings"
        provider = "echo"


@pytest.mark.django_db(transaction=True)
def test_a_run_that_another_process_does_keeps_to_where_it_was_asked_for(vienna):
    trace = Settler().enqueue("use plain {}")
    with translation.override("it"), timezone.override(None):
        run = execute_now(trace.uuid)
    assert results(run) == {vienna}
    assert here() == vienna


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("options", [{}, {"idempotency_key": "one"}])
def test_a_run_goes_on_where_it_was_started(vienna, options):
    run = Settler().run("use approved {}", **options)
    with translation.override("it"), timezone.override(ZoneInfo("Asia/Tokyo")):
        Approval.objects.get(trace=run.trace_uuid).decide("approve", by=Operator())
        ended = Settler().resume(run)
        assert here() == "it Asia/Tokyo"
    assert results(ended) == {vienna}


@pytest.mark.django_db(transaction=True)
def test_the_same_request_in_another_language_is_the_same_run(vienna):
    run = Settler().run("use plain {}", idempotency_key="one")
    with translation.override("it"):
        assert Settler().run("use plain {}", idempotency_key="one").trace_uuid == run.trace_uuid


@pytest.mark.django_db(transaction=True)
def test_a_time_zone_that_is_gone_leaves_the_one_of_this_process(vienna):
    trace = Settler().enqueue("use plain {}")
    durable = trace.durable
    durable.request = durable.request | {
        "surroundings": {"language": "de", "time_zone": "Europe/Atlantis"}
    }
    durable.save()
    with timezone.override(ZoneInfo("Asia/Tokyo")):
        assert results(execute_now(trace.uuid)) == {"de Asia/Tokyo"}
