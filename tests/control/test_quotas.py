"""Quotas: what is reserved before a model call, what is counted after it, and for whom."""

import asyncio
import math
import os
import queue
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from django.contrib.auth import get_user_model
from django.db import connections
from django.db.models import QuerySet
from django.utils import timezone

from mlango.agents import Agent, BudgetExceeded, Compaction, Limits, LLMJudge, Quota, Retry, tool
from mlango.agents.providers import Completion, Provider, ScriptedProvider, ToolCall, Usage
from mlango.agents.quotas import period_start
from mlango.clock import Now
from mlango.exceptions import Misconfigured, ProviderUnavailable, RunError
from mlango.models import QuotaReservation, QuotaUsage
from mlango.models.quota import QuotaUsageQuerySet
from tests.helpers import Priced

pytestmark = pytest.mark.django_db(transaction=True)

ANSWER = Completion("Done.", usage=Usage(10, 10))
EXPECTED = 101  # tokens of a call that says "hi" and may answer with 100


class Desk(Agent):
    class Meta:
        app_label = "control"
        max_tokens = 100
        tracing = False
        quotas = [Quota(tokens=150, per="user", every="day")]


def with_quotas(*given, label="Quoted", **options):
    meta = type("Meta", (), {"quotas": list(given), "app_label": "control", **options})
    return type(label, (Desk,), {"Meta": meta, "__module__": __name__})


def run(turns=(ANSWER,), agent=Desk, **options):
    return agent().run("hi", provider=ScriptedProvider(turns), **options)


@pytest.fixture
def user():
    return get_user_model().objects.create(username="ann")


def counter():
    return QuotaUsage.objects.get()


