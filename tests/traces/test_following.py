"""Following a run by its log."""

import asyncio
import threading

import pytest
from django.db import OperationalError, connections

from mlango.agents import Agent, tool
from mlango.agents.providers import Completion, ScriptedProvider, ToolCall
from mlango.core.log import Places, Told
from mlango.core.values import encode
from mlango.exceptions import Misused
from mlango.models import Event, Trace
from mlango.runtime.following import Reader, UnknownEvent, afollow, asker, follow
from mlango.runtime.rows import INSERT_EVENT, INSERT_SPAN, UPDATE_TRACE, event_values
from mlango.runtime.writes import execute

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _closed():
    yield
    asker.close()
    connections.close_all()


class Gated(ScriptedProvider):
    """Says a few words, waits for the gate, and says some more."""

    def __init__(self, gate=None):
        super().__init__()
        self.gate = gate

    async def astream(self, **options):
        for word in ("one ", "two ", "three "):
            yield word
        if self.gate is not None:
            await asyncio.to_thread(self.gate.wait)
        for word in ("four ", "five"):
            yield word
        yield Completion("one two three four five")


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


class Logged(Agent):
    class Meta:
        app_label = "followed"
        tools = [add]


def script():
    return ScriptedProvider(
        [
            Completion("let me see", [ToolCall("c1", "add", '{"a": 1, "b": 2}')]),
            "it is three, ä\n\u2028",
        ]
    )


def live(agent=Logged, provider=None, message="hi", **options):
    """Run with a log; return the events as a live reader gets them over the wire."""
    stream = agent().stream(message, provider=provider or script(), **options).keep_log()
    places = Places(stream.uuid)
    told = [Told(places.of(each), each.kind, encode(each.describe())) for each in stream]
    return stream.uuid, told


def test_a_follower_reads_what_a_live_reader_read():
    uuid, told = live()

    assert list(follow(uuid)) == told
    assert told[-1].is_last


@pytest.mark.parametrize("provider", [script, Gated])
def test_every_place_gives_the_rest(provider):
    uuid, told = live(provider=provider())

    for index, each in enumerate(told):
        assert list(follow(uuid, each.cursor)) == told[index + 1 :]
        assert list(follow(uuid, str(each.cursor))) == told[index + 1 :]


def test_chunks_share_rows():
    uuid, told = live(provider=Gated())

    assert Event.objects.filter(trace=uuid).count() < len(told)


def test_plain_runs_have_no_log():
    run = Logged().run("hi", provider=script())

    assert not Event.objects.exists()
    assert [each.kind for each in follow(run)] == ["resync", "finished"]


def test_a_reader_at_every_place_while_the_run_still_writes():
    gate, found, uuids = threading.Event(), {}, []
    began = threading.Event()

    def work():
        stream = Logged().stream("hi", provider=Gated(gate)).keep_log()
        uuids.append(stream.uuid)
        for event in stream:
            if event.kind == "text_chunk":
                began.set()
        connections.close_all()

    run = threading.Thread(target=work)
    run.start()
    assert began.wait(10)
    while Event.objects.filter(kind="text_chunk").count() == 0:
        pass
    [uuid] = uuids

    async def read(after):
        found[after] = [each async for each in afollow(uuid, after)]

    async def read_all():
        readers = [asyncio.create_task(read(after)) for after in (None, 0, 1, 2, 3, 4)]
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(*readers)

    asyncio.run(read_all())
    run.join()

    told = list(follow(uuid))
    assert [each.cursor.seq for each in told] == list(range(len(told)))
    assert told[-1].kind == "finished"
    for after, read_by_one in found.items():
        assert read_by_one == told[0 if after is None else after + 1 :]


def test_what_is_written_between_two_looks_is_told_once_in_order():
    uuid, told = live()
    rows = list(Event.objects.filter(trace=uuid))
    Event.objects.filter(pk__in=[row.pk for row in rows[2:]]).delete()
    Trace.objects.filter(pk=uuid).update(status="running")
    reader = Reader(uuid)

    first = reader.fetch()
    second = reader.fetch()
    Event.objects.bulk_create(rows[2:5])
    third = reader.fetch()
    Event.objects.bulk_create(rows[5:])
    Trace.objects.filter(pk=uuid).update(status="finished")
    fourth = reader.fetch()

    assert [*first, *second, *third, *fourth] == told
    assert second == []
    assert reader.is_done


def test_a_hole_is_told():
    uuid, told = live()
    rows = list(Event.objects.filter(trace=uuid))
    rows[2].delete()

    found = list(follow(uuid))

    resync = next(each for each in found if each.kind == "resync")
    assert resync.cursor == rows[2].last
    assert resync.describe()["after"] == str(rows[1].last)
    assert [each for each in found if each.kind != "resync"] == [
        each for each in told if not rows[2].first <= each.cursor <= rows[2].last
    ]


def test_what_was_pruned_is_told_by_one_resync():
    uuid, told = live()
    Event.objects.prune(Trace.objects.get().ended_at.replace(year=2100))

    for after in (None, 0, 3):
        assert [each.kind for each in follow(uuid, after)] == ["resync", "finished"]
    assert list(follow(uuid, told[-1].cursor)) == []
    assert list(follow(uuid))[-1] == told[-1]


