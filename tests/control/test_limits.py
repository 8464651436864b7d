"""Limits of a run and of a session: what stops, what is kept, and what goes on."""

import math
from decimal import Decimal

import pytest

from mlango.agents import Agent, BudgetExceeded, Limits, ToolFinished, tool
from mlango.agents.providers import Completion, Provider, ScriptedProvider, ToolCall, Usage
from mlango.core.messages import open_calls
from mlango.exceptions import Misconfigured, Misused, OverBudget, RunError

called = []


@tool
async def look_up(order: int) -> str:
    """Look an order up."""
    called.append(order)
    return f"order {order}"


class Desk(Agent):
    class Meta:
        app_label = "control"
        tools = [look_up]
        tracing = False
        max_steps = None


@pytest.fixture(autouse=True)
def _no_calls():
    called.clear()


def step(*orders, usage=None):
    calls = [ToolCall("", "look_up", {"order": order}) for order in orders]
    return Completion(tool_calls=calls, usage=usage or Usage(100, 10))


def run(turns, agent=Desk, **options):
    return agent().run("hi", provider=ScriptedProvider(turns), **options)


def answer(usage=None):
    return Completion("Done.", usage=usage or Usage(100, 10))


@pytest.mark.parametrize(
    ("limits", "name", "value"),
    [
        (Limits(max_tokens=200), "max_tokens", 220),
        (Limits(max_input_tokens=200), "max_input_tokens", 200),
        (Limits(max_output_tokens=15), "max_output_tokens", 20),
        (Limits(max_steps=2), "max_steps", 2),
        (Limits(max_tool_calls=1), "max_tool_calls", 1),
    ],
)
def test_a_limit_stops_the_run_and_says_which(limits, name, value):
    done = run([step(1), step(2), step(3), answer()], limits=limits)
    assert (done.status, done.stop_reason) == ("stopped", "budget_exceeded")
    assert (done.budget.limit, done.budget.value, done.budget.scope) == (name, value, "run")
    assert done.describe()["budget"]["max"] == getattr(limits, name)
    assert open_calls(done.messages) == []


def test_a_call_over_the_limit_does_not_run():
    done = run([step(1), step(2, 3), answer()], limits=Limits(max_tokens=200))
    assert called == [1]
    assert [result.error_type for result in done.tool_results] == ["", "cancelled", "cancelled"]


def test_the_allowed_number_of_calls_is_made():
    done = run([step(1, 2), answer()], limits=Limits(max_tool_calls=2))
    assert called == [1, 2]
    assert done.ok


def test_an_answer_that_just_fits_is_an_answer():
    done = run([answer(Usage(1000, 1000))], limits=Limits(max_tokens=10))
    assert (done.status, done.text, done.budget) == ("finished", "Done.", None)


def test_the_event_is_told_before_the_calls_end():
    provider = ScriptedProvider([step(1), step(2)])
    events = list(Desk().stream("hi", provider=provider, limits=Limits(max_tokens=200)))
    kinds = [type(e).__name__ for e in events if isinstance(e, BudgetExceeded | ToolFinished)]
    assert kinds == ["ToolFinished", "BudgetExceeded", "ToolFinished"]


def test_raise_fails_the_run_and_keeps_its_work():
    with pytest.raises(OverBudget) as caught:
        run([step(1), step(2)], limits=Limits(max_tokens=50, on_exceeded="raise"))
    assert caught.value.run.status == "failed"
    assert caught.value.run.usage.input_tokens == 100


def test_meta_declares_limits_and_a_run_replaces_them():
    class Small(Desk):
        class Meta:
            app_label = "control"
            limits = Limits(max_steps=1)

    assert run([step(1), answer()], Small).stop_reason == "budget_exceeded"
    assert run([step(1), answer()], Small, limits=Limits(max_steps=5)).ok


class Priced(ScriptedProvider):
    offline = False


class TestCost:
    @pytest.fixture(autouse=True)
    def _prices(self, settings):
        prices = {"openai/known": {"input": 1_000_000, "output": 0}}
        settings.MLANGO = {**settings.MLANGO, "PRICES": prices}

    def test_a_run_stops_at_its_dollars(self):
        provider = Priced([step(1), answer()])
        provider.name = "openai"
        done = Desk().run("hi", provider=provider, model="known", limits=Limits(max_cost_usd=50))
        assert done.budget.limit == "max_cost_usd"
        assert done.budget.value == Decimal(100)

    def test_an_unknown_price_is_refused(self):
        provider = Priced([answer()])
        provider.name = "openai"
        with pytest.raises(RunError, match="price of openai/unknown is unknown"):
            Desk().run("hi", provider=provider, model="unknown", limits=Limits(max_cost_usd=1))
        assert provider.calls == []

    def test_an_unknown_price_may_be_allowed(self):
        provider = Priced([answer()])
        provider.name = "openai"
        limits = Limits(max_cost_usd=1, allow_unpriced=True)
        assert Desk().run("hi", provider=provider, model="unknown", limits=limits).ok


async def test_the_time_ends_a_model_call_on_its_way():
    class Slow(Provider):
        name = "slow"
        offline = True

        async def acomplete(self, **request):
            import asyncio

            await asyncio.Event().wait()

    done = await Desk().arun("hi", provider=Slow(), limits=Limits(max_duration=0.01))
    assert (done.status, done.stop_reason) == ("stopped", "budget_exceeded")
    assert done.budget.limit == "max_duration"


@pytest.mark.django_db(transaction=True)
class TestSession:
    class Counted(Agent):
        class Meta:
            app_label = "control"
            tools = [look_up]
            session_limits = Limits(max_tokens=150)

    def test_earlier_runs_count(self):
        assert run([answer()], self.Counted, session_id="a").ok
        assert run([answer()], self.Counted, session_id="a").ok
        done = run([answer()], self.Counted, session_id="a")
        assert (done.budget.limit, done.budget.value) == ("max_tokens", 220)
        assert done.budget.scope == "session"

    def test_another_session_has_its_own(self):
        for _ in range(2):
            run([answer()], self.Counted, session_id="a")
        assert run([answer()], self.Counted, session_id="b").ok

    def test_a_stopped_run_goes_on_with_a_higher_limit(self):
        first = run([step(1), answer()], self.Counted, limits=Limits(max_steps=1))
        assert first.budget.limit == "max_steps"
        provider = ScriptedProvider([answer()])
        done = self.Counted().resume(first, provider=provider, limits=Limits(max_steps=5))
        assert (done.status, done.steps) == ("finished", 2)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tokens": 0},
        {"max_steps": 1.5},
        {"max_cost_usd": -1},
        {"max_duration": True},
        {"max_duration": math.nan},
        {"max_duration": math.inf},
        {"max_cost_usd": Decimal("NaN")},
        {"on_exceeded": "explode"},
    ],
)
def test_a_wrong_limit_is_refused(wrong):
    with pytest.raises(Misconfigured, match=next(iter(wrong))):
        Limits(**wrong)


def test_limits_of_another_kind_are_refused():
    with pytest.raises(Misused, match=r"limits must be Limits"):
        run([answer()], limits={"max_tokens": 5})
