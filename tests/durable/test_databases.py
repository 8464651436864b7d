"""Rows in a database of their own, or with a replica for those who read: everything works.

A replica may be behind; the one here stays empty.
"""

import asyncio
import json

import pytest
from django.contrib import admin
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db import router
from django.db.backends.utils import CursorWrapper
from django.test import Client

from mlango.agents import Agent, Limits, MetastoreMemory, Quota, tool
from mlango.agents.erasing import erase
from mlango.agents.worker import Worker
from mlango.models import Approval, DurableRun, QuotaUsage, Session, Trace
from mlango.serve import include, path
from tests.durable.agents import Clerk, Lead, plan

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "agents"])


class Apart:
    """Keeps mlango's rows in the database ``agents``."""

    left_alone = "default"

    def db_for_read(self, model, **hints):
        return "agents" if model._meta.app_label == "mlango" else "default"

    db_for_write = db_for_read


class Replicated(Apart):
    """Writes to the primary, and reads from the replica ``agents``."""

    left_alone = "agents"

    def db_for_write(self, model, **hints):
        return "default"


@pytest.fixture(autouse=True, params=[Apart(), Replicated()], ids=["apart", "replicated"])
def asked(request, monkeypatch):
    """Return what was asked of the database that is to be left alone, by whatever thread."""
    monkeypatch.setattr(router, "routers", [request.param])
    asked, execute = [], CursorWrapper.execute

    def watched(self, sql, params=None):
        if self.db.alias == request.param.left_alone and "mlango_" in sql:
            asked.append(sql)
        return execute(self, sql, params)

    monkeypatch.setattr(CursorWrapper, "execute", watched)
    yield asked
    assert asked == []


@tool(approval=True)
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


class Desk(Agent):
    class Meta:
        app_label = "databases"
        provider = "echo"
        tools = [pay]
        memory = MetastoreMemory()
        quotas = [Quota(tokens=100_000, per="user", every="day")]
        session_limits = Limits(max_tokens=100_000)


class LastingDesk(Desk):
    class Meta:
        app_label = "databases"
        durable = True


urlpatterns = [
    path("desk/", include(Desk.urls)),
    path("lasting/", include(LastingDesk.urls)),
    path("admin/", admin.site.urls),
    path("", include("mlango.urls")),
]

PAY = 'use pay {"amount": 3}'
each_desk = pytest.mark.parametrize("agent", [Desk, LastingDesk])


@pytest.fixture
def ann():
    return get_user_model().objects.create_superuser("ann")


def work():
    asyncio.run(Worker().work(until_idle=True))


@each_desk
def test_a_run_waits_goes_on_and_is_remembered(agent, ann):
    options = {"user": ann, "session_id": "s"}
    run = agent().run(PAY, **options)
    Approval.objects.get().approve(by=ann)
    assert agent().resume(run).text == "tool results: paid 3"
    assert len(agent().run("And now?", **options).messages) == 6
    assert Session.objects.for_user(ann).get().traces.count() == 2
    assert QuotaUsage.objects.get().reserved == 0


def test_workers_find_what_was_asked_for(ann):
    inner = plan([["pay", {"amount": 3}], ["found", {"group": "x"}]], "Sub.")
    lead = Lead().enqueue(plan([["clerk", {"message": inner}]], "All."), user=ann)
    late = Clerk().enqueue(plan("Never."), user=ann, idempotency_key="one")
    assert Clerk().enqueue(plan("Never."), user=ann, idempotency_key="one") == late
    late.cancel()

    work()
    Approval.objects.open().get().approve(by=ann)
    work()

    lead.refresh_from_db()
    late.refresh_from_db()
    assert (lead.status, late.status) == ("finished", "cancelled")
    assert lead.children.get().root == lead
    assert not DurableRun.objects.exclude(due_at=None).exists()


@each_desk
def test_a_client_is_served(agent, ann, settings):
    settings.ROOT_URLCONF = __name__
    client = Client()
    client.force_login(ann)
    base = {Desk: "/desk/", LastingDesk: "/lasting/"}[agent]

    def post(url, **data):
        return client.post(url, json.dumps(data), "application/json")

    trace = post(f"{base}run/", message=PAY, session_id="s").json()["trace"]
    [waiting] = client.get("/approvals/").json()["approvals"]
    assert post("/approvals/", approval=waiting["approval"], decision="approve").status_code == 200
    assert client.get(f"/runs/{trace}/").json()["output"] == "tool results: paid 3"
    assert b"event: finished" in b"".join(post(f"{base}stream/", message="hi"))
    events = b"".join(client.get(f"/runs/{Trace.objects.first().pk}/events/"))
    assert b"event: finished" in events
    for page in ("trace/", f"trace/{trace}/change/", "session/", "approval/"):
        assert client.get(f"/admin/mlango/{page}").status_code == 200


def test_commands_and_erasing_find_the_rows(ann, capsys):
    Desk().run(PAY, user=ann)
    Desk().run("hi", user=ann)
    call_command("traces", "show", "last")
    call_command("traces", "prune", "--older-than", "1h")
    call_command("approvals", "list")
    assert "echo: hi" in capsys.readouterr().out
    assert erase(ann)["trace"] == 2
    assert not Trace.objects.exists()
