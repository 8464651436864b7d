"""Old runs are pruned, and all that is known of a user can be erased."""

import threading
from datetime import timedelta

import pytest
from django.apps import apps
from django.contrib.auth import get_user_model
from django.db import connections
from django.utils import timezone

from mlango.agents import Agent, BufferMemory, tool
from mlango.agents.erasing import erase
from mlango.core.policy import Approval as AskFirst
from mlango.exceptions import Misused
from mlango.models import Approval, QuotaUsage, Session, Span, Trace, removal
from mlango.models.removal import delete_runs, old_runs
from tests.commands.conftest import manage  # noqa: F401 - a fixture

User = get_user_model()

pytestmark = pytest.mark.django_db

CANARY = "canary-5521"
NOW = timezone.now()


@tool(approval=AskFirst())
def refund(order: str, reason: str) -> str:
    """Pay back."""
    return order


class Clerk(Agent):
    class Meta:
        app_label = "removal"
        model = "scripted"
        memory = BufferMemory(k=5)
        tools = [refund]


@pytest.fixture
def ada():
    return User.objects.create_user("ada", password="secret")


@pytest.fixture
def bob():
    return User.objects.create_user("bob", password="secret")


def old_run(uuid, days=40, **fields):
    begun = NOW - timedelta(days=days)
    values = {"agent": "removal.Clerk", "status": "finished", "started_at": begun}
    values["ended_at"] = begun if fields.get("status", "finished") in Trace.ENDED else None
    return Trace.objects.create(uuid=uuid * 32, **values | fields)


def prune(**options):
    return sum(delete_runs(old_runs(NOW - timedelta(days=30), **options)))


def kept():
    return {uuid[0] for uuid in Trace.objects.values_list("uuid", flat=True)}


def test_a_run_goes_with_its_spans_approvals_and_sub_agents():
    lead = old_run("a")
    child = old_run("b", days=1, parent=lead)
    grandchild = old_run("c", days=1, parent=child)
    Span.objects.create(
        trace=grandchild, ordering=1, step=1, kind="llm", started_at=NOW, ended_at=NOW
    )
    Approval.objects.create(trace=lead, tool="refund", tool_call_id="1", arguments_hash="")

    assert prune() == 1

    assert not Trace.objects.exists()
    assert not Span.objects.exists()
    assert not Approval.objects.exists()


@pytest.mark.parametrize("status", ["running", "waiting"])
def test_a_run_that_is_not_over_is_kept_however_old(status):
    old_run("a", status=status)

    assert prune() == 0
    assert kept() == {"a"}


def test_a_run_that_began_long_ago_and_ended_lately_is_kept():
    old_run("a", ended_at=NOW)

    assert prune() == 0


def test_a_lost_run_has_no_end_and_goes_by_its_start():
    old_run("a", status="lost", ended_at=None)

    assert prune() == 1


def test_only_the_runs_of_one_agent_are_pruned():
    old_run("a")
    old_run("b", agent="removal.Other")

    assert prune(agent="removal.Other") == 1
    assert kept() == {"a"}


def test_runs_are_deleted_in_batches(monkeypatch):
    monkeypatch.setattr(removal, "BATCH", 2)
    for uuid in "abcde":
        old_run(uuid)

    assert list(delete_runs(old_runs(NOW))) == [2, 2, 1]


def test_a_run_that_is_gone_on_with_meanwhile_is_kept(monkeypatch):
    old_run("a")
    old_run("b")
    delete = removal._delete

    def delete_late(runs, uuids):
        Trace.objects.filter(pk=uuids[0]).update(status="running")
        return delete(runs, uuids)

    monkeypatch.setattr(removal, "_delete", delete_late)

    assert prune() == 1
    assert kept() == {"a"}


def test_a_session_outlives_its_pruned_runs():
    session = Session.objects.create(agent="removal.Clerk", key="s1")
    old_run("a", session=session)

    prune()

    assert Session.objects.filter(pk=session.pk).exists()


# -- the command ------------------------------------------------------------------------------


def test_prune_deletes_what_is_older_than_said(manage):  # noqa: F811
    old_run("a")
    old_run("b", days=1)

    _, err, code = manage("traces", "prune", "--older-than", "30d")

    assert kept() == {"b"}
    assert (err.splitlines()[-1], code) == ("1 run deleted.", 0)


def test_prune_deletes_what_a_process_left_that_died(manage):  # noqa: F811
    old_run("a", status="running")

    manage("traces", "prune", "--older-than", "30d")

    assert kept() == set()


def test_a_dry_run_deletes_nothing(manage):  # noqa: F811
    old_run("a")

    _, err, _ = manage("traces", "prune", "--older-than", "30d", "--dry-run")

    assert kept() == {"a"}
    assert err == "1 run would be deleted.\n"


def test_prune_goes_by_the_setting(manage, settings):  # noqa: F811
    settings.MLANGO = {"RETENTION": 30}
    old_run("a")
    old_run("b", days=20)

    manage("traces", "prune")

    assert kept() == {"b"}


def test_prune_without_an_age_says_how_to_give_one(manage):  # noqa: F811
    _, err, code = manage("traces", "prune")

    assert "--older-than 30d" in err
    assert "RETENTION" in err
    assert code == 2


