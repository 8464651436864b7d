"""Runs that were begun: listed, read, stopped and steered over HTTP."""

import asyncio

import pytest
from django.test import AsyncClient, Client

from mlango.agents import Agent, tool
from mlango.agents.providers import Completion, ScriptedProvider, ToolCall
from mlango.models import Trace
from mlango.serve import include, path
from tests.serve.site import SECRET, Asked, Broken, Slow, make_user

pytestmark = pytest.mark.django_db(transaction=True)


@tool(approval=True)
def erase(order: int) -> str:
    """Erase an order."""
    return "erased"


class Careful(Agent):
    class Meta:
        app_label = "served"
        tools = [erase]


class Talker(ScriptedProvider):
    """Says a word, waits for what it is told, and says that."""

    def __init__(self):
        super().__init__([])
        self.asked = []
        self.told = asyncio.Event()

    async def astream(self, *, messages, **options):
        self.asked.append(messages[-1]["content"])
        yield "word"
        await self.told.wait()
        yield Completion("word")


class Listening(Agent):
    class Meta:
        app_label = "served"


urlpatterns = [
    path("asked/", include(Asked.urls)),
    path("slow/", include(Slow.urls)),
    path("listening/", include(Listening.urls)),
    path("careful/", include(Careful.urls)),
    path("", include("mlango.urls")),
]


@pytest.fixture(autouse=True)
def _site(settings):
    settings.ROOT_URLCONF = __name__


@pytest.fixture
def ann():
    return make_user("ann")


@pytest.fixture
def client(ann):
    client = Client()
    client.force_login(ann)
    return client


def post(client, url, data=None):
    return client.post(url, data or {}, content_type="application/json")


def test_a_run_is_read_as_its_endpoint_has_answered(client):
    answer = post(client, "/asked/run/", {"message": "use who", "session_id": "s1"}).json()

    for url in ("/asked/runs/", "/runs/"):
        read = client.get(f"{url}{answer['trace']}/").json()

        assert {name: read[name] for name in answer} == answer
        assert read["started_at"] < read["ended_at"]


def test_a_run_that_waits_tells_what_for(client):
    answer = post(client, "/careful/run/", {"message": 'use erase {"order": 7}'}).json()

    read = client.get(f"/runs/{answer['trace']}/").json()

    assert read["status"] == "waiting"
    assert read["approvals"] == answer["approvals"] != []


def test_a_long_output_is_read_in_full(client):
    message = "long, " * 10_000 + "end"

    trace = post(client, "/asked/run/", {"message": message}).json()["trace"]

    assert client.get(f"/runs/{trace}/").json()["output"].endswith(message)


def test_a_failed_run_does_not_tell_the_text_of_its_exception(ann, client):
    run = Broken().run("hi", user=ann, raise_on_error=False)

    body = client.get(f"/runs/{run.trace_uuid}/").content.decode()

    assert '"status": "failed"' in body
    assert SECRET not in body
    assert "ValueError" not in body


def test_pages_follow_each_other_newest_first(ann, client):
    made = [Asked().run(str(number), user=ann).trace_uuid for number in range(5)]

    seen, before = [], ""
    while before is not None:
        page = client.get("/runs/", {"limit": 2, "before": before}).json()
        seen += [run["trace"] for run in page["runs"]]
        before = page["next"]

    assert seen == made[::-1]


def test_a_list_is_narrowed_by_session_and_status(ann, client):
    Asked().run("a", user=ann, session_id="s1")
    Careful().run('use erase {"order": 7}', user=ann)

    def agents(url, **query):
        return [run["agent"] for run in client.get(url, query).json()["runs"]]

    assert agents("/runs/", session_id="s1") == ["served.Asked"]
    assert agents("/runs/", status="waiting") == ["served.Careful"]
    assert agents("/asked/runs/") == ["served.Asked"]
    assert agents("/asked/runs/", status="waiting") == []


@pytest.mark.parametrize(
    ("query", "detail"),
    [
        ("limit=0", "'limit' must be a number from 1 to 100."),
        ("limit=101", "'limit' must be"),
        ("limit=1e3", "'limit' must be"),
        ("limit=%C2%B2", "'limit' must be"),
        ("limit=" + "9" * 5000, "'limit' must be"),
        ("status=finish", "Did you mean 'finished'?"),
        ("before=x", "'before' must be the id of a run, as 'next' gives it."),
    ],
    ids=lambda value: value[:20],
)
def test_a_query_that_is_wrong_is_told(client, query, detail):
    response = client.get(f"/runs/?{query}")

    assert response.status_code == 400
    assert detail in response.json()["detail"]