def test_a_cursor_that_never_comes_is_refused():
    uuid, told = live()

    with pytest.raises(UnknownEvent, match=f"has no event {len(told)}"):
        list(follow(uuid, len(told)))
    with pytest.raises(Misused, match="is not the id of an event"):
        list(follow(uuid, "soon"))


@pytest.mark.parametrize("status", ["lost", "failed", "cancelled"])
def test_a_run_whose_process_died_has_an_end(status):
    uuid, told = live()
    Event.objects.filter(trace=uuid).order_by("-seq").first().delete()
    Trace.objects.filter(pk=uuid).update(status=status, error="It died.")

    found = list(follow(uuid))

    assert found[:-1] == told[:-1]
    assert found[-1].is_last
    assert found[-1].describe()["error"] == "It died."
    assert found[-1].describe()["seq"] == len(told) - 1
    assert list(follow(uuid, found[-1].cursor)) == []


def test_a_reader_who_was_ahead_of_a_lost_log_is_told_the_end():
    uuid, _ = live()
    Event.objects.filter(trace=uuid, seq__gt=3).delete()
    Trace.objects.filter(pk=uuid).update(status="lost")

    assert [each.kind for each in follow(uuid, 7)] == ["failed"]


def test_a_run_that_was_left_is_stored_to_its_end():
    stream = Logged().stream("hi", provider=script()).keep_log()
    places = Places(stream.uuid)
    read = [places.of(next(stream)) for _ in range(4)]
    stream.close()

    rest = list(follow(stream.uuid, read[-1]))

    assert rest[-1].kind == "finished"
    assert rest[-1].describe()["status"] == "cancelled"
    assert [each.cursor.seq for each in rest] == list(range(4, 4 + len(rest)))


def test_two_readers_read_all():
    uuid, told = live()

    async def read():
        return [each async for each in afollow(uuid)]

    async def both():
        return await asyncio.gather(read(), read())

    assert asyncio.run(both()) == [told, told]


def test_a_change_and_its_events_are_written_together(monkeypatch):
    groups, real = [], execute

    def noted(alias, rows):
        groups.append([write for write, _ in rows])
        real(alias, rows)

    monkeypatch.setattr("mlango.runtime.writer.GROUP", 1)  # nothing is together by luck
    monkeypatch.setattr("mlango.runtime.writer.execute", noted)
    live()

    ends = [group for group in groups if any(each.statement is UPDATE_TRACE for each in group)]
    assert len(ends) == 1
    told = [each.thing.events[0].kind for each in ends[0] if each.statement is INSERT_EVENT]
    assert told[-1] == "finished"
    for group in groups:
        for write in group:
            if write.statement is INSERT_SPAN and write.thing[0].kind == "llm":
                assert any(each.statement is INSERT_EVENT for each in group)


def test_numbers_go_on_when_a_run_goes_on():
    class Short(Logged):
        class Meta:
            app_label = "followed"
            max_steps = 1

    uuid, told = live(Short)
    assert told[-1].describe()["stop_reason"] == "max_steps"
    Short().resume(uuid, max_steps=3, provider=ScriptedProvider(["three"]))

    found = list(follow(uuid))

    assert [each.cursor.seq for each in found] == list(range(len(found)))
    assert [each.kind for each in found].count("finished") == 2
    assert found[-1].describe()["status"] == "finished"
    assert found[len(told)].kind == "started"


def test_sub_agents_are_followed_too():
    class Helper(Agent):
        class Meta:
            app_label = "followed"
            provider = ScriptedProvider(["I help", "I help"])

    class Lead(Agent):
        class Meta:
            app_label = "followed"
            subagents = [Helper]

    provider = ScriptedProvider(
        [
            Completion("", [ToolCall("c1", "helper", '{"message": "help"}')]),
            "done",
        ]
    )
    uuid, told = live(Lead, provider)

    assert any(each.cursor.part for each in told)
    for index, each in enumerate(told):
        assert list(follow(uuid, each.cursor)) == told[index + 1 :]
    assert list(follow(uuid)) == told


def test_runs_without_content_have_no_log():
    class Quiet(Logged):
        class Meta:
            app_label = "followed"
            capture_content = False

    uuid, _ = live(Quiet)

    assert not Event.objects.exists()
    assert [each.kind for each in follow(uuid)] == ["resync", "finished"]


def test_a_database_that_fails_makes_a_hole_and_no_failure(monkeypatch):
    real, failed = event_values, []

    def values(run, row):
        if row.events[0].kind == "tool_called":
            failed.append(row)
            raise ValueError("no")
        return real(run, row)

    monkeypatch.setattr("mlango.runtime.journal.event_values", values)
    uuid, told = live()

    assert told[-1].kind == "finished"
    assert failed
    found = [each.kind for each in follow(uuid)]
    assert found.count("resync") == 1
    assert found[-1] == "finished"


def test_a_look_that_fails_is_made_again_and_nothing_is_left_out():
    uuid, told = live(provider=Gated())
    after = next(each.cursor for each in told if each.kind == "text_chunk")
    failures = iter([OperationalError("The server is away.")])

    def fail(execute, sql, params, many, context):
        if "mlango_event" in sql:
            for failure in failures:
                raise failure
        return execute(sql, params, many, context)

    reader = Reader(uuid, after)
    with connections["default"].execute_wrapper(fail), pytest.raises(OperationalError):
        reader.fetch()

    assert reader.fetch() == told[after.seq + 1 :]
