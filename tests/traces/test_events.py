"""The rows of a run's log."""

from datetime import timedelta

import pytest
from django.utils import timezone

from mlango.core.events import Started, TextChunk, Thinking
from mlango.core.log import BEGINNING, Cursor, EventLog, Told, told
from mlango.core.values import encode
from mlango.models import Event

RUN = "a" * 32
CHILD = "b" * 32


def text_chunk(seq, text, run=RUN, parent=None, step=1):
    return TextChunk(seq, run, step, 1764712800.5 + seq, parent, text)


def thinking(seq, run=RUN, parent=None):
    return Thinking(seq, run, 1, 1764712800.0, parent, "echo/echo")


def rows_of(*events):
    log = EventLog(RUN, lambda event: None)
    log.add(Started(0, RUN, 0, 0.0, None, "a.B", RUN, "", "hi"))
    for event in events:
        log.add(event)
    return log.take()[1:]


def told_of(rows):
    return [
        each
        for row in rows
        for each in told(row.cursor, row.events[0].kind, len(row.events), row.encode())
    ]


@pytest.mark.parametrize("text", ["", "x", "-1", "1.", "1.0", ".5", "1.2.3", "٣", "1" * 12, " 1"])
def test_what_is_no_cursor_is_refused(text):
    with pytest.raises(ValueError, match="is not the id of an event, such as"):
        Cursor.parse(text)


@pytest.mark.parametrize("text", ["0", "12", "12.3"])
def test_a_cursor_is_read_as_it_was_written(text):
    assert str(Cursor.parse(text)) == text


def test_chunks_share_a_row_and_come_out_as_they_were():
    events = [thinking(1), *(text_chunk(seq, f"w{seq} ä\n") for seq in (2, 3, 4)), thinking(5)]

    rows = rows_of(*events)

    assert [len(row.events) for row in rows] == [1, 3, 1]
    assert told_of(rows) == [
        Told(Cursor(event.seq), event.kind, encode(event.describe())) for event in events
    ]


def test_events_of_sub_agents_lie_behind_the_run_s_own():
    events = [
        thinking(1),
        text_chunk(0, "a", CHILD, RUN),
        text_chunk(1, "b", CHILD, RUN),
        text_chunk(2, "c"),
        thinking(0, CHILD, RUN),
    ]

    found = told_of(rows_of(*events))

    assert [str(each.cursor) for each in found] == ["1", "1.1", "1.2", "2", "2.1"]
    assert [each.data for each in found] == [encode(event.describe()) for event in events]


def test_chunks_of_two_steps_do_not_share_a_row():
    assert len(rows_of(text_chunk(1, "a"), text_chunk(2, "b", step=2))) == 2


def test_every_place_follows_the_one_before():
    assert BEGINNING.is_followed_by(Cursor(0))
    assert Cursor(4).is_followed_by(Cursor(4, 1))
    assert Cursor(4, 2).is_followed_by(Cursor(5))
    assert not Cursor(4, 2).is_followed_by(Cursor(6))
    assert not Cursor(4, 2).is_followed_by(Cursor(4, 4))


@pytest.mark.django_db
def test_old_rows_are_deleted_but_for_the_last_of_each_log():
    now = timezone.now()
    for run, count in ((RUN, 3), (CHILD, 1)):
        for seq in range(count):
            Event.objects.create(trace_id=run, seq=seq, kind="thinking", at=now, data_json="{}")

    assert Event.objects.prune(now) == 0
    assert Event.objects.prune(now + timedelta(seconds=1)) == 2
    assert [(row.trace_id, row.seq) for row in Event.objects.all()] == [(RUN, 2), (CHILD, 0)]


def test_what_is_made_before_the_first_event_lies_behind_it():
    log = EventLog(RUN, lambda event: None)
    log.add(thinking(1))

    assert log.take() == []

    log.add(Started(0, RUN, 0, 0.0, None, "a.B", RUN, "", "hi"))
    log.add(thinking(2))

    assert [str(row.cursor) for row in log.take()] == ["0", "1", "2"]
