"""What ``manage.py check`` says of agents."""

import pytest
from django.core.checks import run_checks

from mlango.agents import (
    Agent,
    Approval,
    Compaction,
    Context,
    Cron,
    Durable,
    LLMJudge,
    Quota,
    allow,
    ask,
    deny,
    tool,
)
from mlango.agents.fields import CharField
from mlango.agents.providers.fallback import FallbackProvider
from mlango.checks import TAG
from mlango.runtime.registry import registry


@tool
def search_docs(query: str) -> str:
    """Search."""
    return query


@pytest.fixture
def found(settings, monkeypatch):
    """Return a function that returns what the checks say of an agent with these options."""
    monkeypatch.setattr(registry, "_agents", {})

    def find(mlango=None, bases=(Agent,), attributes=None, **options):
        settings.MLANGO = {"DEFAULT_PROVIDER": "echo", **(mlango or {})}
        meta = type("Meta", (), {"app_label": "desk", **options})
        type("Desk", bases, {"__module__": __name__, "Meta": meta, **(attributes or {})})
        messages = [each for each in run_checks(tags=[TAG]) if each.obj == "desk.Desk"]
        return [(each.id, f"{each.msg} {each.hint or ''}") for each in messages]

    return find


# -- permissions ----------------------------------------------------------------------------


def test_permissions_of_models_are_known_before_they_have_rows(found, django_db_blocker):
    with django_db_blocker.block():
        told = found(
            permission="auth.view_group",
            tools=[
                tool(search_docs.fn, permission="mlango.decide_approval"),
                tool(search_docs.fn, name="other", approval=Approval(permission="auth.add_group")),
            ],
        )

    assert told == []


def test_the_permission_of_an_agent_that_no_model_declares(found):
    [(number, text)] = found(permission="auth.chnge_group")

    assert number == "mlango.W015"
    assert "The agent needs the permission 'auth.chnge_group', which no model declares." in text
    assert "Did you mean 'auth.change_group'?" in text


def test_so_of_its_tools_and_of_those_who_approve(found):
    refund = tool(
        search_docs.fn,
        name="refund",
        permission="shop.refund_order",
        approval=Approval(permission="shop.approve_refund"),
    )

    told = found(tools=[refund, search_docs])

    assert [number for number, _ in told] == ["mlango.W015"] * 2
    assert "The tool 'refund' needs the permission 'shop.refund_order'" in told[0][1]
    assert "The approval of the tool 'refund' needs the permission 'shop.app" in told[1][1]


# -- rules ----------------------------------------------------------------------------------


def test_rules_that_fit_tools_are_told_nothing(found):
    rules = [allow("search_*"), ask("ask_question"), deny("*")]

    assert found(tools=[search_docs], ask_question=True, permissions=rules) == []


def test_a_rule_that_fits_no_tool(found):
    [(number, text)] = found(tools=[search_docs], permissions=[ask("serch_docs"), deny("*")])

    assert number == "mlango.W016"
    assert "The rule ask('serch_docs') fits no tool. Did you mean 'search_docs'?" in text
    assert "Tools are: search_docs." in text


def test_a_rule_of_a_base_serves_its_other_agents_too(found):
    class Careful(Agent):
        class Meta:
            abstract = True
            permissions = [deny("delete_*")]

    assert found(bases=(Careful,), tools=[search_docs]) == []


def test_tools_that_only_a_run_knows_are_not_guessed(found):
    def get_tools(self, ctx: Context):
        return [search_docs]

    rules = [ask("refund")]

    assert found(attributes={"get_tools": get_tools}, permissions=rules) == []
    assert found(attributes={"tone": CharField()}, permissions=rules) == []


# -- durable runs, quotas --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mlango", "options"),
    [
        ({}, {"durable": True, "tracing": False}),
        ({}, {"durable": Durable(), "capture_content": False}),
        ({"TRACING": False}, {"durable": True}),
        ({"CAPTURE_CONTENT": False}, {"schedule": Cron("0 3 * * *", "Tidy up.")}),
    ],
)
def test_durable_runs_without_traces(found, mlango, options):
    [(number, text)] = found(mlango, **options)

    assert number == "mlango.E017"
    assert "needs traces and their content" in text


def test_durable_runs_with_traces(found):
    assert found({"TRACING": False}, durable=True, tracing=True) == []
    assert found({"TRACING": False}) == []


def test_a_quota_per_tenant_without_tenants(found):
    quota = Quota(tokens=5, per="tenant", every="day")

    [(number, text)] = found(quotas=[quota])

    assert number == "mlango.E018"
    assert "needs MLANGO['TENANT'], which is not set" in text
    assert (
        found({"TENANT": "os.getcwd"}, quotas=[Quota(tokens=5, per="tenant", every="day")]) == []
    )
    assert found(quotas=[Quota(tokens=5, per="user", every="day")]) == []


# -- other models ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "who"),
    [
        ({"guardrails": [LLMJudge("Be kind.", provider="opnai")]}, "LLMJudge"),
        ({"guardrails": [LLMJudge("Be kind.", model="cheap")]}, "LLMJudge"),
        ({"compaction": Compaction(summarizer="cheap")}, "The summarizer"),
        ({"fallback_models": ["cheap"]}, "The fallback model 'cheap'"),
    ],
)
def test_a_model_beside_the_own_one_whose_provider_is_unknown(found, options, who):
    mlango = {"DEFAULT_PROVIDER": "opnai", "MODELS": {"cheap": "small"}}

    [(number, text)] = found(mlango, **options)

    assert number == "mlango.E019"
    assert text.startswith(f"{who}: There is no provider 'opnai'. Did you mean 'openai'?")


def test_models_beside_the_own_one_that_can_be_asked(found, monkeypatch):
    installed = {"aiohttp": True}.get
    monkeypatch.setattr("mlango.agents.providers.registry.find_spec", installed)
    options = {
        "guardrails": [LLMJudge("Be kind."), LLMJudge("Be brief.", model="ollama/small")],
        "compaction": Compaction(summarizer="openai/gpt-5-mini"),
        "fallback_models": ["openrouter/openai/gpt-5-mini", "anything"],
    }

    assert found(**options) == []
    [(number, text)] = found(**options | {"fallback_models": ["gemini/flash"]})
    assert number == "mlango.E019"
    assert "needs the package 'litellm'" in text


def test_what_an_agents_provider_falls_back_to(found):
    [(number, text)] = found(provider=FallbackProvider(["echo", "openai/x", "ollma"]))

    assert number == "mlango.E010"
    assert "There is no provider 'ollma'. Did you mean 'ollama'?" in text
    assert found(provider=FallbackProvider(["echo", "openai/x"])) == []
