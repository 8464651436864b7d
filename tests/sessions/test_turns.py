"""One run at a time has the turn of a session."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from datetime import timedelta

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import AnonymousUser
from django.db import connection, transaction

from mlango.agents import Agent
from mlango.agents.providers import ScriptedProvider
from mlango.agents.providers.scripted import call
from mlango.clock import Now
from mlango.core.memory import SessionKey
from mlango.core.provider import Completion, Provider
from mlango.core.tools import tool
from mlango.exceptions import Misused, SessionBusy
from mlango.models import Session, Trace
from mlango.runtime.sessions import SessionTurn, queues
from mlango.runtime.writer import writer
from tests.helpers import afinish, afinish_all, astream, finish, new_run, stream

User = get_user_model()

INLINE = pytest.param("inline", marks=pytest.mark.django_db)
WRITER = pytest.param("writer", marks=pytest.mark.django_db(transaction=True))
everywhere = pytest.mark.parametrize("where", [INLINE, WRITER])

KEY = SessionKey("shop.Support", "", "s1")


def in_session(turns=("Hello.",), tools=(), key=KEY, **fields):
    """Return a run in a session."""
    return new_run(turns, tools, session_id=key.session_id, turn=SessionTurn(key), **fields)


class Watching(Provider):
    """Counts how many model calls go on at the same time."""

    name = "watching"

    def __init__(self):
        self.now = self.most = 0

    async def acomplete(self, **request):
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.01)
        self.now -= 1
        return Completion("Done.")


@everywhere
def test_a_run_makes_its_session_and_gives_the_turn_back(where):
    run = finish(in_session(said="What is new?"))

    session = Session.objects.get()
    assert (session.agent, session.owner_key, session.key) == ("shop.Support", "", "s1")
    assert session.title == "What is new?"
    assert session.turn == ""
    assert session.turn_until is None
    assert Trace.objects.get().session == session
    assert Trace.objects.get().session_key == "s1"
    assert run.turn.pk == session.pk


@everywhere
def test_the_next_run_finds_the_session(where):
    finish(in_session())
    finish(in_session())

    assert Session.objects.get().traces.count() == 2


@everywhere
def test_without_capture_a_session_has_no_title(where):
    finish(in_session(said="canary", capture_content=False))

    assert Session.objects.get().title == ""


@pytest.mark.django_db(transaction=True)
def test_a_run_has_the_turn_while_it_goes_on():
    seen = []

    @tool
    def look() -> str:
        """Look at the session."""
        seen.append(Session.objects.annotate(now=Now()).get())
        return "done"

    run = finish(in_session([call("look"), "Done."], [look]))

    [session] = seen
    assert session.turn == run.uuid
    assert timedelta(0) < session.turn_until - session.now <= timedelta(seconds=30)


@pytest.mark.django_db(transaction=True)
def test_runs_of_one_session_go_one_after_the_other():
    provider = Watching()

    runs = afinish_all(*(in_session(provider) for _ in range(8)))

    assert [run.status for run in runs] == ["finished"] * 8
    assert provider.most == 1
    ended = list(Trace.objects.order_by("ended_at").values_list("uuid", flat=True))
    assert ended == [run.uuid for run in runs]  # first come, first served


@pytest.mark.django_db(transaction=True)
def test_runs_of_other_sessions_owners_or_agents_do_not_wait():
    keys = [
        KEY,
        SessionKey("shop.Support", "", "s2"),
        SessionKey("shop.Support", "7", "s1"),
        SessionKey("shop.Sales", "", "s1"),
    ]

    class Meeting(Provider):
        """Answers when all runs have asked."""

        name = "meeting"
        together = asyncio.Barrier(len(keys))

        async def acomplete(self, **request):
            await self.together.wait()
            return Completion("Met.")

    runs = afinish_all(*(in_session(Meeting(), key=key, label=key.agent) for key in keys))

    assert [run.status for run in runs] == ["finished"] * 4
    assert Session.objects.count() == 4


@pytest.mark.django_db(transaction=True)
def test_threads_take_turns():
    provider = Watching()

    def work():
        finish(in_session(provider))
        connection.close()

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert provider.most == 1
    assert Trace.objects.filter(status="finished").count() == 6


@everywhere
def test_a_run_that_waits_too_long_is_refused(where, settings):
    settings.MLANGO = {"SESSION_WAIT": 0.05}
    first = stream(in_session())
    next(first)
    next(first)

    refused = finish(in_session())
    first.close()

    assert isinstance(refused.exception, SessionBusy)
    assert str(refused.exception) == (
        "Another run has the turn of the session 's1' of shop.Support and did not end within "
        "0.05 seconds."
    )
    assert finish(in_session()).status == "finished"


@everywhere
def test_a_caller_is_told_that_the_session_is_busy(where, settings):
    settings.MLANGO = {"SESSION_WAIT": 0}

    class Waited(Agent):
        class Meta:
            model = "test"
            provider = ScriptedProvider(["a", "b"])

    agent = Waited()
    with agent.stream("x", session_id="s1") as first:
        next(first)
        next(first)
        with pytest.raises(SessionBusy, match="Another run has the turn") as caught:
            agent.run("y", session_id="s1")

    assert caught.value.run.status == "failed"
    assert caught.value.run.steps == 0


@pytest.mark.django_db(transaction=True)
def test_a_turn_that_another_process_has_is_waited_for(settings):
    settings.MLANGO = {"SESSION_WAIT": 0.05}
    Session.objects.create(
        agent=KEY.agent, key="s1", turn="f" * 32, turn_until=Now() + timedelta(seconds=60)
    )

    refused = finish(in_session())

    assert isinstance(refused.exception, SessionBusy)
    assert Session.objects.get().turn == "f" * 32


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("exists", [True, False])
def test_a_row_that_a_long_transaction_holds_is_a_turn_that_another_run_has(settings, exists):
    if connection.vendor == "sqlite":
        pytest.skip("SQLite has one lock for the whole database")
    settings.MLANGO = {"SESSION_WAIT": 0.1}
    holding, let_go = threading.Event(), threading.Event()
    if exists:
        Session.objects.create(agent=KEY.agent, key="s1")

    def hold():
        with transaction.atomic():
            Session.objects.update_or_create(
                agent=KEY.agent, key="s1", defaults={"turn": "f" * 32}
            )
            holding.set()
            let_go.wait(30)
        connection.close()

    thread = threading.Thread(target=hold)
    thread.start()
    holding.wait(10)
    refused, other = finish(in_session()), finish(new_run())
    let_go.set()
    thread.join()

    assert isinstance(refused.exception, SessionBusy)
    assert other.status == "finished"


@pytest.mark.django_db(transaction=True)
def test_a_turn_ends_when_its_holder_is_gone():
    Session.objects.create(
        agent=KEY.agent, key="s1", turn="f" * 32, turn_until=Now() - timedelta(seconds=1)
    )

    assert finish(in_session()).status == "finished"
    assert Session.objects.get().turn == ""


@pytest.mark.django_db(transaction=True)
def test_the_turn_is_renewed_while_the_run_goes_on(settings):
    settings.MLANGO = {"LEASE_SECONDS": 0.3}
    seen = []

    @tool
    def watch() -> str:
        """Watch the session until its turn was renewed."""
        before = Session.objects.get()
        for _ in range(1000):
            after = Session.objects.get()
            if after.turn_until > before.turn_until:
                break
            time.sleep(0.01)
        seen.append(after)
        return "seen"

    run = finish(in_session([call("watch"), "Done."], [watch]))

    assert seen[0].turn == run.uuid


@everywhere
@pytest.mark.parametrize("turns", [[ValueError("no")], ["Hello."]])
def test_the_turn_is_given_back_however_the_run_ends(where, turns):
    events = stream(in_session(turns))
    next(events)
    next(events)
    events.close()
    finish(in_session(turns))

    assert Session.objects.get().turn == ""
    assert not queues._queues


@pytest.mark.django_db(transaction=True)
def test_a_run_that_is_cancelled_while_it_waits_leaves_the_queue():
    async def scene():
        first = astream(in_session())
        await anext(first)
        await anext(first)
        waiting = asyncio.create_task(afinish(in_session()))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        await first.aclose()

    asyncio.run(scene())

    assert not queues._queues
    assert finish(in_session()).status == "finished"


@pytest.mark.django_db(transaction=True)
def test_a_run_that_is_stopped_while_it_waits_is_cancelled():
    async def scene():
        first = astream(in_session())
        await anext(first)
        await anext(first)
        second = in_session()
        waiting = asyncio.create_task(afinish(second))
        await asyncio.sleep(0)
        second.abort()
        await waiting
        await first.aclose()
        return second

    second = asyncio.run(scene())

    assert (second.status, second.stop_reason) == ("cancelled", "cancelled")
    assert second.provider.calls == []


@everywhere
@pytest.mark.parametrize("session_id", ["", "a b", "x" * 129, "../x", "é", "a\n", "a\0"])
def test_a_session_id_of_other_characters_is_refused(where, session_id):
    with pytest.raises(Misused, match="must be 1 to 128 ASCII letters, digits"):
        SessionTurn(SessionKey("shop.Support", "", session_id))


@everywhere
def test_users_see_their_own_sessions_only(where):
    ada = User.objects.create_user("ada")
    bob = User.objects.create_user("bob")
    for user in (ada, bob):
        key = SessionKey("shop.Support", str(user.pk), "s1")
        finish(in_session(key=key, user=user))
    finish(in_session())

    [session] = Session.objects.for_user(ada)
    assert session.owner == ada
    assert [trace.user for trace in Trace.objects.for_user(bob)] == [bob]
    assert not Session.objects.for_user(None).exists()
    assert not Session.objects.for_user(AnonymousUser()).exists()
    assert not Trace.objects.for_user(AnonymousUser()).exists()


@pytest.mark.django_db(transaction=True)
def test_without_a_database_runs_of_this_process_still_go_one_by_one(monkeypatch, caplog):
    def fail(self, run):
        raise OSError("no database")

    monkeypatch.setattr(SessionTurn, "_take_turn", fail)
    provider = Watching()

    runs = afinish_all(*(in_session(provider) for _ in range(3)))

    assert [run.status for run in runs] == ["finished"] * 3
    assert provider.most == 1
    assert "The turn of the session 's1' of shop.Support is kept in this process only" in (
        caplog.text
    )


@pytest.mark.django_db(transaction=True)
def test_processes_take_turns(tmp_path):
    log = tmp_path / "log"
    environ = {**os.environ, "SESSION_DATABASE": str(connection.settings_dict["NAME"])}
    command = [sys.executable, "-m", "tests.sessions.other_process", str(log)]

    processes = [
        subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    errors = [process.communicate()[1] for process in processes]

    assert [process.returncode for process in processes] == [0, 0], errors
    lines = log.read_text().split()
    assert len(lines) == 20
    assert lines == ["begin", "end"] * 10  # never two at once
    assert Trace.objects.filter(status="finished").count() == 10
    assert Session.objects.get().turn == ""


@pytest.fixture(autouse=True)
def _no_rows_on_their_way():
    yield
    assert writer.flush(10)
