"""The thread that writes rows, and databases that refuse or are away."""

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from django.db import (
    DatabaseError,
    IntegrityError,
    OperationalError,
    connection,
    connections,
    router,
    transaction,
)
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils import timezone

from mlango.agents.providers.scripted import call
from mlango.core.tools import tool
from mlango.models import Span, Trace
from mlango.runtime import journal, statements
from mlango.runtime import writer as writers
from mlango.runtime.rows import INSERT_SPAN, INSERT_TRACE, span_values, trace_values
from mlango.runtime.statements import Insert
from mlango.runtime.writer import Writer, may_pass, writer
from mlango.runtime.writes import Write
from tests.helpers import afinish, afinish_all, astream, finish, new_run, stream

pytestmark = pytest.mark.django_db(transaction=True)

NOT_COMPLETE = "The trace of run {run.uuid} of {run.label} is not complete: "


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


TURNS = [call("add", a=1, b=2), "Three."]


class Recorder:
    """Someone who wants rows written."""

    def __init__(self):
        self.lost = False
        self.errors = []

    def failed(self, statement, error):
        self.errors.append((statement.model.__name__, type(error).__name__))


@pytest.fixture
def own_writer():
    """A writer of the test's own, which no other run uses."""
    own = Writer()
    yield own
    own.close()


def trace_write(run, source, **fields):
    return Write(source, "default", INSERT_TRACE, lambda run: changed(run, fields), run)


def changed(run, fields):
    values = dict(zip(INSERT_TRACE.columns, trace_values(run), strict=True)) | fields
    return list(values.values())


@pytest.fixture
def renamed():
    """Rename a table until the test ends."""
    done = []

    def rename(table):
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER TABLE {table} RENAME TO gone_{table}")
        done.append(table)

    yield rename
    with connection.cursor() as cursor:
        for table in done:
            cursor.execute(f"ALTER TABLE gone_{table} RENAME TO {table}")


def messages(caplog):
    return [record.message for record in caplog.records if record.name == "mlango.traces"]


