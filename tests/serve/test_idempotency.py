"""The header Idempotency-Key: asking twice for one run."""

import asyncio
import json
from types import SimpleNamespace

import pytest
from django.contrib.auth import get_user_model
from django.db import connections
from django.test import AsyncClient, Client
from rest_framework.authentication import BaseAuthentication
from rest_framework.permissions import AllowAny

from mlango.agents import Agent
from mlango.agents.execution import execute_now
from mlango.agents.providers import ScriptedProvider
from mlango.agents.worker import Worker
from mlango.models import Approval, DurableRun, Trace
from mlango.runtime.following import asker
from mlango.runtime.tokens import new_secret
from mlango.serve import include, path
from tests.durable.agents import LEDGER, Clerk, plan
from tests.serve.site import make_user

pytestmark = pytest.mark.django_db(transaction=True)

PROGRAMS, OTHERS = new_secret(), new_secret()


class Stranger(BaseAuthentication):
    """Knows everybody by a name that no other process knows."""

    def authenticate(self, request):
        return SimpleNamespace(pk="x", is_authenticated=True, is_active=True), None


class Keyed(Agent):
    """Is not durable unless it is asked with a key."""

    class Meta:
        app_label = "served"


class Untold(Agent):
    class Meta:
        app_label = "served"
        capture_content = False


class Failing(Agent):
    class Meta:
        app_label = "served"
        provider = ScriptedProvider()

    def get_model(self):
        raise ValueError("s3cret")


urlpatterns = [
    path("keyed/", include(Keyed.urls)),
    path("open/", Keyed.as_endpoint(permission_classes=[AllowAny])),
    path("strange/run/", Keyed.as_endpoint(authentication_classes=[Stranger])),
    path("untold/", include(Untold.urls)),
    path("failing/", include(Failing.urls)),
    path("clerk/", include(Clerk.urls)),
    path("", include("mlango.urls")),
]


@pytest.fixture(autouse=True)
def _site(settings, monkeypatch):
    settings.ROOT_URLCONF = __name__
    monkeypatch.setattr("mlango.agents.queues.base.Queue.patience", 0.01)  # no worker comes
    LEDGER.clear()
    yield
    asker.close()
    connections.close_all()


@pytest.fixture
def client():
    return logged_in()


def logged_in(name="ann"):
    client = Client()
    client.force_login(make_user(name))
    return client


def post(client, url, message="hi", key="k", **headers):
    data = {} if message is None else {"message": message}
    headers |= {} if key is None else {"Idempotency-Key": key}
    return client.post(url, data, content_type="application/json", headers=headers)


def blocks_of(response):
    body = b"".join(response.streaming_content)
    return [block for block in body.split(b"\n\n") if block and not block.startswith(b":")]


def test_the_same_request_is_answered_with_the_same_run(client):
    task = plan([["send", {"to": "ann"}]], "Sent.")

    first, second = post(client, "/clerk/run/", task), post(client, "/clerk/run/", task)

    assert (first.status_code, second.status_code) == (200, 200)
    assert first.json()["output"] == second.json()["output"] == "Sent."
    assert first.json()["trace"] == second.json()["trace"]
    assert LEDGER == [("send", "ann")]
    assert Trace.objects.count() == 1


def test_it_makes_the_run_of_any_agent_durable(client):
    trace = post(client, "/keyed/run/").json()["trace"]

    assert DurableRun.objects.get().pk == trace


def test_requests_without_it_are_runs_of_their_own(client):
    for _ in range(2):
        post(client, "/keyed/run/", key=None)

    assert Trace.objects.count() == 2


@pytest.mark.parametrize("kind", ["run", "stream"])
def test_another_request_with_the_same_key_is_refused(client, kind):
    post(client, "/keyed/run/", "hi")

    response = post(client, f"/keyed/{kind}/", "hello")

    assert (response.status_code, response["Content-Type"]) == (409, "application/problem+json")
    assert "The idempotency key 'k' was used for another request" in response.json()["detail"]
    assert Trace.objects.count() == 1


def test_users_do_not_share_keys(client):
    first = post(client, "/keyed/run/").json()["trace"]

    assert post(logged_in("bob"), "/keyed/run/").json()["trace"] != first


def test_agents_do_not_share_keys(client):
    first = post(client, "/keyed/run/").json()["trace"]

    assert post(client, "/clerk/run/", plan("hi")).json()["trace"] != first


@pytest.mark.parametrize("key", ["", "a" * 256, "schlüssel", "a\tb"])
@pytest.mark.parametrize("kind", ["run", "stream"])
def test_a_key_that_is_none_is_refused(client, kind, key):
    response = post(client, f"/keyed/{kind}/", key=key)

    assert response.status_code == 400
    assert response.json()["detail"] == (
        "The header 'Idempotency-Key' must be 1 to 255 printable ASCII characters."
    )
    assert not Trace.objects.exists()


def test_nobody_has_keys():
    response = post(Client(), "/open/")

    assert response.status_code == 400
    assert "belongs to a user" in response.json()["detail"]
    assert not Trace.objects.exists()


@pytest.mark.parametrize("kind", ["run", "stream"])
def test_a_run_that_cannot_be_durable_is_refused(client, kind):
    response = post(client, f"/untold/{kind}/")

    assert response.status_code == 400
    assert "cannot have durable runs without traces" in response.json()["detail"]


def till(settings):
    """Have two programs with a token, and return the header of one."""
    tokens = [{"token": PROGRAMS, "name": "till"}, {"token": OTHERS, "name": "other"}]
    settings.MLANGO = {**settings.MLANGO, "QUEUE": "worker", "API_BEARER_TOKENS": tokens}
    return {"Authorization": f"Bearer {PROGRAMS}"}