@pytest.mark.parametrize("text", ["30", "d", "0d", "-1d", "30 d", "30m"])
def test_an_age_that_is_none_is_refused(manage, text):  # noqa: F811
    _, err, code = manage("traces", "prune", f"--older-than={text}")

    assert "such as 12h, 30d or 8w" in err
    assert code


# -- erasing ----------------------------------------------------------------------------------


def say(user, text, **options):
    return Clerk().run(text, user=user, session_id="s1", provider="echo", **options)


def rows_with(word):
    """Return the models of mlango with a row that holds a word in any field."""
    found = set()
    for model in apps.get_app_config("mlango").get_models():
        for row in model._default_manager.values_list():
            if word in repr(row):
                found.add(model.__name__)
    return found


@pytest.fixture
def known(ada, bob):
    """Let much be known of ada, and something of bob."""
    say(ada, f"remember {CANARY}")
    say(ada, f'use refund {{"order": "{CANARY}", "reason": "late"}}')
    say(bob, "remember bob-77")
    theirs = say(bob, 'use refund {"order": "bob-78", "reason": "late"}')
    row = theirs.trace.approvals.get()
    Approval.objects.filter(pk=row.pk).update(decided_by=ada, note=CANARY)
    QuotaUsage.objects.create(
        per="user", subject=str(ada.pk), unit="tokens", every="day", starts_at=NOW
    )


def test_nothing_of_a_user_is_left(ada, known):
    assert rows_with(CANARY) >= {"Trace", "Span", "Approval"}

    erase(ada)

    assert rows_with(CANARY) == set()
    assert not Session.objects.for_user(ada).exists()
    assert not QuotaUsage.objects.filter(subject=str(ada.pk)).exists()


def test_what_belongs_to_others_is_kept(ada, bob, known):
    before = Trace.objects.for_user(bob).count()

    erase(ada)

    assert Trace.objects.for_user(bob).count() == before
    assert rows_with("bob-77")
    assert [row.decided_by for row in Approval.objects.all()] == [None]


def test_agents_recall_nothing_of_the_user(ada, bob, known):
    erase(ada)

    assert len(say(ada, "again").messages) == 2
    assert len(say(bob, "again").messages) > 2


def test_a_user_with_a_run_that_goes_on_is_not_erased(ada):
    old_run("a", status="running", owner_key=str(ada.pk), days=0)
    old_run("b", owner_key=str(ada.pk))

    with pytest.raises(Misused, match="aaaaaaaa"):
        erase(ada)

    assert kept() == {"a", "b"}


class Meanwhile(BufferMemory):
    """Has something happen while it forgets, once, by another connection."""

    def clear(self, key):
        super().clear(key)
        happens, self.happens = self.happens, None
        if happens is not None:
            elsewhere = threading.Thread(target=self.do, args=[happens])
            elsewhere.start()
            elsewhere.join()

    def do(self, happens):
        try:
            happens()
        finally:
            connections.close_all()


class Recaller(Clerk):
    class Meta(Clerk.Meta):
        memory = Meanwhile(k=5)


@pytest.fixture
def meanwhile(ada):
    memory = Recaller._meta.memory
    memory.happens = None
    Recaller().run("hello", user=ada, provider="echo", session_id="s")
    return memory


@pytest.mark.django_db(transaction=True)
def test_a_run_that_begins_meanwhile_is_not_deleted_under_itself(ada, meanwhile):
    began = {"uuid": "b", "status": "running", "owner_key": str(ada.pk), "days": 0}
    meanwhile.happens = lambda: old_run(**began)

    with pytest.raises(Misused, match="bbbbbbbb"):
        erase(ada)

    assert kept() == {"b"}
    Trace.objects.update(status="finished")
    assert erase(ada)["trace"] == 1


@pytest.mark.django_db(transaction=True)
def test_a_run_that_begins_and_ends_meanwhile_is_gone(ada, meanwhile):
    meanwhile.happens = lambda: old_run("b", owner_key=str(ada.pk), days=0)

    assert erase(ada)["trace"] == 2
    assert kept() == set()


def test_a_run_whose_process_died_keeps_no_user_from_being_erased(ada):
    old_run("a", status="running", owner_key=str(ada.pk), days=2)

    assert erase(ada)["trace"] == 1


def test_a_primary_key_is_known_however_it_is_written(ada, known):
    erase(f"0{ada.pk}" if isinstance(ada.pk, int) else ada.pk.hex.upper())

    assert rows_with(CANARY) == set()


@pytest.mark.parametrize("nobody", [None, "", "ada"])
def test_erasing_needs_a_user(nobody):
    with pytest.raises(Misused, match="primary key"):
        erase(nobody)


def test_the_command_erases_by_name(manage, ada, known):  # noqa: F811
    _, err, code = manage("traces", "erase", "--user", "ada")

    assert rows_with(CANARY) == set()
    assert err.startswith("Deleted: 2 traces, ")
    assert code == 0


def test_the_command_erases_who_is_gone_by_his_key(manage, ada, known):  # noqa: F811
    key = str(ada.pk)
    ada.delete()

    manage("traces", "erase", "--key", key)

    # Only the note that he wrote about bob's run: nothing says any more that it is his.
    assert rows_with(CANARY) == {"Approval"}
    assert not Trace.objects.filter(owner_key=key).exists()