class TestAWriter:
    def test_writes_what_was_queued_before_it_tells(self, own_writer):
        source = Recorder()

        for _ in range(5):
            own_writer.put(trace_write(new_run(), source))

        assert own_writer.flush(10)
        assert Trace.objects.count() == 5
        assert source.errors == []

    def test_takes_many_rows_into_one_transaction(self, own_writer, monkeypatch):
        groups = []
        execute = writers.execute
        monkeypatch.setattr(
            writers,
            "execute",
            lambda alias, rows: groups.append(len(rows)) or execute(alias, rows),
        )

        for _ in range(50):
            own_writer.put(trace_write(new_run(), Recorder()))
        own_writer.flush(10)

        assert groups == [50]

    def test_loses_only_the_row_that_the_database_refuses(self, own_writer):
        bad, good = Recorder(), Recorder()
        twice = new_run()

        own_writer.put(trace_write(new_run(), good))
        own_writer.put(trace_write(twice, good))
        own_writer.put(trace_write(twice, bad))
        own_writer.put(trace_write(new_run(), good))
        own_writer.flush(10)

        assert Trace.objects.count() == 3
        assert good.errors == []
        assert bad.errors == [("Trace", "IntegrityError")]

    def test_loses_only_the_row_that_the_driver_refuses(self, own_writer):
        bad, good = Recorder(), Recorder()

        own_writer.put(trace_write(new_run(), bad, input="\ud800"))
        own_writer.put(trace_write(new_run(), good))
        own_writer.flush(10)

        assert Trace.objects.count() == 1
        assert bad.errors == [("Trace", "UnicodeEncodeError")]

    def test_loses_only_the_row_that_cannot_be_made(self, own_writer):
        bad, good = Recorder(), Recorder()

        own_writer.put(Write(bad, "default", INSERT_TRACE, lambda thing: 1 / 0, None))
        own_writer.put(trace_write(new_run(), good))
        own_writer.flush(10)

        assert Trace.objects.count() == 1
        assert bad.errors == [("Trace", "ZeroDivisionError")]

    def test_tries_again_after_an_error_that_may_pass(self, own_writer, monkeypatch):
        monkeypatch.setattr(writers, "RETRIES", (0, 0, 0))
        failures = [OperationalError("database is locked")] * 2
        execute = writers.execute

        def sometimes(alias, rows):
            if failures:
                raise failures.pop()
            execute(alias, rows)

        monkeypatch.setattr(writers, "execute", sometimes)
        source = Recorder()
        own_writer.put(trace_write(new_run(), source))
        own_writer.flush(10)

        assert Trace.objects.count() == 1
        assert source.errors == []

    def test_gives_up_when_it_does_not_pass(self, own_writer, monkeypatch):
        monkeypatch.setattr(writers, "RETRIES", (0, 0))
        attempts = []

        def never(alias, rows):
            attempts.append(len(rows))
            raise OperationalError("database is locked")

        monkeypatch.setattr(writers, "execute", never)
        monkeypatch.setattr(own_writer, "_is_up", lambda alias: False)
        source = Recorder()
        own_writer.put(trace_write(new_run(), source))
        own_writer.put(trace_write(new_run(), source))
        own_writer.flush(10)

        assert attempts == [2, 2, 2]
        assert source.errors == [("Trace", "OperationalError")] * 2

    def test_calls_functions_on_its_connection(self, own_writer):
        thread = own_writer.send("default", threading.current_thread).result(10)

        assert thread.name == "mlango-writer"

    def test_passes_on_what_they_raise(self, own_writer):
        with pytest.raises(ZeroDivisionError):
            own_writer.send("default", lambda: 1 / 0).result(10)

        assert own_writer.send("default", lambda: 7).result(10) == 7

    def test_does_not_take_rows_without_end(self, own_writer, monkeypatch):
        monkeypatch.setattr(writers, "MAX_QUEUED", 2)
        monkeypatch.setattr(own_writer, "_wake", lambda: None)
        source = Recorder()

        taken = [own_writer.put(trace_write(new_run(), source)) for _ in range(3)]

        assert taken == [True, True, False]

    def test_starts_again_after_close(self, own_writer):
        own_writer.put(trace_write(new_run(), Recorder()))
        own_writer.close()
        assert Trace.objects.count() == 1

        own_writer.put(trace_write(new_run(), Recorder()))
        assert own_writer.flush(10)

        assert Trace.objects.count() == 2

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
    def test_starts_again_after_its_thread_was_ended(self, own_writer):
        thread = own_writer.send("default", threading.current_thread).result(10)
        own_writer.send("default", sys.exit).result(10)
        thread.join(10)

        own_writer.put(trace_write(new_run(), Recorder()))
        assert own_writer.flush(10)

        assert Trace.objects.count() == 1

    def test_that_was_never_used_has_nothing_to_flush_or_close(self):
        unused = Writer()

        assert unused.flush(0)
        unused.close()
        assert unused._thread is None

    def test_says_when_flushing_takes_too_long(self, own_writer):
        go_on = threading.Event()
        own_writer.send("default", go_on.wait)

        assert not own_writer.flush(0.01)
        go_on.set()

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork()")
    @pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
    def test_starts_anew_in_a_child_process(self, own_writer):
        own_writer.put(trace_write(new_run(), Recorder()))
        own_writer.flush(10)
        read, write = os.pipe()

        child = os.fork()
        if child == 0:  # pragma: no cover - in the child
            answer = own_writer.send("default", os.getpid).result(10)
            os.write(write, b"%d" % answer)
            os._exit(0)
        os.waitpid(child, 0)

        assert os.read(read, 20) == b"%d" % child
        os.close(read)
        os.close(write)