class TestReserving:
    def test_what_a_call_used_is_counted(self):
        assert run().ok
        assert (counter().spent, counter().reserved) == (20, 0)
        assert not QuotaReservation.objects.exists()

    async def test_it_holds_for_async_runs(self):
        for ok in (True, True, True, False):
            done = await Desk().arun("hi", provider=ScriptedProvider([ANSWER]))
            assert done.ok is ok
        assert done.budget.value == 60

    def test_it_is_reserved_while_the_model_is_asked(self):
        seen = []

        async def look(request):
            row = await QuotaUsage.objects.aget()
            seen.append((row.spent, row.reserved))
            return ANSWER

        assert run([look]).ok
        assert seen == [(0, EXPECTED)]

    def test_a_run_that_does_not_fit_stops_before_it_asks(self):
        agent = with_quotas(Quota(tokens=100, per="site", every="day"))
        provider = ScriptedProvider([ANSWER])
        events = list(agent().stream("hi", provider=provider))
        done = events[-1].result
        assert (done.status, done.stop_reason) == ("stopped", "budget_exceeded")
        assert done.budget.describe() == {
            "limit": "tokens",
            "value": 0,
            "max": 100,
            "scope": "site",
        }
        assert "may use 101" in done.error
        assert [event.scope for event in events if isinstance(event, BudgetExceeded)] == ["site"]
        assert provider.calls == []

    def test_a_call_that_failed_gives_back_what_was_reserved(self, settings):
        settings.MLANGO = {**settings.MLANGO, "LLM_MAX_RETRIES": 0}
        with pytest.raises(ProviderUnavailable):
            run([ProviderUnavailable("down")])
        assert (counter().spent, counter().reserved) == (0, 0)

    def test_an_attempt_more_reserves_nothing_more(self, settings):
        settings.MLANGO = {**settings.MLANGO, "LLM_RETRY_BASE_DELAY": 0}
        assert run([ProviderUnavailable("down"), ANSWER]).ok
        assert counter().spent == 20

    def test_a_stopped_run_gives_back_what_was_reserved(self):
        stream = Desk().stream("hi", provider=ScriptedProvider(["one two"]))
        for event in stream:
            if event.kind == "text_chunk":
                break
        stream.close()
        assert counter().reserved == 0

    def test_who_is_cancelled_while_he_reserves_gives_it_back(self, monkeypatch):
        reserve, begun, go_on = QuotaUsageQuerySet.reserve, threading.Event(), threading.Event()

        def reserve_late(*args):
            begun.set()
            go_on.wait(10)
            return reserve(*args)

        async def cancelled():
            task = asyncio.ensure_future(Desk().arun("hi", provider=ScriptedProvider([ANSWER])))
            await asyncio.to_thread(begun.wait, 10)
            task.cancel()
            await asyncio.sleep(0)
            go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await task

        monkeypatch.setattr(QuotaUsageQuerySet, "reserve", reserve_late)
        asyncio.run(cancelled())

        assert (counter().spent, counter().reserved) == (0, 0)

    def test_each_step_is_counted_before_its_tools_run(self):
        seen = []

        @tool
        def look() -> str:
            """Look."""
            seen.append((counter().spent, counter().reserved))
            return "seen"

        agent = with_quotas(Quota(tokens=1000, per="site", every="day"), tools=[look])
        use = Completion(tool_calls=[ToolCall("", "look", {})], usage=Usage(5, 5))
        assert run([use, ANSWER], agent).ok
        assert seen == [(10, 0)]
        assert counter().spent == 30

    def test_what_a_dead_process_had_reserved_lapses(self):
        assert run().ok
        row = counter()
        row.reserved = 100
        row.save()
        late = timezone.now() - timedelta(seconds=1)
        QuotaReservation.objects.create(counter=row, units=100, expires_at=late)
        assert run().ok
        assert (counter().spent, counter().reserved) == (40, 0)

    def test_what_lapses_while_others_are_given_back_is_given_back_later(self, monkeypatch):
        assert run().ok
        row, rows = counter(), QuotaReservation.objects
        row.reserved = 110
        row.save()
        late = timezone.now() - timedelta(seconds=1)
        rows.create(counter=row, units=100, expires_at=late)
        rows.create(counter=row, units=10, expires_at=late + timedelta(minutes=1))
        delete = QuerySet.delete

        def delete_late(found):
            rows.update(expires_at=late)
            return delete(found)

        monkeypatch.setattr(QuerySet, "delete", delete_late)
        assert rows.release_lapsed() == 1
        assert counter().reserved == 10
        assert rows.release_lapsed() == 1
        assert counter().reserved == 0

    def test_what_is_on_its_way_does_not_lapse(self):
        assert run().ok
        row = counter()
        row.reserved = 100
        row.save()
        soon = timezone.now() + timedelta(minutes=1)
        QuotaReservation.objects.create(counter=row, units=100, expires_at=soon)
        assert run().stop_reason == "budget_exceeded"

    def test_of_several_quotas_all_or_none_are_reserved(self):
        wide = Quota(tokens=1000, per="site", every="day")
        narrow = Quota(tokens=50, per="user", every="day")
        assert run(agent=with_quotas(wide, narrow)).budget.scope == "user"
        assert all(row.reserved == 0 for row in QuotaUsage.objects.all())

    def test_quotas_of_one_counter_count_once_by_the_lower(self):
        both = [Quota(tokens=limit, per="site", every="day") for limit in (1000, 110)]
        agent = with_quotas(*both)
        assert run(agent=agent).ok
        assert counter().spent == 20
        assert run(agent=agent).budget.max == 110


class Held(Provider):
    """Answers when it is let."""

    name = "held"
    offline = True

    def __init__(self):
        self.let = threading.Event()
        self.asked = []

    def complete(self, **request):
        self.asked.append(1)
        self.let.wait(60)
        return Completion("Done.", usage=Usage(EXPECTED, 0))


