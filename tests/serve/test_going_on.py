"""What becomes of a run that waited, once somebody has decided."""

import asyncio
import json

import pytest
from django.contrib.auth import get_user_model
from django.db import connections
from django.test import Client

from mlango.agents import Agent, fields
from mlango.agents.execution import execute_now
from mlango.agents.providers import ToolCall
from mlango.core.provider import Completion
from mlango.models import Approval, DurableRun, Trace
from mlango.runtime.following import asker
from mlango.serve import include, limits, path
from mlango.urls import urlpatterns as site_wide
from tests.durable.agents import LEDGER, Clerk, plan
from tests.serve.site import Waiting, make_user
from tests.serve.test_events import blocks_of
from tests.serve.test_sockets import Payer, Talker, cookies_of, pay

pytestmark = pytest.mark.django_db(transaction=True)


class Silent(Agent):
    """Leaves nothing of what was said in its rows."""

    class Meta:
        app_label = "served"
        tools = [pay]
        capture_content = False


class Toned(Clerk):
    """Speaks in a tone."""

    tone = fields.CharField(default="plain")
    tones: list = []  # it had when it was asked

    class Meta(Clerk.Meta):
        app_label = "served"

    def get_system(self):
        self.tones.append(self.tone)
        return f"Be {self.tone}."


class Telling(Waiting):
    """Pays, says a word and then nothing more."""

    async def astream(self, *, messages, **options):
        if messages[-1]["role"] == "tool":
            async for part in super().astream():
                yield part
        else:
            call = ToolCall("a", "pay", {"amount": 3})
            yield Completion(tool_calls=[call], stop_reason=Completion.TOOL_USE)


class Teller(Agent):
    class Meta:
        app_label = "served"
        provider = Telling()
        tools = [pay]


urlpatterns = [
    path("payer/", include(Payer.urls)),
    path("silent/", include(Silent.urls)),
    path("clerk/", include(Clerk.urls)),
    *site_wide,
]


@pytest.fixture(autouse=True)
def _site(settings):
    settings.ROOT_URLCONF = __name__
    settings.MLANGO = {**settings.MLANGO, "QUEUE": "worker"}
    LEDGER.clear()
    yield
    asker.close()
    connections.close_all()


@pytest.fixture
def ann():
    return make_user("ann")


def client_of(user):
    client = Client()
    client.force_login(user)
    return client


def boss():
    return client_of(get_user_model().objects.create_superuser("boss"))


def post(client, url, **fields):
    return client.post(url, json.dumps(fields), content_type="application/json")


def begin(client, agent="payer", how="run"):
    """Have a run begun that comes to wait; return its approval."""
    response = post(client, f"/{agent}/{how}/", message='use pay {"amount": 3}')
    assert b"".join(response), response
    return Approval.objects.get()


def decide(client, row, url="/approvals/", decision="approve"):
    return post(client, url, approval=row.pk, decision=decision)


def rest_of(client, row, after):
    response = client.get(f"/payer/runs/{row.trace_id}/events/", {"after": after})
    return [
        json.loads(block.split(b"data: ")[1])
        for block in blocks_of(b"".join(response.streaming_content))
    ]


def test_a_run_whose_user_is_gone_fails_when_somebody_decides(ann):
    row = begin(client_of(ann))
    ann.delete()

    answer = decide(boss(), row)

    assert answer.json()["run"] == {"trace": row.trace_id, "status": "failed"}
    trace = Trace.objects.get()
    assert "which is no user in the database" in trace.error
    assert trace.ended_at is not None


def test_a_durable_run_whose_user_is_gone_fails_as_well(ann):
    trace = Clerk().enqueue(plan([["pay", {"amount": 3}]]), user=ann)
    execute_now(trace.pk)
    ann.delete()

    answer = decide(boss(), Approval.objects.get())

    assert answer.json()["run"] == {"trace": trace.pk, "status": "failed"}
    assert DurableRun.objects.get().due_at is None
    assert LEDGER == []


def test_a_run_without_content_fails_when_its_user_decides(ann):
    client = client_of(ann)
    row = begin(client, "silent")

    run = decide(client, row, "/silent/approvals/").json()["run"]

    assert run["status"] == "failed"
    assert "without its content" in Trace.objects.get().error


def test_who_follows_a_run_that_waits_is_told_that_it_failed(ann):
    client = client_of(ann)
    row = begin(client, how="stream")
    told = rest_of(client, row, 0)[-1]
    assert told["status"] == "waiting"

    Trace.objects.get().fail("It cannot go on.")

    (last,) = rest_of(client, row, told["seq"])
    assert (last["kind"], last["error"]) == ("failed", "It cannot go on.")
    again = client.get(f"/payer/runs/{row.trace_id}/events/", {"after": f"{last['seq']}"})
    assert again.status_code == 400  # the id of that event says more than its number


