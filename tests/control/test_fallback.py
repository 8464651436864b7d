"""Which model is asked when the agent's own one fails."""

from decimal import Decimal

import pytest

from mlango.agents import Agent, FellBack, Limits, TextChunk, Thinking, tool
from mlango.agents.providers import Completion, ScriptedProvider, ToolCall, Usage, get_provider
from mlango.agents.resolve import run_for
from mlango.core.journal import ListJournal
from mlango.exceptions import (
    AuthenticationFailed,
    ContentFiltered,
    ContextLengthExceeded,
    InvalidRequest,
    Misconfigured,
    ProviderError,
    ProviderUnavailable,
    RateLimited,
    RunError,
)
from tests.helpers import finish

HERE = "tests.control.test_fallback.Script"
down = ProviderUnavailable("down")
bought = []


class Script(ScriptedProvider):
    """One of the providers of a site."""

    offline = False

    def __init__(self, alias):
        super().__init__()
        self.name = alias


@tool(effect="read")
def look() -> str:
    """Look."""
    return "seen"


@tool(effect="idempotent")
def write_down() -> str:
    """Write down."""
    return "written"


@tool
def buy() -> str:
    """Buy."""
    bought.append(1)
    return "bought"


class Desk(Agent):
    class Meta:
        app_label = "control"
        model = "one/a"
        fallback_models = ["two/b", "three/c"]
        tools = [look, write_down, buy]
        tracing = False


@pytest.fixture(autouse=True)
def scripts(settings):
    """The providers of the site by alias; each answers with its name."""
    bought.clear()
    settings.MLANGO = {
        **settings.MLANGO,
        "PROVIDERS": {
            alias: {"BACKEND": HERE, "OPTIONS": {"alias": alias}}
            for alias in ("one", "two", "three")
        },
        "PRICES": {
            "one/a": {"input": 1_000_000, "output": 0},
            "two/b": {"input": 2_000_000, "output": 0},
            "three/c": {"input": 3_000_000, "output": 0},
        },
        "LLM_MAX_RETRIES": 1,
        "LLM_RETRY_BASE_DELAY": 0,
    }
    found = {alias: get_provider(alias) for alias in ("one", "two", "three")}
    for alias, script in found.items():
        script.turns = [Completion(alias, usage=Usage(1, 1))] * 3
    return found


def use(name):
    return Completion(tool_calls=[ToolCall("", name, {})], usage=Usage(1, 1))


def asked(scripts):
    return [len(script.calls) for script in scripts.values()]


def test_another_model_is_asked_when_the_retries_are_over(scripts):
    scripts["one"].turns = [down, down]
    events = list(Desk().stream("hi"))
    assert [event.kind for event in events][1:] == [
        "thinking",
        "retrying",
        "thinking",
        "fell_back",
        "thinking",
        "text_chunk",
        "step_finished",
        "finished",
    ]
    (fell_back,) = (event for event in events if isinstance(event, FellBack))
    assert (fell_back.from_model, fell_back.to_model) == ("one/a", "two/b")
    assert (fell_back.error, fell_back.exception_type) == ("down", "ProviderUnavailable")
    assert [event.model for event in events if isinstance(event, Thinking)] == ["a", "a", "b"]
    assert scripts["two"].last_call.model == "b"
    assert events[-1].output == "two"


async def test_it_holds_for_async_runs(scripts):
    scripts["one"].turns = [down, down]
    assert (await Desk().arun("hi")).text == "two"


def test_each_model_has_its_own_retries(scripts):
    scripts["one"].turns = [down, down]
    scripts["two"].turns = [down, down]
    assert Desk().run("hi").text == "three"
    assert asked(scripts) == [2, 2, 1]


@pytest.mark.parametrize(
    "error",
    [
        AuthenticationFailed("no key"),
        ContextLengthExceeded("too long"),
        InvalidRequest("no such model", status=404),
        RateLimited("no credit", status=402, retryable=False),
    ],
)
def test_what_is_the_models_own_fault_goes_to_the_next_at_once(scripts, error):
    scripts["one"].turns = [error]
    assert Desk().run("hi").text == "two"
    assert asked(scripts) == [1, 1, 0]


@pytest.mark.parametrize(
    "error", [ContentFiltered("no"), InvalidRequest("bad", status=400), ProviderError("bug")]
)
def test_what_another_model_would_not_help_fails_the_run(scripts, error):
    scripts["one"].turns = [error]
    with pytest.raises(type(error)):
        Desk().run("hi")
    assert asked(scripts) == [1, 0, 0]


