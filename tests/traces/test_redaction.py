"""Secrets, and what a site calls so, are not written down."""

import base64
import re
from urllib.parse import quote

import pytest
from django.apps import apps
from django.contrib.auth import get_user_model

from mlango.agents import Agent, MetastoreMemory, tool
from mlango.agents.providers import ScriptedProvider, ToolCall
from mlango.exceptions import InvalidRequest, Misconfigured, RunError
from mlango.models import Approval, Trace
from mlango.runtime.redaction import redact, redact_json

KEY = "sk-canary-0123456789abcdef"
OWN = "canary: a key, of no known form"

changed = []


@tool
def look_up(key: str) -> dict:
    """Look a key up."""
    return {"key": key, "found": [key]}


@tool
def crash(key: str) -> str:
    """Fail."""
    raise ValueError(f"no {key}")


@tool(approval=True)
def change(key: str) -> str:
    """Change a key."""
    changed.append(key)
    return "changed"


class Vault(Agent):
    class Meta:
        app_label = "traces"
        tools = [look_up, crash, change]
        memory = MetastoreMemory()


@pytest.fixture(autouse=True)
def _configured(monkeypatch, settings):
    changed.clear()
    monkeypatch.setenv("VAULT_API_KEY", OWN)
    settings.MLANGO = {**settings.MLANGO, "REDACT": ["secrets", r"\b4\d{15}\b"]}


def call(name, key, id="1"):
    return ToolCall(id, name, {"key": key})


def rows():
    """Return all that the database holds of agents, as one text."""
    models = apps.get_app_config("mlango").get_models()
    return "\n".join(str(list(model._default_manager.values())) for model in models)


@pytest.mark.django_db(transaction=True)
class TestRows:
    def test_no_row_holds_a_secret(self):
        hidden = f"{KEY} {OWN} 4111111111111111"
        calls = [call("look_up", hidden), call("crash", hidden, "2")]
        turns = [calls, f"It is {hidden}."]
        sent = {"session_id": "s", "metadata": {"ticket": hidden, "card": 4111111111111111}}

        run = Vault().run(hidden, provider=ScriptedProvider(turns), **sent)

        assert run.text == f"It is {hidden}."
        assert KEY in run.tool_results[0].content
        held = rows()
        assert "[REDACTED]" in held
        assert not [word for word in ("canary", "no known form", "41111") if word in held]

    def test_a_durable_run_keeps_none_either(self):
        turns = [[call("look_up", KEY)], [call("change", KEY, "2")]]
        Vault().run(f"Take {KEY}", provider=ScriptedProvider(turns), durable=True)

        assert "canary" not in rows()

    def test_the_error_of_a_run_holds_none(self):
        with pytest.raises(RunError, match="canary"):
            Vault().run("hi", provider=ScriptedProvider([InvalidRequest(f"no {KEY}")]))

        assert Trace.objects.get().status == "failed"
        assert "canary" not in rows()

    def test_the_next_turn_reads_what_was_kept(self):
        user = get_user_model().objects.create_user("ann")
        for turns in (["Noted."], ["Yes."]):
            model = ScriptedProvider(turns)
            Vault().run(f"My key is {KEY}", user=user, session_id="s", provider=model)

        assert [m["content"] for m in model.calls[0].messages if m["role"] == "user"] == [
            "My key is [REDACTED]",
            f"My key is {KEY}",
        ]

    def test_nothing_is_replaced_where_nothing_is_to_be(self, settings):
        settings.MLANGO = {**settings.MLANGO, "REDACT": []}

        run = Vault().run(f"{KEY} {OWN}", provider=ScriptedProvider([[call("look_up", KEY)], KEY]))

        assert Trace.objects.get().messages == run.messages
        assert "canary" in rows()

    @pytest.mark.parametrize("durable", [False, True])
    def test_a_call_that_was_not_kept_whole_is_not_made_after_a_pause(self, durable):
        user = get_user_model().objects.create_user("ann")
        turns = [[call("change", KEY)]]
        run = Vault().run("go", user=user, provider=ScriptedProvider(turns), durable=durable)
        row = Approval.objects.get()
        assert row.arguments == {"key": "[REDACTED]"}
        row.approve(by=user)

        run = Vault().resume(run, provider=ScriptedProvider(["Done."]))

        assert (run.status, changed) == ("finished", [])
        assert "secret in its arguments was not written down" in run.tool_results[0].content


class TestTexts:
    @pytest.mark.parametrize(
        "text",
        [
            KEY,
            OWN,
            quote(OWN, safe=""),
            base64.b64encode(OWN.encode()).decode(),
            "4111111111111111",
            "postgres://ann:long-password@db/shop".removeprefix("postgres://").partition("@")[0],
        ],
    )
    def test_a_secret_is_found_in_every_form(self, text):
        said = f"x ://{text}@ y"
        assert redact(said) == "x ://[REDACTED]@ y"
        assert redact_json(f'{{"a": ["{said}"]}}') == '{"a": ["x ://[REDACTED]@ y"]}'

    def test_a_value_that_json_writes_otherwise_is_found(self, monkeypatch, settings):
        monkeypatch.setenv("VAULT_SECRET", 'with "quotes" and\nlines')
        settings.MLANGO = {**settings.MLANGO, "SESSION_WAIT": 1}
        assert redact_json(r'["with \"quotes\" and\nlines"]') == '["[REDACTED]"]'

    def test_numbers_stay_numbers_unless_one_is_found(self):
        assert redact_json('{"n": 41, "card": 4111111111111111, "x": 1.5, "y": true}') == (
            '{"n": 41, "card": "[REDACTED]", "x": 1.5, "y": true}'
        )

    def test_keys_are_looked_at_too(self):
        assert redact_json(f'{{"{KEY}": 1}}') == '{"[REDACTED]": 1}'

    def test_what_holds_no_secret_is_kept_to_the_letter(self):
        text = '{"a":  "see https://example.com/a@b", "b": [1,2]}'
        assert redact_json(text) == text


@pytest.mark.parametrize(
    ("redact", "told"),
    [
        (["secret"], "write 'secrets', or a regular expression"),
        (["(a"], "no regular expression: missing )"),
        ([7], "no regular expression"),
        (["x*"], "finds the empty text"),
        ("secrets", "must be a list"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(settings, redact, told):
    from mlango.conf import settings as ours

    settings.MLANGO = {"REDACT": redact}
    with pytest.raises(Misconfigured, match=re.escape(told)):
        _ = ours.REDACT


def test_compiled_patterns_do_too(settings):
    settings.MLANGO = {"REDACT": [re.compile("(?i)geheim")]}
    assert redact("Geheim! sk-canary-0123456789abcdef") == "[REDACTED]! sk-canary-0123456789abcdef"
