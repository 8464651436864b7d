"""A limit on every path: it stops, says which, keeps the work, and a higher one goes on."""

import asyncio

import pytest
from django.contrib.auth import get_user_model
from django.urls import path

from mlango.agents import Agent, Limits, tool
from mlango.agents.execution import execute_now
from mlango.agents.providers import Completion, Provider, ToolCall, Usage
from mlango.exceptions import OverBudget
from mlango.models import Trace
from tests.http import over_asgi, over_wsgi
from tests.wires import assert_sendable

pytestmark = pytest.mark.django_db(transaction=True)

PAGES = 4
done = []  # the pages that were read
hangs = []  # whether a page takes for ever


@pytest.fixture
def hanging():
    hangs.append(True)
    yield hangs
    hangs.clear()


@tool(effect="read")
async def read(page: int) -> str:
    """Read a page."""
    if hangs:
        await asyncio.Event().wait()
    done.append(page)
    return f"page {page}"


class Reading(Provider):
    """Has one page read at a step, then answers. What was read before tells how far it is.

    To an agent with colleagues it says to ask them, once.
    """

    def complete(self, *, messages, tools=None, **options):
        results = [m for m in messages if m["role"] == "tool" and not m.get("is_error")]
        names = [each["function"]["name"] for each in tools or ()]
        asked = ToolCall("", names[0], {"message": "Read."} if "read" not in names else {})
        if "read" in names and len(results) < PAGES:
            asked.arguments["page"] = len(results) + 1
        elif results:
            return Completion("Read it all.", usage=Usage(10, 5))
        return Completion(tool_calls=[asked], usage=Usage(10, 5))


def agent(name, **meta):
    fields = {"app_label": "limited", "model": "reading/one", "max_steps": None} | meta
    return type(name, (Agent,), {"Meta": type("Meta", (), fields), "__module__": __name__})


Reader = agent("Reader", tools=[read])
Lead = agent("Lead", subagents=[Reader])
Lasting = agent("Lasting", tools=[read], durable=True)
# What is served declares its limits, as nobody passes any.
Served = agent("Served", tools=[read])

LIMITS = {  # each allows two steps with their calls, or a little less
    "max_tokens": 30,
    "max_input_tokens": 20,
    "max_output_tokens": 10,
    "max_cost_usd": 30,
    "max_steps": 2,
    "max_tool_calls": 2,
}
SHARED = [name for name in LIMITS if name not in ("max_steps", "max_tool_calls")]
ENOUGH = 1000


@pytest.fixture(autouse=True)
def _site(settings):
    done.clear()
    settings.ROOT_URLCONF = __name__
    settings.MLANGO = {
        "PROVIDERS": {"reading": f"{__name__}.Reading"},
        "DEFAULT_PROVIDER": "reading",
        "PRICES": {"reading/one": {"input": 1_000_000, "output": 1_000_000}},
    }


@pytest.fixture
def served(monkeypatch):
    """Return what sets the limits of the agent that is served."""

    def limit(limits):
        from dataclasses import replace

        monkeypatch.setattr(Served, "_meta", replace(Served._meta, limits=limits))

    return limit


class Run:
    cls = Reader

    def begin(self, limits):
        return self.cls().run("Go.", limits=limits)

    def go_on(self, trace, limits):
        return self.cls().resume(trace, limits=limits)


class Arun(Run):
    def begin(self, limits):
        return asyncio.run(self.cls().arun("Go.", limits=limits))

    def go_on(self, trace, limits):
        return asyncio.run(self.cls().aresume(trace, limits=limits))


class Stream(Run):
    def begin(self, limits):
        return list(self.cls().stream("Go.", limits=limits))[-1].result

    def go_on(self, trace, limits):
        return list(self.cls().resume_stream(trace, limits=limits))[-1].result


class Astream(Run):
    def begin(self, limits):
        async def read_all():
            return [event async for event in self.cls().astream("Go.", limits=limits)]

        return asyncio.run(read_all())[-1].result

    def go_on(self, trace, limits):
        async def read_all():
            stream = await self.cls().aresume_stream(trace, limits=limits)
            return [event async for event in stream]

        return asyncio.run(read_all())[-1].result


class Buffered(Stream):
    def begin(self, limits):
        return list(self.cls().stream("Go.", limits=limits, buffered=True))[-1].result


class SubAgent(Run):
    cls = Lead


class Durable(Run):
    cls = Lasting


class Queued(Run):
    cls = Lasting

    def begin(self, limits):
        return execute_now(self.cls().enqueue("Go.", limits=limits).pk)


PATHS = [Run, Arun, Stream, Astream, Buffered, SubAgent, Durable, Queued]


WAYS = [(way, name) for way in PATHS for name in (SHARED if way is SubAgent else LIMITS)]


