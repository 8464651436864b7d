"""``manage.py check``: what it says of settings and agents."""

import pytest
from django.core.checks import run_checks

from mlango.agents import Agent, BufferMemory, MetastoreMemory, tool
from mlango.checks import TAG
from mlango.conf import settings as mlango_settings
from mlango.exceptions import Misconfigured
from mlango.runtime.registry import registry

ECHO = "mlango.agents.providers.echo.EchoProvider"
COMPATIBLE = "mlango.agents.providers.openai_compatible.OpenAICompatibleProvider"
FALLBACK = "mlango.agents.providers.fallback.FallbackProvider"


@pytest.fixture
def checked(settings, monkeypatch):
    """Return what the checks say of these settings: id and text with its hint."""
    monkeypatch.setattr(registry, "_agents", {})

    def check(mlango):
        settings.MLANGO = mlango
        return [(each.id, f"{each.msg} {each.hint or ''}") for each in run_checks(tags=[TAG])]

    return check


def test_good_settings_say_nothing(checked):
    assert not checked(
        {
            "DEFAULT_PROVIDER": "mine",
            "PROVIDERS": {"mine": ECHO, "openai": {"OPTIONS": {"base_url": "http://x/v1"}}},
            "MODELS": {"cheap": "openai/gpt-5-mini"},
            "PRICES": {"openai/*": {"input": 1, "output": 2.5}},
        }
    )


def test_a_site_that_names_no_provider_needs_no_package(checked, monkeypatch):
    monkeypatch.setattr("mlango.agents.providers.registry.find_spec", lambda name: None)

    assert not checked({})
    [(number, text)] = checked({"DEFAULT_PROVIDER": "gemini"})
    assert number == "mlango.E005"
    assert "needs the package 'litellm'" in text


@pytest.mark.parametrize(
    ("mlango", "expected", "message"),
    [
        ([], "E001", "must be a dict"),
        ({"AGENT_MAX_STEP": 3}, "E002", "Did you mean 'AGENT_MAX_STEPS'?"),
        ({"AGENT_MAX_STEPS": "3"}, "E003", "must be a number above 0"),
        ({"TRACING": 3}, "E003", "must be True or False, not 3"),
        ({"PROVIDERS": []}, "E003", "must be a dict"),
        ({"MAX_FILE_BYTES": 2**40}, "E004", "≤ MAX_HTTP_BODY_BYTES"),
        ({"DEFAULT_PROVIDER": "opnai"}, "E005", "Did you mean 'openai'?"),
        ({"PROVIDERS": {"x": "no.such.Thing"}}, "E005", "cannot be imported from"),
        ({"PROVIDERS": {"x": f"{ECHO}s"}}, "E005", "cannot be imported from"),
        ({"PROVIDERS": {"x": 3}}, "E005", "must be a dotted path or"),
        ({"PROVIDERS": {"x": {"OPTIONS": {}}}}, "E005", "needs a BACKEND"),
        ({"PROVIDERS": {"x": {"BAKEND": ECHO}}}, "E005", "Did you mean 'BACKEND'?"),
        (
            {"PROVIDERS": {"x": {"BACKEND": COMPATIBLE, "OPTIONS": {"base_ur": ""}}}},
            "E005",
            "Did you mean 'base_url'?",
        ),
        ({"MODELS": {"cheap": ["openai/x"]}}, "E006", "must be 'provider/model'"),
        ({"MODELS": {"cheap": ""}}, "E006", "must be 'provider/model'"),
        ({"PRICES": {"x/y": 3}}, "E007", "needs 'input' and 'output'"),
        ({"PRICES": {"x/y": {"input": "1", "output": 2}}}, "E007", "a number from 0, not '1'"),
        ({"PRICES": {"x/y": {"input": 1, "output": 2, "cach_read": 1}}}, "E007", "Did you mean"),
        ({"QUEUE": "wroker"}, "E008", "must be 'immediate', 'worker', 'celery'"),
        ({"QUEUE": "no.such.Queue"}, "E008", "names 'no.such.Queue'"),
        ({"QUEUE": ECHO}, "E008", "is no subclass of Queue"),
        ({"TENANT": "no.such.function"}, "E009", "is 'no.such.function', which is not the path"),
        ({"TENANT": "mlango.checks.TAG"}, "E009", "is 'mlango.checks.TAG', which is not the path"),
        (
            {"PROVIDERS": {"safe": {"BACKEND": FALLBACK, "OPTIONS": {"providers": ["opnai"]}}}},
            "E005",
            "There is no provider 'opnai'. Did you mean 'openai'?",
        ),
    ],
)
def test_a_wrong_setting_is_told_once(checked, mlango, expected, message):
    [(number, text)] = checked(mlango)

    assert number == f"mlango.{expected}"
    assert message in text


def test_every_wrong_entry_is_told(checked):
    found = checked({"PROVIDERS": {"a": 1, "b": 2}, "MODELS": {"c": 3}, "PRICES": {"d": 4}})

    assert [number[-3:] for number, _ in found] == ["005", "005", "006", "007"]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("AGENT_MAX_STEPS", "many", "AGENT_MAX_STEPS is 'many'"),
        ("TRACING", "perhaps", "must be True or False"),
        ("PROVIDERS", "echo", "cannot hold a dict. Unset it"),
    ],
)
def test_a_wrong_variable_of_the_environment_is_told(checked, monkeypatch, name, value, message):
    monkeypatch.setenv(f"MLANGO_{name}", value)

    [(number, text)] = checked({})

    assert number == "mlango.E003"
    assert f"MLANGO_{name}" in text
    assert message in text


def remembering(memory, **options):
    """Return an agent with this memory."""
    meta = type("Meta", (), {"app_label": "checks", "memory": memory, **options})
    return type("Remembering", (Agent,), {"__module__": __name__, "Meta": meta})


@pytest.mark.parametrize(
    ("mlango", "options", "expected"),
    [
        ({}, {}, []),
        ({"TRACING": False}, {}, ["mlango.E011"]),
        ({"CAPTURE_CONTENT": False}, {}, ["mlango.E013"]),
        ({"CAPTURE_CONTENT": False}, {"capture_content": True}, []),
        ({}, {"capture_content": False}, ["mlango.E013"]),
    ],
)
def test_memory_in_traces_needs_their_content(checked, mlango, options, expected):
    remembering(MetastoreMemory(), **options)

    assert [number for number, _ in checked(mlango)] == expected


def test_agents_are_checked_once_the_settings_are_right(checked):
    remembering(MetastoreMemory())

    assert [number for number, _ in checked({"TRACING": 3})] == ["mlango.E003"]


def test_another_memory_needs_no_traces(checked):
    remembering(BufferMemory(k=3))

    assert not checked({"TRACING": False, "CAPTURE_CONTENT": False})


def test_a_tool_that_cannot_be_strict_is_told(checked):
    @tool(strict=True)
    def find(where: dict) -> str:
        """Find."""

    @tool(strict=True)
    def count(limit: int = 5) -> str:
        """Count."""

    meta = type("Meta", (), {"app_label": "checks", "tools": [find, count]})
    type("Finding", (Agent,), {"__module__": __name__, "Meta": meta})

    [(number, text)] = checked({})

    assert number == "mlango.W012"
    assert "The tool 'find': The schema cannot be strict: it takes an object" in text
    assert not find.to_schema()["function"]["strict"]


def test_a_setting_that_is_no_dict_is_told_by_the_first_run_too(settings):
    settings.MLANGO = 3

    with pytest.raises(Misconfigured, match="The setting MLANGO must be a dict, not 3"):
        mlango_settings.TRACING  # noqa: B018