def test_rows_are_written_before_a_process_ends(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import django, os\n"
        "from django.conf import settings\n"
        "settings.DATABASES['default']['NAME'] = os.environ['TRACE_DATABASE']\n"
        "django.setup()\n"
        "from mlango.runtime.journal import RowJournal\n"
        "from mlango.runtime.rows import INSERT_TRACE, trace_values\n"
        "from mlango.runtime.writer import writer\n"
        "from mlango.runtime.writes import Write\n"
        "from tests.helpers import new_run\n"
        "writer.put(Write(RowJournal(), 'default', INSERT_TRACE, trace_values, new_run()))\n"
    )
    environ = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "TRACE_DATABASE": str(connection.settings_dict["NAME"]),
    }

    done = subprocess.run([sys.executable, script], env=environ, capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (0, "")
    assert Trace.objects.count() == 1


class TestManyRuns:
    def test_at_the_same_time_leave_whole_traces_and_no_connection(self):
        before = open_connections()

        runs = afinish_all(*(new_run(TURNS, [add]) for _ in range(40)))

        assert_none_is_left(before)
        assert Trace.objects.filter(status="finished", span_count=3).count() == 40
        assert Span.objects.count() == 120
        for run in runs[:5]:
            assert Trace.objects.get(uuid=run.uuid).messages == run.messages

    def test_in_threads_leave_whole_traces(self):
        def work():
            for _ in range(5):
                finish(new_run(TURNS, [add]))
            connections.close_all()

        before = open_connections()
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert_none_is_left(before)
        assert Trace.objects.filter(status="finished").count() == 40
        assert Span.objects.count() == 120

    def test_that_are_left_or_fail_leave_no_connection(self):
        before = open_connections()

        async def leave():
            async with astream(new_run()) as events:
                await anext(events)

        for _ in range(10):
            asyncio.run(leave())
            finish(new_run([ValueError("no")]))
            events = stream(new_run())
            next(events)
            events.close()

        assert_none_is_left(before)

    def test_keep_the_connection_if_the_settings_say_so(self, monkeypatch):
        monkeypatch.setitem(connection.settings_dict, "CONN_MAX_AGE", None)
        before = open_connections()

        finish(new_run())

        assert open_connections() == before + 1
        writer.close()
        assert_none_is_left(before)

    def test_share_a_connection_while_they_follow_each_other(self, monkeypatch):
        monkeypatch.setattr(writers, "keeps", lambda: True)
        monkeypatch.setattr(writers, "KEEP", 60)
        before = open_connections()

        finish(new_run())
        finish(new_run())

        assert open_connections() == before + 1
        writer.close()
        assert_none_is_left(before)

    def test_leave_no_connection_when_no_other_follows(self, monkeypatch):
        monkeypatch.setattr(writers, "keeps", lambda: True)
        monkeypatch.setattr(writers, "KEEP", 0)
        before = open_connections()

        finish(new_run())

        assert_none_is_left(before)

    def test_wait_at_each_step_when_rows_come_too_fast(self, monkeypatch):
        monkeypatch.setattr(writers, "CROWDED", -1)
        monkeypatch.setattr(writers, "LINGER", 0)
        seen = []

        @tool
        def count() -> str:
            """Count the spans."""
            seen.append(Span.objects.count())
            return "counted"

        finish(new_run([call("count"), call("count"), "Done."], [count]))

        assert seen[1] >= 2

    def test_lose_rows_when_there_are_far_too_many(self, monkeypatch, caplog):
        monkeypatch.setattr(writers, "MAX_QUEUED", 0)

        run = finish(new_run())

        assert run.status == "finished"
        assert "Too many rows wait to be written." in caplog.text


def open_connections():
    """Return how many connections to the test's database are open."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            )
            return cursor.fetchone()[0]
    # Not the open files: SQLite keeps that of a closed connection while another of the
    # process holds a lock.
    # And by type(), since isinstance() has lazy objects look at what they stand for.
    known = [each for each in gc.get_objects() if issubclass(type(each), BaseDatabaseWrapper)]
    return sum(each.connection is not None for each in known)


def assert_none_is_left(before):
    """Assert that no more are open than before; PostgreSQL's end a moment after their client."""
    deadline = time.monotonic() + 10
    while open_connections() > before and time.monotonic() < deadline:
        pass
    assert open_connections() <= before


class TestADatabaseThatFails:
    @pytest.mark.parametrize("runner", [finish, lambda run: asyncio.run(afinish(run))])
    @pytest.mark.parametrize("table", ["mlango_trace", "mlango_span"])
    def test_does_not_stop_a_run(self, table, runner, renamed, caplog):
        renamed(table)

        run = runner(new_run(TURNS, [add]))

        assert run.status == "finished"
        assert run.text == "Three."
        [message] = messages(caplog)
        assert message.startswith(NOT_COMPLETE.format(run=run))

    def test_is_told_once_for_each_run(self, renamed, caplog):
        renamed("mlango_trace")

        afinish_all(*(new_run(TURNS * 5, [add]) for _ in range(5)))

        assert len(messages(caplog)) == 5

    def test_does_not_take_what_it_can_store(self, renamed):
        renamed("mlango_span")

        run = finish(new_run(TURNS, [add]))

        assert Trace.objects.get(uuid=run.uuid).status == "finished"

    @pytest.mark.django_db(transaction=True, databases=["default", "agents"])
    def test_that_does_not_exist_does_not_stop_a_run(self, monkeypatch, caplog):
        monkeypatch.setattr(writers, "RETRIES", (0,))
        monkeypatch.setitem(connections.settings["agents"], "NAME", "/nonexistent/db.sqlite3")
        monkeypatch.setattr(router, "routers", [Elsewhere("agents")])

        first, second = finish(new_run(TURNS, [add])), finish(new_run())
        third = asyncio.run(afinish(new_run()))

        assert [first.status, second.status, third.status] == ["finished"] * 3
        assert len(messages(caplog)) == 3
        assert "unable to open database file" in messages(caplog)[0]
        monkeypatch.undo()
        assert finish(new_run()).status == "finished"
        assert Trace.objects.count() == 1

    def test_that_the_router_does_not_know_does_not_stop_a_run(self, monkeypatch, caplog):
        monkeypatch.setattr(router, "routers", [Elsewhere("nowhere")])

        run = finish(new_run(TURNS, [add]))

        assert run.status == "finished"
        assert NOT_COMPLETE.format(run=run) in caplog.text

    def test_that_hangs_is_waited_for_within_bounds(self, monkeypatch, caplog):
        monkeypatch.setattr(journal, "SYNC_TIMEOUT", 0.01)
        go_on = threading.Event()
        writer.send("default", go_on.wait)

        run = finish(new_run())

        go_on.set()
        writer.flush(10)
        assert run.status == "finished"
        assert "The database took longer than 0.01 seconds." in caplog.text
        assert Trace.objects.get().status == "finished"

    def test_says_nothing_of_the_content_in_the_log(self, caplog):
        run = new_run(said="canary")
        Trace.objects.create(uuid=run.uuid, agent="a.B", started_at=timezone.now())

        finish(run)

        assert "IntegrityError" in caplog.text
        assert "canary" not in caplog.text

    def test_that_is_locked_is_waited_for(self):
        if connection.vendor != "sqlite":
            pytest.skip("only SQLite locks the whole database")
        run = new_run()
        holding, let_go = threading.Event(), threading.Event()

        def hold():
            with transaction.atomic():
                Trace.objects.create(uuid="f" * 32, agent="a.B", started_at=timezone.now())
                holding.set()
                let_go.wait(10)
            connections.close_all()

        thread = threading.Thread(target=hold)
        thread.start()
        holding.wait(10)
        threading.Timer(0.2, let_go.set).start()
        finish(run)
        thread.join()

        assert Trace.objects.get(uuid=run.uuid).status == "finished"


class Elsewhere:
    """Sends the rows to another database."""

    def __init__(self, alias):
        self.alias = alias

    def db_for_write(self, model, **hints):
        return self.alias if model._meta.app_label == "mlango" else None


class TestErrorsThatMayPass:
    @pytest.mark.parametrize("error", [OperationalError("database is locked")])
    def test_are_worth_another_try(self, error):
        assert may_pass("default", error)

    @pytest.mark.parametrize(
        "error", [IntegrityError("no"), DatabaseError("no"), ValueError("no")]
    )
    def test_others_are_not(self, error):
        assert not may_pass("default", error)

    def test_a_missing_table_is_none_though_sqlite_says_so(self):
        error = OperationalError("no such table: mlango_trace")

        assert may_pass("default", error) is (connection.vendor != "sqlite")


class TestStatements:
    def test_need_all_columns(self):
        with pytest.raises(ValueError, match="The columns of Span are"):
            Insert(Span, ["trace_id", "ordering"])

    @pytest.mark.parametrize("vendors", [statements.VENDORS, ()])
    def test_store_the_same_with_sql_and_with_the_orm(self, vendors, monkeypatch):
        monkeypatch.setattr(statements, "VENDORS", vendors)

        run = finish(new_run(TURNS, [add], metadata={"a": 1}))

        trace = Trace.objects.get()
        assert trace.status == "finished"
        assert trace.messages == run.messages
        assert trace.span_count == trace.spans.count() == 3
        assert trace.started_at.timestamp() == pytest.approx(run.started_at, abs=1e-5)

    def test_values_are_in_the_order_of_the_columns(self):
        run = finish(new_run(TURNS, [add]))
        entry = journal.Entry("tool", "add", 9, 4, 1.0, 0.5, tool_call_id="c9", error_type="tool")

        values = span_values(run, entry, 8)

        named = dict(zip(INSERT_SPAN.columns, values, strict=True))
        assert named["trace_id"] == run.uuid
        assert (named["ordering"], named["parent_ordering"], named["step"]) == (9, 8, 4)
        assert (named["kind"], named["name"], named["tool_call_id"]) == ("tool", "add", "c9")
        assert (named["error_type"], named["cost"]) == ("tool", None)
        assert (named["ended_at"] - named["started_at"]).total_seconds() == 0.5


@pytest.fixture(autouse=True)
def _no_rows_on_their_way():
    yield
    deadline = time.monotonic() + 10
    while not writer.flush(1):
        assert time.monotonic() < deadline


def test_the_last_event_comes_when_the_rows_are_there():
    go_on = threading.Event()
    events = stream(new_run(TURNS, [add]))
    for event in events:
        if event.kind == "step_finished" and event.step == 2:
            break
    writer.send("default", lambda: go_on.wait(10))  # the database is slow from here on
    slow = threading.Timer(0.1, go_on.set)
    slow.start()
    last = next(events)
    trace = Trace.objects.get()
    slow.join()

    assert last.kind == "finished"
    assert (trace.status, trace.span_count, trace.spans.count()) == ("finished", 3, 3)