@pytest.mark.parametrize(("way", "name"), WAYS)
def test_a_limit_stops_keeps_the_work_and_a_higher_one_goes_on(way, name):
    limit = LIMITS[name]
    run = way().begin(Limits(**{name: limit}))

    assert (run.status, run.stop_reason) == ("stopped", "budget_exceeded")
    assert (run.budget.limit, run.budget.max, run.budget.scope) == (name, limit, "run")
    assert run.budget.value >= limit
    assert run.describe()["budget"]["limit"] == name
    assert name in run.error
    assert_sendable(run.messages)
    assert Trace.objects.get(pk=run.trace_uuid).messages == run.messages
    read_before = list(done)
    assert read_before == list(range(1, len(read_before) + 1))

    again = way().go_on(run.trace_uuid, Limits(**{name: limit}))
    assert (again.status, again.budget.limit) == ("stopped", name)
    assert done == read_before

    ended = way().go_on(run.trace_uuid, Limits(**{name: ENOUGH}))
    assert (ended.status, ended.text, ended.budget) == ("finished", "Read it all.", None)
    assert ended.messages[: len(run.messages)] == run.messages
    assert_sendable(ended.messages)
    assert ended.usage.total_tokens > run.usage.total_tokens
    assert sorted(set(done)) == [1, 2, 3, 4]
    assert len(done) == PAGES or way is SubAgent  # which may be asked anew


@pytest.mark.parametrize("way", PATHS)
def test_a_limit_that_raises_fails_the_run_with_its_work(way):
    limits = Limits(max_tokens=30, on_exceeded="raise")
    try:
        run = way().begin(limits)
    except OverBudget as error:  # of run() and arun(); a stream ends with it
        run = error.run
    assert (run.status, run.budget.limit) == ("failed", "max_tokens")
    assert run.tool_results
    assert way().go_on(run.trace_uuid, Limits(max_tokens=1000)).ok


@pytest.mark.parametrize("way", PATHS)
def test_the_time_of_a_run_is_a_limit_like_any_other(way, hanging):
    run = way().begin(Limits(max_duration=0.05))
    assert (run.status, run.stop_reason) == ("stopped", "budget_exceeded")
    assert (run.budget.limit, run.budget.max, run.budget.scope) == ("max_duration", 0.05, "run")
    assert_sendable(run.messages)

    hanging.clear()
    ended = way().go_on(run.trace_uuid, Limits(max_duration=600))
    assert (ended.status, ended.text) == ("finished", "Read it all.")


def test_calls_that_were_not_made_do_not_count_when_a_run_goes_on():
    class Several(Reading):
        def complete(self, *, messages, **options):
            if len(messages) == 1:
                calls = [ToolCall("", "read", {"page": n}) for n in (1, 2, 3, 4)]
                return Completion(tool_calls=calls)
            if len(messages) == 6:
                return Completion(tool_calls=[ToolCall("", "read", {"page": 3})])
            return Completion("Read.")

    single = agent("Single", tools=[read], max_parallel_tools=1)()
    run = single.run("Go.", limits=Limits(max_tool_calls=2), provider=Several())
    assert (run.budget.limit, done) == ("max_tool_calls", [1, 2])
    ended = single.resume(run, limits=Limits(max_tool_calls=3), provider=Several())
    assert (ended.text, done) == ("Read.", [1, 2, 3])


def test_whoever_goes_on_with_a_durable_run_has_the_limit_that_was_given_last():
    run = Lasting().run("Go.", limits=Limits(max_steps=1))
    stream = Lasting().resume_stream(run, limits=Limits(max_steps=50))
    for event in stream:
        if event.kind == "tool_called":
            stream._run.leave()
    assert stream.run.status == "queued"

    ended = execute_now(run.trace_uuid)
    assert (ended.status, ended.text) == ("finished", "Read it all.")


# -- over HTTP ----------------------------------------------------------------------------------

urlpatterns = [
    path("json/", Served.as_endpoint()),
    path("stream/", Served.as_stream_endpoint()),
]


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("url", ["/json/", "/stream/"])
@pytest.mark.parametrize("server", [over_wsgi, over_asgi])
def test_a_limit_holds_over_http_and_its_run_goes_on(server, url, name, served):
    served(Limits(**{name: LIMITS[name]}))
    ann = get_user_model().objects.create_user("ann")
    _, body = server(url, ann)
    assert "budget_exceeded" in body
    assert name in body

    trace = Trace.objects.get()
    assert (trace.status, trace.stop_reason) == ("stopped", "budget_exceeded")
    assert_sendable(trace.messages)
    ended = Served().resume(trace, limits=Limits(**{name: ENOUGH}), user=ann)
    assert (ended.status, ended.text) == ("finished", "Read it all.")
    assert sorted(done) == [1, 2, 3, 4]