def test_a_program_without_a_user_has_keys_of_its_own(settings):
    own = till(settings)
    other = {"Authorization": f"Bearer {OTHERS}"}

    runs = [post(Client(), "/keyed/run/", **head).json()["trace"] for head in (own, own, other)]

    assert runs[0] == runs[1] != runs[2]
    assert [row.owner_key for row in DurableRun.objects.order_by("owner_key")] == [
        "service:other",
        "service:till",
    ]


def test_a_worker_goes_on_with_the_run_of_a_program(settings):
    own = till(settings)
    steps = plan([["pay", {"amount": 3}]], "Done.")
    answer = post(Client(), "/clerk/run/", steps, **own).json()
    Approval.objects.get().approve(by=get_user_model().objects.create_superuser("boss"))

    assert execute_now(answer["trace"]).text == "Done."

    trace = Trace.objects.get()
    assert (trace.status, trace.owner_key, trace.user) == ("finished", "service:till", None)
    assert post(Client(), "/clerk/run/", steps, **own).json()["output"] == "Done."


def test_the_run_of_a_program_that_has_no_token_any_more_fails(settings):
    answer = post(Client(), "/clerk/run/", plan([["pay", {"amount": 3}]]), **till(settings))
    Approval.objects.get().approve(by=get_user_model().objects.create_superuser("boss"))
    settings.MLANGO = {**settings.MLANGO, "API_BEARER_TOKENS": []}

    assert execute_now(answer.json()["trace"]) is None

    assert "no program with a token any more" in Trace.objects.get().error
    assert LEDGER == []


def test_who_is_neither_a_user_nor_a_program_is_told_so(settings):
    response = post(Client(), "/strange/run/")

    assert response.status_code == 400
    kind = get_user_model().__name__
    assert f"it must be a row of {kind}, or have a token" in response.json()["detail"]


def test_a_failed_run_is_not_made_again_and_tells_nothing_more(client):
    first, second = post(client, "/failing/run/"), post(client, "/failing/run/")

    assert (first.status_code, second.status_code) == (500, 500)
    assert first.json()["id"] == second.json()["id"] == Trace.objects.get().pk
    assert "s3cret" not in second.content.decode()


def test_a_stream_tells_how_the_run_of_the_same_key_ended(client):
    trace = post(client, "/keyed/run/").json()["trace"]

    last = blocks_of(post(client, "/keyed/stream/"))[-1]

    told = json.loads(last.split(b"data: ")[1])
    assert (told["kind"], told["run"]) == ("finished", trace)
    assert Trace.objects.count() == 1


def test_two_at_once_are_one_run():
    client = AsyncClient()
    client.force_login(make_user("ann"))
    task = plan([["linger", {"seconds": 0.1}]], "Done.")

    async def twice():
        asked = (post(client, "/clerk/run/", task) for _ in range(2))
        return await asyncio.gather(*asked)

    first, second = asyncio.run(twice())

    assert first.json()["output"] == second.json()["output"] == "Done."
    assert first.json()["trace"] == second.json()["trace"]
    assert len(LEDGER) == 1


# -- stopping a durable run -----------------------------------------------------------------------


def test_a_durable_run_that_nobody_has_begun_is_stopped():
    ann = make_user("ann")
    client = Client()
    client.force_login(ann)
    trace = Clerk().enqueue(plan("Hello."), user=ann)

    response = post(client, f"/clerk/runs/{trace.pk}/cancel/", None, None)

    assert (response.status_code, response.json()["status"]) == (202, "cancelled")
    trace.refresh_from_db()
    assert trace.status == "cancelled"


def test_a_durable_run_of_another_process_is_told_to_stop():
    ann = make_user("ann")
    client = Client()
    client.force_login(ann)
    trace = Clerk().enqueue(plan("Hello."), user=ann)
    claimed = DurableRun.objects.claim(trace.pk, "elsewhere", 30)

    response = post(client, f"/runs/{trace.pk}/cancel/", None, None)

    assert (response.status_code, response.json()["status"]) == (202, "running")
    claimed.refresh_from_db()
    assert claimed.cancel_requested


def test_a_durable_run_that_waits_is_stopped_by_the_next_worker():
    ann = make_user("ann")
    client = Client()
    client.force_login(ann)
    run = Clerk().run(plan([["pay", {"amount": 3}]], "Paid."), user=ann)
    assert run.status == "waiting"

    response = post(client, f"/runs/{run.trace_uuid}/cancel/", None, None)
    asyncio.run(Worker().work(until_idle=True))

    assert response.status_code == 202
    assert run.trace.status == "cancelled"
    assert LEDGER == []


def test_a_durable_run_that_has_ended_is_not_stopped(client):
    trace = post(client, "/keyed/run/").json()["trace"]

    response = post(client, f"/runs/{trace}/cancel/", None, None)

    assert response.status_code == 409
    assert response.json()["detail"] == "The run has ended (finished)."


def test_a_durable_run_of_somebody_else_is_not_found(client):
    trace = Clerk().enqueue(plan("Hello."), user=make_user("bob"))

    assert post(client, f"/runs/{trace.pk}/cancel/", None, None).status_code == 404
    assert DurableRun.objects.get().due_at is not None


def test_a_queued_run_is_told_when_it_begins():
    ann = make_user("ann")
    client = Client()
    client.force_login(ann)
    trace = Clerk().enqueue(plan("Hello."), user=ann)

    response = post(client, f"/runs/{trace.pk}/follow-up/", plan("Second."), None)
    asyncio.run(Worker().work(until_idle=True))

    assert response.status_code == 202
    trace.refresh_from_db()
    assert (trace.status, trace.output) == ("finished", "Second.")
