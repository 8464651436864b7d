"""Rows in a database of their own."""

import asyncio

import pytest
from django.contrib.auth import get_user_model
from django.db import connection, router, transaction
from django.test.utils import CaptureQueriesContext

from mlango.agents.memory import MetastoreMemory
from mlango.core.memory import SessionKey
from mlango.models import Session, Trace
from mlango.runtime.sessions import SessionTurn
from tests.helpers import afinish, finish, new_run

User = get_user_model()

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "agents"])


class Router:
    """Keeps mlango's rows in the database ``agents``."""

    def db_for_read(self, model, **hints):
        return "agents" if model._meta.app_label == "mlango" else "default"

    db_for_write = db_for_read


@pytest.fixture
def _agents(monkeypatch):
    monkeypatch.setattr(router, "routers", [Router()])


def in_session(user):
    key = SessionKey("shop.Support", str(user.pk), "s1")
    return new_run(
        user=user,
        session_id="s1",
        turn=SessionTurn(key),
        memory=MetastoreMemory(),
        memory_key=key,
    )


@pytest.mark.usefixtures("_agents")
@pytest.mark.parametrize("runner", [finish, lambda run: asyncio.run(afinish(run))])
def test_the_other_database_is_left_alone(runner):
    user = User.objects.create_user("ada")

    with CaptureQueriesContext(connection) as queries:
        runner(in_session(user))
        second = runner(in_session(user))

    assert queries.captured_queries == []
    assert Session.objects.using("agents").get().owner_id == user.pk
    trace = Trace.objects.get(uuid=second.uuid)
    assert trace._state.db == "agents"
    assert trace.messages == second.messages
    assert len(second.messages) == 4
    assert trace.user == user


@pytest.mark.usefixtures("_agents")
def test_a_transaction_of_the_other_database_has_nothing_to_do_with_it():
    with transaction.atomic():
        run = finish(new_run())
        transaction.set_rollback(True)

    assert Trace.objects.get().uuid == run.uuid


@pytest.mark.usefixtures("_agents")
def test_its_own_transaction_holds_the_rows():
    with transaction.atomic(using="agents"):
        finish(new_run())
        transaction.set_rollback(True, using="agents")

    assert not Trace.objects.exists()