def test_a_run_that_somebody_goes_on_with_is_none_of_this_answer(ann):
    client = client_of(ann)
    row = begin(client)
    Trace.objects.update(status="running")

    answer = decide(client, row)

    assert (answer.status_code, answer.json()["run"]) == (200, None)
    assert Trace.objects.get().status == "running"


def test_nothing_is_decided_about_the_run_of_an_agent_that_is_gone(ann):
    client = client_of(ann)
    row = begin(client)
    Trace.objects.update(agent="served.Gone")

    assert decide(client, row).status_code == 500

    row.refresh_from_db()
    assert row.status == "pending"


def test_a_durable_run_goes_on_as_it_was_begun(ann):
    steps = plan([["pay", {"amount": 3}]], [["look", {"at": "it"}]], "Done.")
    trace = Toned(tone="formal").enqueue(steps, user=ann, max_steps=2)
    execute_now(trace.pk)
    Toned.tones.clear()

    run = decide(client_of(ann), Approval.objects.get()).json()["run"]

    assert (run["status"], run["stop_reason"]) == ("stopped", "max_steps")
    assert set(Toned.tones) == {"formal"}


# -- over a socket ----------------------------------------------------------------------------


def waits(agent, message, cookies, run):
    """Have ``run(socket, approval, answer)`` speak over a socket whose run waits."""

    async def go():
        async with Talker(agent, cookies) as ws:
            ws.say("send", message=message)
            asked = await ws.frame(kind="approval_requested")
            await ws.frame(kind="finished", status="waiting")
            return await run(ws, asked["approval"])

    return asyncio.run(go())


def test_a_run_that_a_worker_goes_on_with_is_told_over_the_socket(ann, monkeypatch):
    """The worker is quicker than the socket that has decided."""

    def at_once(row):
        wake(row)
        execute_now(row.trace_id)

    wake = Approval.wake
    monkeypatch.setattr(Approval, "wake", at_once)

    async def run(ws, approval):
        ws.say("approve", approval=approval, ref="a")
        await ws.frame(type="decided", ref="a")
        result = await ws.frame(kind="tool_finished")
        return result, await ws.frame(kind="finished")

    steps = plan([["pay", {"amount": 3}]], "Done.")
    result, last = waits(Clerk, steps, cookies_of(ann), run)

    assert result["content"] == "paid 3"
    assert last["output"] == "Done."
    assert LEDGER == [("pay", 3)]


def test_what_goes_on_after_a_decision_is_told_live(ann):
    async def run(ws, approval):
        ws.say("approve", approval=approval)
        await ws.frame(kind="tool_finished")
        await ws.frame(kind="text_chunk", text="word")  # of a model that says nothing more
        ws.say("abort")
        return await ws.frame(kind="finished")

    assert waits(Teller, "Pay.", cookies_of(ann), run)["status"] == "cancelled"


def test_a_run_that_cannot_go_on_is_told_over_the_socket(ann):
    async def run(ws, approval):
        ws.say("approve", approval=approval, ref="a")
        return await ws.frame(type="run", ref="a")

    told = waits(Silent, 'use pay {"amount": 3}', cookies_of(ann), run)

    assert told["run"]["status"] == "failed"


async def place_once_free():
    """Take the one place; the run that waits for an approval gives it back after it told so."""
    while limits.runs.taken:  # noqa: ASYNC110 - nobody tells when
        await asyncio.sleep(0)
    return await limits.place()


def test_going_on_over_a_socket_takes_a_place(ann, settings):
    settings.MLANGO = {**settings.MLANGO, "MAX_CONCURRENT_REQUESTS": 1}

    async def run(ws, approval):
        async def ask(**ref):
            ws.say("approve", approval=approval, **ref)

        release = await place_once_free()
        await ask(ref="full")
        refused = await ws.frame(type="error", ref="full")
        release()
        await ask(ref="free")
        await ws.frame(kind="started")
        taken = limits.runs.taken
        last = await ws.frame(kind="finished")
        return refused, taken, last

    refused, taken, last = waits(Payer, 'use pay {"amount": 3}', cookies_of(ann), run)

    assert refused["status"] == 503
    assert taken == 1
    assert last["output"] == "tool results: paid 3"
    assert limits.runs.taken == 0


def test_going_on_for_somebody_else_takes_a_place(ann, settings):
    settings.MLANGO = {**settings.MLANGO, "MAX_CONCURRENT_REQUESTS": 1}
    theirs = cookies_of(get_user_model().objects.create_superuser("boss"))

    async def run(ws, approval):
        async with Talker(Payer, theirs) as other:
            release = await place_once_free()
            other.say("approve", approval=approval)
            refused = await other.frame(type="error")
            release()
            other.say("approve", approval=approval)
            return refused, await other.frame(type="run")

    refused, told = waits(Payer, 'use pay {"amount": 3}', cookies_of(ann), run)

    assert refused["status"] == 503
    assert told["run"]["status"] == "finished"
    assert limits.runs.taken == 0
