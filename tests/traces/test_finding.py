"""Finding traces, and what a trace tells."""

from datetime import timedelta
from decimal import Decimal

import pytest
from asgiref.sync import async_to_sync
from django.utils import timezone

from mlango.agents.resume import take
from mlango.agents.traces import aget_trace, find_trace, get_trace, recent_traces
from mlango.exceptions import TraceNotFound
from mlango.models import Event, Session, Span, Trace
from tests.helpers import new_run

pytestmark = pytest.mark.django_db


def make(uuid, agent="shop.Support", minutes=0, **fields):
    return Trace.objects.create(
        uuid=uuid.ljust(32, "0"),
        agent=agent,
        started_at=timezone.now() - timedelta(minutes=minutes),
        **fields,
    )


class TestGetTrace:
    def test_finds_a_trace_by_its_id(self):
        trace = make("abcdef1234")

        assert get_trace(trace.uuid) == trace

    @pytest.mark.parametrize(
        "prefix", ["abcdef12", "abcdef1234", "ABCDEF12", " abcdef12 ", "abcdef12-34"]
    )
    def test_finds_it_by_the_beginning(self, prefix):
        trace = make("abcdef1234")
        make("abcdef99")

        assert get_trace(prefix) == trace

    @pytest.mark.parametrize(
        "prefix",
        [
            "",
            "%",
            "abcdef1",
            "________",
            "%%%%%%%%",
            "abcdef1%",
            "abcdefgh",
            "a" * 33,
            "*" * 8,
            None,
        ],
    )
    def test_takes_nothing_else(self, prefix):
        make("abcdef1234")

        with pytest.raises(TraceNotFound, match="Give at least the first 8 of its 32 characters"):
            get_trace(prefix)

    def test_says_that_there_is_none(self):
        with pytest.raises(TraceNotFound, match="No trace has an id that begins with 'abcdef12'"):
            get_trace("abcdef12")

    def test_lists_the_candidates(self):
        make("abcdef12aa", agent="shop.Support")
        make("abcdef12bb", agent="shop.Sales")

        with pytest.raises(TraceNotFound) as caught:
            get_trace("abcdef12")

        assert "abcdef12aa0000" in str(caught.value)
        assert "(shop.Sales)" in str(caught.value)

    def test_lists_ten_at_most(self):
        for number in range(12):
            make(f"abcdef12{number:02}")

        with pytest.raises(TraceNotFound, match="and more"):
            get_trace("abcdef12")

    def test_a_whole_id_is_never_ambiguous(self):
        trace = make("abcdef12")

        assert get_trace("abcdef12".ljust(32, "0")) == trace


def test_async_code_can_get_a_trace_too():
    trace = make("abcdef12")

    assert async_to_sync(aget_trace)("abcdef12") == trace


def test_recent_traces_come_newest_first():
    old, new, other = make("a1", minutes=2), make("a2"), make("a3", "shop.Sales", minutes=1)

    assert list(recent_traces()) == [new, other, old]
    assert list(recent_traces(limit=1)) == [new]
    assert list(recent_traces(agent="shop.Support")) == [new, old]


def test_a_run_without_a_trace_has_none():
    assert find_trace("ab" * 16) is None
    assert find_trace(make("a1").uuid) is not None


