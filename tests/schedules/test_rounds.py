"""Schedules are fired by whoever looks, once."""

import asyncio
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from mlango.agents import Agent, Cron, rounds
from mlango.agents.queues import Queue
from mlango.agents.rounds import Clock, Rounds, go_round, ring_for_overdue, until_next_round
from mlango.agents.worker import Worker
from mlango.clock import Now
from mlango.models import DurableRun, Trace
from tests.durable.agents import Planned, plan

pytestmark = pytest.mark.django_db(transaction=True)


class Heard(Queue):
    """Remembers what it was told."""

    rung = []

    def ring(self, run):
        self.rung.append(run.pk)


def at(text):
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo("UTC"))


def morning(*schedules):
    class Morning(Agent):
        class Meta:
            app_label = "schedules"
            provider = Planned()
            model = "planned/one"
            durable = True
            schedule = schedules

    return Morning


def cron(expression="0 8 * * *", **options):
    return Cron(expression, plan("Good morning."), time_zone="UTC", **options)


def test_however_many_look_one_run_comes_of_it():
    morning(cron())

    first, second = Clock(), Clock()
    for minute in range(3):
        first.fire(at(f"2026-12-02 08:0{minute}"))
        second.fire(at(f"2026-12-02 08:0{minute}"))

    assert Trace.objects.get().status == "queued"


def test_each_firing_is_a_run():
    morning(cron(), cron("30 8 * * *"))
    clock = Clock()

    fired = [clock.fire(at(f"2026-12-0{day} 08:30")) for day in (2, 3)]

    assert fired == [2, 2]
    assert Trace.objects.count() == 4


def test_a_schedule_that_was_changed_does_not_fire_again():
    morning(cron())
    Clock().fire(at("2026-12-02 08:00"))
    morning(cron(metadata={"now": "with more"}))

    Clock().fire(at("2026-12-02 08:01"))

    assert Trace.objects.count() == 1


def test_a_schedule_that_fails_keeps_no_other_from_firing(caplog):
    def targets():
        raise LookupError("no such table")

    morning(cron(targets=targets), cron("30 8 * * *"))

    assert Clock().fire(at("2026-12-02 08:30")) == 1
    assert "The schedule schedules.Morning 0 8 * * * 0 does not say when" in caplog.text


def test_a_run_that_cannot_be_begun_keeps_no_other_from_it(caplog):
    morning(cron(idempotency_key="one of its own"), cron("30 8 * * *"))

    Clock().fire(at("2026-12-02 08:30"))

    assert Trace.objects.count() == 1
    assert "The run schedules.Morning 0 8 * * * 0" in caplog.text


def test_a_schedule_does_not_fire_again_when_another_is_put_before_it():
    morning(cron())
    Clock().fire(at("2026-12-02 08:00"))
    morning(cron("30 7 * * *"), cron())

    Clock().fire(at("2026-12-02 08:10"))

    keys = DurableRun.objects.values_list("idempotency_key", flat=True).order_by("due_at")
    assert [key.split("  ")[1] for key in keys] == [
        "2026-12-02T08:00:00+00:00",
        "2026-12-02T07:30:00+00:00",
    ]


def test_two_schedules_of_the_same_hours_both_fire():
    morning(cron(), cron(metadata={"by": "another"}))

    assert Clock().fire(at("2026-12-02 08:00")) == 2
    assert Trace.objects.count() == 2


def test_it_goes_by_the_clock_of_a_site_without_time_zones(settings, monkeypatch):
    monkeypatch.setattr(rounds, "clock", Clock())
    settings.USE_TZ = False
    settings.MLANGO = {"QUEUE": f"{__name__}.Heard"}
    morning(cron("* * * * *"))

    go_round()

    assert Trace.objects.count() == 1


def test_a_worker_does_what_is_due_by_the_clock():
    morning(cron("* * * * *"))

    asyncio.run(Worker().work(until_idle=True))

    trace = Trace.objects.get()
    assert (trace.status, trace.output) == ("finished", "Good morning.")


def test_it_is_rung_again_for_what_nobody_came_for(settings):
    settings.MLANGO = {"QUEUE": f"{__name__}.Heard"}
    morning(cron())
    Clock().fire(at("2026-12-02 08:00"))
    Heard.rung.clear()

    assert ring_for_overdue() == 0  # it was only just enqueued
    DurableRun.objects.update(due_at=Now() - timedelta(days=1))
    assert ring_for_overdue() == 1

    assert Heard.rung == [Trace.objects.get().pk]


def held(seconds):
    """Have a process hold a run, by a lease that ends in so many seconds."""
    trace = morning(cron())().enqueue("Good morning.")
    DurableRun.objects.claim(trace.pk, "w1", 30)
    DurableRun.objects.update(due_at=Now() + timedelta(seconds=seconds))
    return trace


def test_what_a_process_left_is_rung_as_soon_as_its_lease_is_over(settings):
    settings.MLANGO = {"QUEUE": f"{__name__}.Heard"}
    trace = held(1000)
    Heard.rung.clear()

    assert ring_for_overdue() == 0
    DurableRun.objects.update(due_at=Now())
    assert ring_for_overdue() == 1

    assert Heard.rung == [trace.pk]


def test_rounds_rest_until_a_lease_may_be_over():
    assert until_next_round() == 15
    held(1000)
    assert until_next_round() == 15

    held(14)

    assert 0 < until_next_round() <= 14


def test_rounds_rest_no_less_for_what_was_left_already():
    held(-1)

    assert until_next_round() == 15


def test_rounds_end_when_they_are_told_to():
    looking = Rounds()
    looking.start()

    looking.stop()
    looking.join(10)

    assert not looking.is_alive()
