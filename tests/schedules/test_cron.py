"""When a schedule is due."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim

from mlango.agents import Agent, Cron, Target
from mlango.exceptions import Misconfigured

BERLIN = "Europe/Berlin"


@pytest.fixture(autouse=True)
def utc(settings):
    settings.TIME_ZONE = "UTC"


def at(text, zone="UTC"):
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone))


def fired(cron, now, name="shop.Report"):
    return [(firing.key, firing.at) for firing in cron.due(name, now)]


@pytest.mark.parametrize(
    ("now", "last"),
    [
        ("2026-12-02 07:59:59", "2026-12-01 08:00"),
        ("2026-12-02 08:00:00", "2026-12-02 08:00"),
        ("2026-12-02 08:00:59", "2026-12-02 08:00"),
        ("2026-12-02 23:59:59", "2026-12-02 08:00"),
    ],
)
def test_it_is_due_from_its_minute_on(now, last):
    assert Cron("0 8 * * *", "Report.").last(at(now)) == at(last)


def test_its_hours_are_those_of_its_time_zone():
    cron = Cron("0 8 * * *", "Report.", time_zone=BERLIN)

    assert cron.last(at("2026-07-01 06:00")) == at("2026-07-01 06:00")
    assert cron.last(at("2026-12-01 06:00")) == at("2026-11-30 07:00")


def test_its_hours_are_the_sites_without_one(settings):
    settings.TIME_ZONE = BERLIN

    assert Cron("0 8 * * *", "Report.").last(at("2026-07-01 06:00")) == at("2026-07-01 06:00")


@pytest.mark.parametrize("expression", ["30 2 * * *", "*/30 * * * *", "0 3 * * *", "59 23 * * 0"])
@pytest.mark.parametrize("day", ["2026-03-29", "2026-10-25"])
def test_each_time_comes_once_where_clocks_are_changed(expression, day):
    begin = at(f"{day} 00:00", BERLIN) - timedelta(days=1)
    cron = Cron(expression, "Report.", time_zone=BERLIN, catch_up=timedelta(days=9))
    minutes = (begin.astimezone(UTC) + timedelta(minutes=n) for n in range(3 * 24 * 60))
    seen = {cron.last(now).astimezone(UTC) for now in minutes}

    simulated = CronSim(expression, begin - timedelta(minutes=1))
    expected = []
    while not expected or expected[-1] <= max(seen):
        expected.append(next(simulated).astimezone(UTC))
    within = {time for time in seen if time >= begin}

    assert within == {time for time in expected if time <= max(seen)}


def test_every_look_at_one_firing_has_the_same_key():
    cron = Cron("0 8 * * *", "Report.")

    first, second = (fired(cron, at(f"2026-12-02 08:{m:02}")) for m in (0, 59))

    assert first == second == [("shop.Report  2026-12-02T08:00:00+00:00", at("2026-12-02 08:00"))]


def test_what_fell_due_too_long_ago_is_left_out():
    cron = Cron("0 8 * * *", "Report.", catch_up=timedelta(minutes=10))

    assert fired(cron, at("2026-12-02 08:10"))
    assert not fired(cron, at("2026-12-02 08:11"))


def test_a_day_that_never_comes_is_never_due():
    # The 1st or 21st, if that is the last Monday of its month.
    assert not fired(Cron("* * */20 * 1L", "Report."), at("2026-12-02 08:00"))


def tenants():
    return [
        Target("berlin", BERLIN, {"state": {"tenant": 1}}),
        Target("tokyo", "Asia/Tokyo", {"state": {"tenant": 2}}),
    ]


@pytest.mark.parametrize("targets", [tenants, f"{__name__}.tenants"])
def test_each_target_has_hours_options_and_a_key_of_its_own(targets):
    cron = Cron("0 8 * * *", "Report.", targets=targets, metadata={"by": "clock"})

    [berlin] = cron.due("shop.Report", at("2026-12-02 07:00"))
    [tokyo] = cron.due("shop.Report", at("2026-12-02 23:00"))

    assert berlin.key == "shop.Report berlin 2026-12-02T07:00:00+00:00"
    assert tokyo.key == "shop.Report tokyo 2026-12-02T23:00:00+00:00"
    assert berlin.options == {"metadata": {"by": "clock"}, "state": {"tenant": 1}}


NO_EXPRESSIONS = ["", "8 o'clock", "0 8 * *", "60 8 * * *", "0 0 8 * * *", "* * * * * *", 5, None]


@pytest.mark.parametrize("expression", NO_EXPRESSIONS)
def test_what_is_no_expression_is_refused(expression):
    with pytest.raises(Misconfigured, match=r"0 8 \* \* 1-5"):
        Cron(expression, "Report.")


def test_a_schedule_needs_something_to_say():
    with pytest.raises(Misconfigured, match="needs a message"):
        Cron("0 8 * * *", " ")


@pytest.mark.parametrize("name", ["Middle/Earth", 5])
def test_a_time_zone_that_is_none_is_refused(name):
    with pytest.raises(Misconfigured, match="Europe/Berlin"):
        Cron("0 8 * * *", "Report.", time_zone=name)


@pytest.mark.parametrize("catch_up", [5, None, timedelta(0), timedelta(seconds=59)])
def test_what_nobody_would_look_in_time_for_is_refused(catch_up):
    with pytest.raises(Misconfigured, match="a minute or more"):
        Cron("0 8 * * *", "Report.", catch_up=catch_up)


def test_a_target_without_hours_keeps_no_other_from_firing(caplog):
    cron = Cron("0 8 * * *", "Report.", targets=lambda: [Target("mars", "Mars/Base"), Target("a")])

    assert [firing.key[:13] for firing in cron.due("shop.Report", at("2026-12-02 08:00"))] == [
        "shop.Report a"
    ]
    assert "does not fire for 'mars'" in caplog.text


def test_an_agent_may_have_one_schedule_or_several():
    early, late = Cron("0 8 * * *", "Good morning."), Cron("0 20 * * *", "Good night.")

    class Once(Agent):
        class Meta:
            schedule = early

    class Twice(Agent):
        class Meta:
            schedule = [early, late]

    assert Once._meta.schedule == (early,)
    assert Twice._meta.schedule == (early, late)


def test_a_subclass_does_not_fire_again_for_its_base():
    class Base(Agent):
        class Meta:
            schedule = Cron("0 8 * * *", "Report.")

    class Special(Base):
        pass

    assert Special._meta.schedule == ()


def test_a_schedule_is_a_cron():
    with pytest.raises(Misconfigured, match=r"schedule must be Cron\(\.\.\.\)"):

        class Wrong(Agent):
            class Meta:
                schedule = "0 8 * * *"