def test_of_sixteen_at_once_only_those_pass_for_whom_there_is_room():
    agent = with_quotas(Quota(tokens=3 * EXPECTED + 50, per="site", every="month"))
    provider, ended = Held(), queue.Queue()
    barrier = threading.Barrier(16)

    def work():
        try:
            barrier.wait()
            ended.put(agent().run("hi", provider=provider).stop_reason)
        except Exception as error:  # noqa: BLE001 - told by the assertions below
            ended.put(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    refused = [ended.get(timeout=60) for _ in range(13)]
    provider.let.set()
    passed = [ended.get(timeout=60) for _ in range(3)]
    for thread in threads:
        thread.join()
    assert set(refused) == {"budget_exceeded"}
    assert passed == ["end_turn"] * 3
    assert len(provider.asked) == 3
    assert (counter().spent, counter().reserved) == (3 * EXPECTED, 0)


class TestWhoIsCounted:
    def test_each_user_has_a_counter(self, user):
        run(user=user)
        run()
        assert set(QuotaUsage.objects.values_list("subject", "spent")) == {
            (str(user.pk), 20),
            ("", 20),
        }

    def test_each_agent_has_a_counter(self):
        quota = Quota(tokens=150, per="agent", every="day")
        for label in ("First", "Second"):
            run(agent=with_quotas(quota, label=label))
        subjects = set(QuotaUsage.objects.values_list("subject", flat=True))
        assert subjects == {"control.First", "control.Second"}

    def test_each_tenant_has_a_counter(self, settings):
        path = "tests.control.test_quotas.tenant_of"
        settings.MLANGO = {**settings.MLANGO, "TENANT": path}
        agent = with_quotas(Quota(tokens=150, per="tenant", every="day"))
        run(agent=agent, state={"tenant": "acme"})
        assert counter().subject == "acme"

    def test_without_a_function_there_are_no_tenants(self):
        agent = with_quotas(Quota(tokens=150, per="tenant", every="day"))
        with pytest.raises(RunError, match="TENANT"):
            run(agent=agent)

    def test_the_whole_site_has_one_counter(self, user):
        quota = Quota(tokens=1000, per="site", every="day")
        run(agent=with_quotas(quota, label="First"))
        run(agent=with_quotas(quota, label="Second"), user=user)
        assert counter().spent == 40

    def test_a_subagent_spends_of_the_quotas_of_its_lead_once(self):
        quota = Quota(tokens=1000, per="site", every="day")
        helper = with_quotas(quota, label="Helper")
        lead = with_quotas(quota, label="Lead", subagents=[helper])
        use = Completion(
            tool_calls=[ToolCall("", "helper", {"message": "hi"})], usage=Usage(10, 10)
        )
        done = run([use, ANSWER, ANSWER], lead)
        assert done.ok
        assert done.tool_results[0].content == "Done."
        assert counter().spent == 60

    def test_a_subagent_without_quotas_is_kept_to_those_of_its_lead(self):
        helper = with_quotas(label="Helper")
        lead = with_quotas(
            Quota(tokens=EXPECTED + 150, per="agent", every="day"),
            label="Lead",
            subagents=[helper],
        )
        use = Completion(
            tool_calls=[ToolCall("", "helper", {"message": "hi"})], usage=Usage(200, 10)
        )
        done = run([use, ANSWER, ANSWER], lead)
        assert done.tool_results[0].is_error
        assert counter().subject == "control.Lead"


def tenant_of(ctx):
    return ctx.state["tenant"]


class Cheap(Priced):
    def __init__(self):
        super().__init__([ProviderUnavailable("down")])


class Dear(Priced):
    def __init__(self):
        super().__init__([ANSWER])


class TestMoney:
    @pytest.fixture(autouse=True)
    def _prices(self, settings):
        prices = {"openai/known": {"input": 0, "output": 10_000}}
        settings.MLANGO = {**settings.MLANGO, "PRICES": prices}

    @staticmethod
    def run(model, quota, answer=ANSWER):
        provider = Priced([answer])
        provider.name = "openai"
        return with_quotas(quota)().run("hi", provider=provider, model=model)

    def test_dollars_are_counted_exactly(self):
        assert self.run("known", Quota(usd=2, per="site", every="day")).cost == Decimal("0.1")
        assert counter().spent == 10**8
        assert counter().reserved == 0

    def test_the_longest_answer_must_fit(self):
        done = self.run("known", Quota(usd=Decimal("0.99"), per="site", every="day"))
        assert (done.budget.limit, done.budget.max) == ("usd", Decimal("0.99"))
        assert self.run("known", Quota(usd=1, per="site", every="day")).ok

    def test_the_longest_answer_of_a_dearer_model_to_fall_back_on_must_fit(self, settings):
        prices = {
            "cheap/one": {"input": 0, "output": 10_000},
            "dear/two": {"input": 0, "output": 90_000},
        }
        aliases = {name: f"{__name__}.{name.title()}" for name in ("cheap", "dear")}
        settings.MLANGO = {"PRICES": prices, "PROVIDERS": aliases}

        def fallen(usd):
            quota = Quota(usd=usd, per="site", every="day")
            models = {"model": "cheap/one", "fallback_models": ["dear/two"]}
            return with_quotas(quota, retry=Retry(max_retries=0), **models)().run("hi")

        assert fallen(Decimal("8.99")).budget.limit == "usd"
        assert fallen(9).cost == Decimal("0.9")

    def test_a_model_of_unknown_price_is_refused(self):
        with pytest.raises(RunError, match="openai/unknown is unknown"):
            self.run("unknown", Quota(usd=1, per="site", every="day"))
        assert not QuotaUsage.objects.exists()

    def test_a_model_of_unknown_price_may_be_allowed(self):
        quota = Quota(usd=1, per="site", every="day", allow_unpriced=True)
        assert self.run("unknown", quota).ok


class TestPeriods:
    now = datetime(2026, 3, 1, 11, 30, 5, 7, tzinfo=UTC)  # a Sunday; Monday in Auckland

    @pytest.fixture(autouse=True)
    def _with_time_zones(self, settings):
        settings.USE_TZ = True

    @pytest.mark.parametrize(
        ("every", "start"),
        [
            ("hour", "2026-03-02T00:00:00+13:00"),
            ("day", "2026-03-02T00:00:00+13:00"),
            ("week", "2026-03-02T00:00:00+13:00"),
            ("month", "2026-03-01T00:00:00+13:00"),
        ],
    )
    def test_they_begin_by_the_clocks_of_the_site(self, settings, every, start):
        settings.TIME_ZONE = "Pacific/Auckland"
        with timezone.override("America/New_York"):  # of the user, which does not count
            assert period_start(every, self.now) == datetime.fromisoformat(start)

    def test_a_day_is_a_day_when_the_clocks_change(self, settings):
        settings.TIME_ZONE = "Europe/Berlin"
        noon = datetime(2026, 3, 29, 10, tzinfo=UTC)
        assert period_start("day", noon).isoformat() == "2026-03-29T00:00:00+01:00"

    def test_the_two_hours_of_one_name_are_two(self, settings):
        settings.TIME_ZONE = "Europe/Berlin"
        first = period_start("hour", datetime(2026, 10, 25, 0, 30, tzinfo=UTC))
        second = period_start("hour", datetime(2026, 10, 25, 1, 30, tzinfo=UTC))
        assert second.astimezone(UTC) - first.astimezone(UTC) == timedelta(hours=1)

    def test_without_time_zones_it_is_local_time(self, settings):
        settings.USE_TZ = False
        assert period_start("week", datetime(2026, 3, 1, 5)) == datetime(2026, 2, 23)

    def test_a_new_period_has_a_new_counter(self):
        assert run().ok
        QuotaUsage.objects.update(starts_at=timezone.now() - timedelta(days=2), spent=150)
        assert run().ok


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({}, "either usd or tokens"),
        ({"usd": 1, "tokens": 1}, "either usd or tokens"),
        ({"usd": 0}, "usd of .* not 0"),
        ({"usd": Decimal("NaN")}, "usd of .* not Decimal"),
        ({"usd": math.inf}, "usd of .* not inf"),
        ({"tokens": 1.5}, "tokens of .* not 1.5"),
        ({"usd": True}, "usd of .* not True"),
        ({"usd": 1, "per": "planet"}, "per of .* 'site', not 'planet'"),
        ({"usd": 1, "every": "year"}, "every of .* not 'year'"),
    ],
)
def test_a_wrong_quota_is_refused(wrong, words):
    with pytest.raises(Misconfigured, match=words):
        Quota(**{"per": "user", "every": "day", **wrong})


