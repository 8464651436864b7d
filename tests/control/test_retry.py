"""How an agent has its failed model calls tried again."""

import pytest

from mlango.agents import Agent, Retry, Retrying, tool
from mlango.agents.defaults import defaults_of
from mlango.agents.providers import ScriptedProvider, ToolCall
from mlango.core.journal import ListJournal
from mlango.core.options import Bounds
from mlango.exceptions import (
    AuthenticationFailed,
    Misconfigured,
    ProviderUnavailable,
    RateLimited,
    RunError,
)
from tests.helpers import finish, new_run

AT_ONCE = Bounds(retry_base_delay=0)
down = ProviderUnavailable("down")


class Patient(Agent):
    class Meta:
        app_label = "control"
        tracing = False
        retry = Retry(max_retries=1, base_delay=0)


def run(turns, **options):
    return Patient().run("hi", provider=ScriptedProvider(turns), **options)


def delays(run):
    return [event.delay for event in run if isinstance(event, Retrying)]


def test_an_agent_says_how_often():
    assert run([down, "ok"]).output == "ok"
    with pytest.raises(ProviderUnavailable):
        run([down, down, "ok"])


async def test_it_holds_for_async_runs():
    provider = ScriptedProvider([down, down, "ok"])
    with pytest.raises(ProviderUnavailable):
        await Patient().arun("hi", provider=provider)
    assert len(provider.calls) == 2


def test_what_is_not_said_is_left_to_the_settings(settings):
    settings.MLANGO = {**settings.MLANGO, "LLM_MAX_RETRIES": 7, "LLM_RETRY_MAX_ELAPSED": 5}
    bounds = defaults_of(Patient).bounds
    assert (bounds.max_retries, bounds.retry_base_delay) == (1, 0)
    assert bounds.retry_max_elapsed == 5
    assert bounds.retry_max_delay == 60


def test_no_wait_is_longer_than_the_longest():
    class Hasty(Patient):
        class Meta:
            retry = Retry(max_retries=2, max_delay=0)

    provider = ScriptedProvider([RateLimited("slow", retry_after=3600), down, "ok"])
    assert delays(Hasty().stream("hi", provider=provider)) == [0, 0]


def test_all_waits_of_a_run_share_one_budget():
    @tool(effect="read")
    def look() -> str:
        """Look."""
        return "seen"

    slow = RateLimited("slow", retry_after=0.01)
    turns = [slow, [ToolCall("", "look", {})], slow, "ok"]
    run = finish(new_run(turns, [look], bounds=Bounds(retry_max_elapsed=0.015)))
    assert (run.status, run.error) == ("failed", "slow")
    assert run.tool_results[0].content == "seen"


def test_each_attempt_is_in_the_trace():
    run = finish(new_run([down, "ok"], journal=ListJournal(), bounds=AT_ONCE))
    assert [entry.error_type for entry in run.journal.entries] == ["ProviderUnavailable", ""]
    assert run.step == 1


def test_an_error_that_stays_is_not_tried_again():
    provider = ScriptedProvider([AuthenticationFailed("no key"), "ok"])
    with pytest.raises(RunError, match="no key"):
        Patient().run("hi", provider=provider)


@pytest.mark.parametrize(
    "wrong",
    [{"max_retries": -1}, {"max_retries": 1.5}, {"base_delay": "1"}, {"max_elapsed": True}],
)
def test_a_wrong_number_is_refused(wrong):
    with pytest.raises(Misconfigured, match=next(iter(wrong))):
        Retry(**wrong)


def test_a_retry_of_another_kind_is_refused():
    with pytest.raises(Misconfigured, match=r"Meta.retry must be Retry\(...\)"):

        class Wrong(Agent):
            class Meta:
                retry = 3