def test_a_refusal_is_an_answer(scripts):
    scripts["one"].turns = [Completion("", stop_reason="refusal", refusal="No.")]
    assert Desk().run("hi").stop_reason == "refusal"
    assert asked(scripts) == [1, 0, 0]


def test_when_all_fail_the_last_error_counts(scripts):
    for alias, script in scripts.items():
        script.turns = [ProviderUnavailable(f"{alias} is down")] * 2
    with pytest.raises(ProviderUnavailable, match="three is down"):
        Desk().run("hi")


def test_every_call_begins_with_the_agents_own_model(scripts):
    scripts["one"].turns = [down, down, "back again"]
    scripts["two"].turns = [use("look")]
    assert Desk().run("hi").text == "back again"


def test_nothing_is_tried_once_something_was_told(scripts):
    scripts["one"].turns = [{"text": "So far", "error": down}]
    events = list(Desk().stream("hi"))
    assert "".join(event.text for event in events if isinstance(event, TextChunk)) == "So far"
    assert events[-1].kind == "failed"
    assert asked(scripts) == [1, 0, 0]


class TestEffects:
    @pytest.mark.parametrize("name", ["look", "write_down"])
    def test_tools_that_may_be_called_again_do_not_matter(self, scripts, name):
        scripts["one"].turns = [use(name), down, down]
        assert Desk().run("hi").text == "two"

    def test_after_an_effect_no_other_model_is_asked(self, scripts):
        scripts["one"].turns = [use("buy"), down, down]
        with pytest.raises(ProviderUnavailable) as caught:
            Desk().run("hi")
        assert "had an effect" in caught.value.__notes__[0]
        assert caught.value.run.tools_used == ["buy"]
        assert bought == [1]
        assert asked(scripts) == [3, 0, 0]

    def test_the_same_model_is_tried_again_all_the_same(self, scripts):
        scripts["one"].turns = [use("buy"), down, "done"]
        assert Desk().run("hi").text == "done"
        assert bought == [1]

    def test_a_call_that_never_ran_had_no_effect(self, scripts):
        wrong = Completion(tool_calls=[ToolCall("", "buy", {"how": "many"})])
        unknown = Completion(tool_calls=[ToolCall("", "sell", {})])
        scripts["one"].turns = [wrong, unknown, down, down]
        assert Desk().run("hi").text == "two"
        assert bought == []


class TestMoney:
    def test_the_model_that_answered_is_paid(self, scripts):
        scripts["one"].turns = [down, down]
        assert Desk().run("hi").cost == Decimal(2)

    def test_the_trace_tells_each_attempt_with_its_model(self, scripts):
        scripts["one"].turns = [down, down]
        run = run_for(Desk(), "hi", {})
        run.journal = ListJournal()
        finish(run)
        told = [(e.name, e.attributes["provider"], e.cost) for e in run.journal.entries]
        assert told == [("a", "one", None), ("a", "one", None), ("b", "two", Decimal(2))]
        assert run.messages[-1]["content"] == "two"

    def test_a_limit_of_cost_wants_to_know_every_price(self, settings):
        prices = dict(settings.MLANGO["PRICES"])
        del prices["three/c"]
        settings.MLANGO = {**settings.MLANGO, "PRICES": prices}
        with pytest.raises(RunError, match="three/c is unknown"):
            Desk().run("hi", limits=Limits(max_cost_usd=10))


def test_what_a_provider_wants_echoed_is_not_sent_to_another(scripts):
    native = {"model": "a", "message": {"signature": "s"}, "tool_calls": []}
    first = Completion(tool_calls=[ToolCall("", "look", {})], raw_content=native)
    scripts["one"].turns = [first, down, down]
    Desk().run("hi")
    turn = next(m for m in scripts["two"].last_call.messages if m["role"] == "assistant")
    assert turn["provider"] == "one"  # by which a wire knows that it is another's


def test_a_run_with_a_provider_of_its_own_asks_no_other(scripts):
    with pytest.raises(ProviderUnavailable):
        Desk().run("hi", provider=ScriptedProvider([down, down]))
    assert asked(scripts) == [0, 0, 0]


def test_an_unknown_model_is_told_before_anyone_is_asked(scripts, settings):
    settings.MLANGO = {**settings.MLANGO, "MODELS": {"cheap": 7}}

    class Wrong(Desk):
        class Meta:
            fallback_models = ["cheap"]

    with pytest.raises(Misconfigured, match="cheap"):
        Wrong().run("hi")
    assert asked(scripts) == [0, 0, 0]


def test_fallback_models_are_a_list():
    with pytest.raises(Misconfigured, match="a list of models"):

        class Wrong(Agent):
            class Meta:
                fallback_models = "two/b"