def test_quotas_of_another_kind_are_refused():
    with pytest.raises(Misconfigured, match="a list of Quota"):
        with_quotas({"usd": 1})


class TestWhatIsAskedBeside:
    """A judge's call and a summary's are reserved and counted as the run's own."""

    USED = Completion("ALLOW", usage=Usage(50, 5))

    def judged(self, on, tokens=100_000, turns=(ANSWER,), verdict=USED, **options):
        judge = ScriptedProvider([verdict] * 3)
        agent = with_quotas(
            Quota(tokens=tokens, per="site", every="day"),
            guardrails=[LLMJudge("Be kind.", provider=judge, on=on)],
            **options,
        )
        return run(turns, agent), judge

    @pytest.mark.parametrize("on", ["input", "output"])
    def test_what_a_judge_used_is_counted_once(self, on):
        done, _ = self.judged(on)
        assert done.ok
        assert done.usage.total_tokens == 75
        assert (counter().spent, counter().reserved) == (75, 0)

    def test_a_judge_of_a_tool_call_is_counted_once(self):
        @tool
        def look() -> str:
            """Look."""
            return "seen"

        use = Completion(tool_calls=[ToolCall("", "look", {})], usage=Usage(5, 5))
        done, _ = self.judged("tools", turns=(use, ANSWER), tools=[look])
        assert done.ok
        assert counter().spent == done.usage.total_tokens == 85

    def test_it_is_reserved_while_the_judge_is_asked(self):
        seen = []

        async def look(request):
            seen.append((await QuotaUsage.objects.aget()).reserved)
            return self.USED

        self.judged("output", verdict=look)
        assert seen[0] > 1024  # the longest answer of a judge

    def test_a_judge_for_whom_there_is_no_room_is_not_asked(self):
        done, judge = self.judged("input", tokens=500)
        assert done.stop_reason == "budget_exceeded"
        assert done.budget.scope == "site"
        assert judge.calls == []

    def test_a_judge_before_the_first_call_is_reserved_too(self):
        class Early(LLMJudge):
            parallel = False

        judge = ScriptedProvider([self.USED])
        quota = Quota(tokens=500, per="site", every="day")
        agent = with_quotas(quota, guardrails=[Early("Be kind.", provider=judge, on="input")])
        assert run(agent=agent).stop_reason == "budget_exceeded"
        assert judge.calls == []

    async def test_it_holds_for_async_runs(self):
        judge = LLMJudge("Be kind.", provider=ScriptedProvider([self.USED]), on="output")
        quota = Quota(tokens=100_000, per="site", every="day")
        agent = with_quotas(quota, guardrails=[judge])
        done = await agent().arun("hi", provider=ScriptedProvider([ANSWER]))
        assert done.usage.total_tokens == 75

    def test_a_summary_is_counted_once(self):
        compaction = Compaction(strategy="summarise", window=400, keep=50)
        summary = Completion("Short.", usage=Usage(100, 11))

        @tool
        def read() -> str:
            """Read."""
            return "x" * 2000

        use = Completion(tool_calls=[ToolCall("", "read", {})], usage=Usage(0, 5))
        agent = with_quotas(
            Quota(tokens=100_000, per="site", every="day"), compaction=compaction, tools=[read]
        )
        done = run((use, summary, ANSWER), agent)
        assert done.text == "Done."
        assert done.usage.total_tokens == counter().spent == 5 + 111 + 20

    def test_a_judge_of_unknown_price_is_refused_under_a_limit_of_cost(self, settings):
        prices = {"scripted/known": {"input": 1, "output": 1}}
        settings.MLANGO = {**settings.MLANGO, "PRICES": prices}
        unknown = Priced([self.USED])
        unknown.name = "other"
        judge = LLMJudge("x", model="unknown", provider=unknown, on="output")
        agent, limits = with_quotas(guardrails=[judge]), Limits(max_cost_usd=1)
        with pytest.raises(RunError, match="other/unknown is unknown, so its cost cannot"):
            agent().run("hi", provider=Priced([ANSWER]), model="known", limits=limits)
        assert unknown.calls == []

    def test_a_judge_is_not_asked_past_the_limits_of_the_run(self):
        judge = ScriptedProvider([self.USED] * 3)

        @tool
        def look() -> str:
            """Look."""
            return "seen"

        use = Completion("So.", tool_calls=[ToolCall("", "look", {})], usage=Usage(500, 5))
        guardrail = LLMJudge("x", provider=judge, on=("tools",))
        agent = with_quotas(guardrails=[guardrail], tools=[look])
        done = run((use, ANSWER), agent, limits=Limits(max_tokens=400))
        assert done.stop_reason == "budget_exceeded"
        assert judge.calls == []


