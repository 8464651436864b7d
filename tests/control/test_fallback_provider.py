"""FallbackProvider: a provider that stands for several, in a run and by itself."""

from decimal import Decimal

import pytest

from mlango.agents import Agent, LLMJudge, RecordingProvider
from mlango.agents.providers import (
    Completion,
    FallbackProvider,
    ScriptedProvider,
    Usage,
    get_provider,
)
from mlango.agents.resolve import run_for
from mlango.core.journal import ListJournal
from mlango.exceptions import ContentFiltered, Misconfigured, ProviderUnavailable
from tests.control.test_fallback import Desk as Guided
from tests.control.test_fallback import Script, asked, bought, down, scripts, use
from tests.helpers import finish

__all__ = ["scripts"]  # a fixture

SAFE = "mlango.agents.providers.FallbackProvider"


class Desk(Guided):
    class Meta:
        model = "safe/a"
        fallback_models = []


@pytest.fixture(autouse=True)
def _safe(scripts, settings):
    """Name the provider, and keep the scripts that the other fixture has filled."""
    safe = {"BACKEND": SAFE, "OPTIONS": {"providers": ["one", "two/b", "three/c"]}}
    providers = {**settings.MLANGO["PROVIDERS"], "safe": safe}
    settings.MLANGO = {**settings.MLANGO, "PROVIDERS": providers}
    scripts.update({alias: get_provider(alias) for alias in scripts})
    for alias, script in scripts.items():
        script.turns = [Completion(alias, usage=Usage(1, 1))] * 3


class TestInARun:
    def test_the_next_is_asked_when_the_retries_are_over(self, scripts):
        scripts["one"].turns = [down, down]
        events = list(Desk().stream("hi"))
        assert [event.kind for event in events][1:6] == [
            "thinking",
            "retrying",
            "thinking",
            "fell_back",
            "thinking",
        ]
        assert (events[4].from_model, events[4].to_model) == ("one/a", "two/b")
        assert events[-1].output == "two"
        assert asked(scripts) == [2, 1, 0]

    async def test_it_holds_for_async_runs(self, scripts):
        scripts["one"].turns = [down, down]
        assert (await Desk().arun("hi")).text == "two"

    def test_an_alias_is_asked_for_the_model_of_the_run(self, scripts):
        Desk().run("hi")
        assert scripts["one"].last_call.model == "a"

    def test_nothing_is_tried_once_something_was_told(self, scripts):
        scripts["one"].turns = [{"text": "So far", "error": down}]
        events = list(Desk().stream("hi"))
        assert events[-1].kind == "failed"
        assert asked(scripts) == [1, 0, 0]

    def test_after_an_effect_no_other_is_asked(self, scripts):
        failed = ProviderUnavailable("down")  # notes stay on it
        scripts["one"].turns = [use("buy"), failed, failed]
        with pytest.raises(ProviderUnavailable) as caught:
            Desk().run("hi")
        assert "had an effect" in caught.value.__notes__[0]
        assert bought == [1]
        assert asked(scripts) == [3, 0, 0]

    def test_the_trace_tells_each_attempt_and_the_one_that_answered_is_paid(self, scripts):
        scripts["one"].turns = [down, down]
        run = run_for(Desk(), "hi", {})
        run.journal = ListJournal()
        finish(run)
        told = [(e.name, e.attributes["provider"], e.cost) for e in run.journal.entries]
        assert told == [("a", "one", None), ("a", "one", None), ("b", "two", Decimal(2))]
        assert run.cost == Decimal(2)

    def test_it_may_be_given_to_one_run(self, scripts):
        provider = FallbackProvider([ScriptedProvider([down, down]), "two/b"])
        assert Desk().run("hi", provider=provider).text == "two"

    def test_the_models_of_the_agent_follow_it(self, scripts):
        class Wide(Desk):
            class Meta:
                provider = FallbackProvider(["one/a", "two/b"])
                fallback_models = ["three/c"]

        scripts["one"].turns = scripts["two"].turns = [down, down, down, down]
        assert Wide().run("hi").text == "three"

    def test_a_judge_falls_back_too(self, scripts):
        class Judged(Agent):
            class Meta:
                app_label = "control"
                model = "three/c"
                tracing = False
                guardrails = [LLMJudge("Be kind.", model="safe/a", on="input")]

        scripts["one"].turns = [down, down]
        scripts["two"].turns = ["ALLOW"]
        assert Judged().run("hi").text == "three"


class TestByItself:
    """Asked outside of a run's conversation, as a recording does."""

    async def ask(self, *members, messages=({"role": "user", "content": "hi"},)):
        provider = FallbackProvider(members)
        return await provider.acomplete(model="m", messages=list(messages))

    async def test_the_next_is_asked(self):
        answer = await self.ask(ScriptedProvider([down]), ScriptedProvider(["second"]))
        assert answer.text == "second"

    async def test_the_last_error_counts(self):
        with pytest.raises(ProviderUnavailable, match="two"):
            await self.ask(
                ScriptedProvider([down]), ScriptedProvider([ProviderUnavailable("two")])
            )

    @pytest.mark.parametrize("turn", [ContentFiltered("no"), {"text": "So", "error": down}])
    async def test_what_another_would_not_help_ends_it(self, turn):
        other = ScriptedProvider(["second"])
        with pytest.raises(type(turn) if isinstance(turn, Exception) else ProviderUnavailable):
            await self.ask(ScriptedProvider([turn]), other)
        assert other.calls == []

    async def test_after_a_tool_call_no_other_is_asked(self):
        failed, other = ProviderUnavailable("down"), ScriptedProvider(["second"])
        turn = [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "", "tool_calls": []},
            {"role": "tool", "tool_call_id": "1", "content": "bought"},
        ]
        with pytest.raises(ProviderUnavailable) as caught:
            await self.ask(ScriptedProvider([failed]), other, messages=turn)
        assert "may have had an effect" in caught.value.__notes__[0]
        assert other.calls == []

    def test_a_recording_holds_the_answer(self, scripts, tmp_path):
        scripts["one"].turns = [down, down]
        provider = RecordingProvider("safe", tmp_path / "run.jsonl")
        assert Desk().run("hi", model="a", provider=provider).text == "two"

    def test_it_is_free_if_all_are(self):
        assert FallbackProvider([ScriptedProvider()]).is_free
        assert not FallbackProvider([ScriptedProvider(), Script("x")]).is_free

    async def test_all_are_closed(self):
        closed = []

        class Closing(ScriptedProvider):
            async def aclose(self):
                closed.append(self)

        await FallbackProvider([Closing(), Closing()]).aclose()
        assert len(closed) == 2


class TestMistakes:
    def test_it_takes_at_least_one(self):
        with pytest.raises(Misconfigured, match="at least one"):
            FallbackProvider([])

    def test_it_takes_providers(self):
        with pytest.raises(Misconfigured, match="not 7"):
            FallbackProvider(["one", 7])

    def test_an_unknown_member_is_named(self):
        with pytest.raises(Misconfigured, match="no provider 'oen'"):
            Desk().run("hi", provider=FallbackProvider(["oen"]), model="a")

    def test_it_does_not_fall_back_to_itself(self):
        with pytest.raises(Misconfigured, match="'safe'"):
            Desk().run("hi", provider=FallbackProvider(["safe", "one"]), model="a")