class TestMarkLost:
    def test_runs_that_cannot_be_running_any_more_are_lost(self, settings):
        settings.MLANGO = {"AGENT_TIMEOUT": 600, "SESSION_WAIT": 30}
        lost = make("a1", minutes=17)
        recent = make("a2", minutes=14)
        ended = make("a3", minutes=17, status="finished")
        waiting = make("a4", minutes=17, status="waiting")

        assert Trace.objects.mark_lost() == 1

        lost.refresh_from_db()
        assert lost.status == "lost"
        assert lost.error == "The process ended before the run did."
        assert lost.ended_at is None
        for trace in (recent, ended, waiting):
            before = trace.status
            trace.refresh_from_db()
            assert trace.status == before

    def test_a_run_that_went_on_after_it_had_waited_has_its_whole_time_again(self):
        waited = make("a1", minutes=3000, status="stopped", opening_json="{}")
        run = new_run()
        run.uuid = waited.uuid
        take(run)

        assert Trace.objects.mark_lost() == 0

        waited.refresh_from_db()
        assert waited.status == "running"
        Trace.objects.update(resumed_at=timezone.now() - timedelta(minutes=2000))
        assert Trace.objects.mark_lost() == 1

    def test_without_a_timeout_it_takes_a_day(self, settings):
        settings.MLANGO = {"AGENT_TIMEOUT": None}
        make("a1", minutes=23 * 60)
        make("a2", minutes=25 * 60)

        assert Trace.objects.mark_lost() == 1

    @pytest.mark.parametrize("minutes", [0, 1])
    def test_the_time_can_be_given(self, minutes):
        make("a1", minutes=2)

        assert Trace.objects.mark_lost(older_than=timedelta(minutes=minutes)) == 1

    def test_a_run_that_still_writes_is_not_lost(self):
        make("a1", minutes=60)
        make("a2", minutes=60)
        make("a3", minutes=60)
        lead, now = make("a4", minutes=60), timezone.now()
        child = make("a5", minutes=60, parent=lead)
        spans = {"ordering": 1, "step": 1, "started_at": now}
        Span.objects.create(trace_id="a1".ljust(32, "0"), ended_at=now, **spans)
        Span.objects.create(
            trace_id="a2".ljust(32, "0"), ended_at=now - timedelta(hours=1), **spans
        )
        Event.objects.create(
            trace_id="a3".ljust(32, "0"), seq=1, kind="text", at=now, data_json="{}"
        )
        Span.objects.create(trace=child, ended_at=now, **spans)

        assert Trace.objects.mark_lost() == 1
        assert Trace.objects.get(status="lost").uuid == "a2".ljust(32, "0")

    @pytest.mark.parametrize(("ago", "lost"), [(0, 0), (60, 1)])
    def test_nor_one_that_holds_its_session(self, ago, lost):
        trace = make("a1", minutes=90)
        until = timezone.now() + timedelta(seconds=30) - timedelta(minutes=ago)
        Session.objects.create(agent=trace.agent, key="s", turn=trace.uuid, turn_until=until)

        assert Trace.objects.mark_lost() == lost

    def test_some_traces_can_be_chosen(self):
        make("a1", agent="shop.Sales", minutes=60)
        make("a2", minutes=60)

        assert Trace.objects.filter(agent="shop.Sales").mark_lost() == 1


def test_a_trace_describes_itself_without_content():
    trace = make("ab", input="canary", output="canary", cost=Decimal("0.5"), session_key="s1")
    trace.ended_at = trace.started_at + timedelta(seconds=2)

    described = trace.describe()

    assert "canary" not in str(described)
    assert described["trace"] == trace.uuid
    assert described["session_id"] == "s1"
    assert described["duration_s"] == 2.0
    assert described["cost"] == "0.5"


@pytest.mark.parametrize(
    ("cost", "written"),
    [(None, None), ("0", "0"), ("100", "100"), ("0.0000015", "0.0000015")],
)
def test_a_cost_is_told_in_figures(cost, written):
    make("ab", cost=cost)

    assert Trace.objects.get().describe()["cost"] == written


def test_a_trace_whose_history_was_pruned_keeps_its_own_turn():
    trace = make("ab")
    trace.opening = {
        "system": "",
        "said": [{"role": "user", "content": "x"}],
        "traces": ["f" * 32],
    }

    assert trace.messages == [{"role": "user", "content": "x"}]


def test_a_run_that_goes_on_has_no_duration():
    assert make("ab").duration_s is None


def test_ids_are_valid_trace_ids_for_w3c():
    uuid = new_run().uuid

    assert len(uuid) == 32
    assert uuid == uuid.lower()
    assert int(uuid, 16) != 0