def test_a_page_behind_a_run_of_somebody_else_is_not_found(client):
    theirs = Asked().run("a", user=make_user("bob")).trace_uuid

    for trace in (theirs, "f" * 32):
        response = client.get("/runs/", {"before": trace})

        assert response.status_code == 404
        assert response.json()["detail"] == "There is no such run to begin behind."


def test_a_query_with_nul_finds_nothing(client):
    assert client.get("/runs/?session_id=%00").json() == {"runs": [], "next": None}


def test_runs_of_sub_agents_are_not_in_the_list(ann, client):
    class Lead(Agent):
        class Meta:
            app_label = "served"
            subagents = [Asked]

    first = [ToolCall("1", "asked", {"message": "hi"})]
    Lead().run("go", user=ann, provider=ScriptedProvider([first, "Done.", "Done."]))

    assert [run["agent"] for run in client.get("/runs/").json()["runs"]] == ["served.Lead"]
    assert Trace.objects.for_user(ann).count() == 2


def test_a_run_that_has_ended_is_not_stopped(ann, client):
    trace = Asked().run("a", user=ann).trace_uuid

    for verb, data in (
        ("cancel", {}),
        ("steer", {"message": "x"}),
        ("follow-up", {"message": "x"}),
    ):
        response = post(client, f"/runs/{trace}/{verb}/", data)

        assert response.status_code == 409
        assert response.json()["detail"] == "The run has ended (finished)."


def test_a_run_of_another_process_is_not_stopped_from_here(ann, client):
    trace = Asked().run("a", user=ann).trace_uuid
    Trace.objects.update(status="running")

    response = post(client, f"/runs/{trace}/cancel/")

    assert response.status_code == 409
    assert "in another process" in response.json()["detail"]


@pytest.mark.parametrize("prefix", ["/slow/", "/"])
@pytest.mark.parametrize("kind", ["application/json", ""], ids=["json", "no body"])
def test_a_run_that_goes_on_is_stopped(ann, prefix, kind):
    client = AsyncClient()
    client.force_login(ann)

    async def stop():
        stream = Slow().astream("hi", user=ann)
        async for event in stream:
            if event.kind == "text_chunk":
                url = f"{prefix}runs/{event.run}/cancel/"
                body = "{}" if kind else ""
                response = await client.generic("POST", url, body, content_type=kind)
        return stream.run, response

    run, response = asyncio.run(stop())

    assert (response.status_code, response.json()["trace"]) == (202, run.trace_uuid)
    assert run.status == "cancelled"


def test_a_run_that_goes_on_is_steered_and_lengthened(ann):
    client = AsyncClient()
    client.force_login(ann)
    model = Talker()

    async def talk():
        stream = Listening().astream("hi", user=ann, provider=model)
        statuses = []
        async for event in stream:
            if event.kind == "text_chunk" and len(model.asked) == 1:
                for verb in ("steer", "follow-up"):
                    response = await client.post(
                        f"/runs/{event.run}/{verb}/",
                        {"message": f"to {verb}"},
                        content_type="application/json",
                    )
                    statuses.append(response.status_code)
                model.told.set()
        return statuses

    assert asyncio.run(talk()) == [202, 202]
    assert model.asked == ["hi", "to steer", "to follow-up"]


def test_a_run_of_somebody_else_is_not_found_while_it_goes_on(ann):
    client = AsyncClient()
    client.force_login(make_user("bob"))

    async def stop():
        async for event in (stream := Slow().astream("hi", user=ann)):
            if event.kind == "text_chunk":
                response = await client.post(
                    f"/runs/{event.run}/cancel/", {}, content_type="application/json"
                )
                stream.abort()
        return response

    assert asyncio.run(stop()).status_code == 404


@pytest.mark.parametrize(
    ("verb", "data", "detail"),
    [
        ("steer", {}, "'message' must hold the text for the run"),
        ("steer", {"message": "x", "now": 1}, "'now' must be true or false"),
        ("follow-up", {"message": "x", "now": True}, "There is no field 'now'."),
        ("follow-up", {"message": ["x"]}, "'message' must be a string"),
        ("cancel", {"force": True}, "There is no field 'force'. Fields are: none."),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_body_that_is_wrong_is_told(ann, client, verb, data, detail):
    trace = Asked().run("a", user=ann).trace_uuid

    response = post(client, f"/runs/{trace}/{verb}/", data)

    assert response.status_code == 400
    assert detail in response.json()["detail"]