def start_a_run_that_hangs():
    """Return a process that has reserved for a model call and waits for the answer."""
    database = connections["default"].settings_dict
    environ = {**os.environ, "QUOTA_DATABASE": str(database["NAME"])}
    command = [sys.executable, "-m", "tests.control.hanging_process"]
    process = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline().strip() == "asked"
    return process


def test_what_a_killed_process_had_reserved_is_given_back():
    process = start_a_run_that_hangs()
    with process:
        process.kill()
    held = QuotaReservation.objects.get()
    assert counter().reserved == held.units > 0
    assert held.expires_at <= timezone.now() + timedelta(seconds=600 + 60)

    # Nobody has to ask for it first: a sweep gives it back when its time is over.
    assert QuotaReservation.objects.release_lapsed() == 0
    QuotaReservation.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert QuotaReservation.objects.release_lapsed() == 1
    assert (counter().spent, counter().reserved) == (0, 0)


def test_reservations_lapse_by_the_clock_of_the_database(monkeypatch):
    ahead = timezone.now() + timedelta(hours=5)
    monkeypatch.setattr(timezone, "now", lambda: ahead)

    stream = Desk().stream("hi", provider=ScriptedProvider(["one two"]))
    with stream:
        next(event for event in stream if event.kind == "text_chunk")
        held = QuotaReservation.objects.filter(expires_at__lt=Now() + timedelta(hours=1))
        assert held.exists()


def test_counters_of_periods_long_over_are_deleted():
    assert run().ok
    row = counter()
    old = timezone.now() - timedelta(days=100)
    QuotaUsage.objects.create(per="site", unit="tokens", every="day", starts_at=old, spent=5)
    held = QuotaUsage.objects.create(per="agent", unit="tokens", every="day", starts_at=old)
    QuotaReservation.objects.create(
        counter=held, units=1, expires_at=timezone.now() + timedelta(hours=1)
    )

    assert QuotaUsage.objects.delete_before(timezone.now() - timedelta(days=90)) == 1
    assert set(QuotaUsage.objects.all()) == {row, held}


def test_the_period_that_goes_on_is_never_deleted():
    month = period_start("month", timezone.now())
    QuotaUsage.objects.create(per="site", unit="tokens", every="month", starts_at=month)
    assert QuotaUsage.objects.delete_before(timezone.now() + timedelta(days=1)) == 0
