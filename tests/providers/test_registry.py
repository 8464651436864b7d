"""Aliases become providers; models find theirs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mlango.agents import Agent, providers, tool
from mlango.agents.providers import (
    Completion,
    EchoProvider,
    OpenAICompatibleProvider,
    Provider,
    ScriptedProvider,
    ToolCall,
    Usage,
    available_providers,
    get_provider,
)
from mlango.agents.providers.registry import check_provider
from mlango.agents.providers.routing import resolve
from mlango.exceptions import Misconfigured


class Local(Provider):
    name = "local"

    def __init__(self, url="http://here"):
        self.url = url

    def complete(self, **request):
        return Completion(self.url)


class Needy(Provider):
    requires = ("no_such_package_at_all",)


LOCAL = f"{__name__}.Local"


def test_the_built_in_aliases_are_available():
    assert {
        "anthropic",
        "echo",
        "gemini",
        "litellm",
        "ollama",
        "openai",
        "openrouter",
    } <= set(available_providers())


def test_an_alias_gives_the_same_provider_at_each_call():
    assert get_provider("echo") is get_provider("echo")
    assert isinstance(get_provider("echo"), EchoProvider)


def test_an_instance_is_returned_as_it_is():
    scripted = ScriptedProvider([])

    assert get_provider(scripted) is scripted


def test_a_provider_made_for_an_alias_bears_its_name(settings):
    settings.MLANGO = {"PROVIDERS": {"here": LOCAL}}

    assert get_provider("here").name == "here"


def test_options_reach_the_provider(settings):
    settings.MLANGO = {"PROVIDERS": {"here": {"BACKEND": LOCAL, "OPTIONS": {"url": "x"}}}}

    assert get_provider("here").url == "x"


def test_options_alone_change_a_built_in_provider(settings):
    settings.MLANGO = {"PROVIDERS": {"openai": {"OPTIONS": {"base_url": "http://127.0.0.1:1/v1"}}}}

    provider = get_provider("openai")

    assert isinstance(provider, OpenAICompatibleProvider)
    assert provider.base_url == "http://127.0.0.1:1/v1"
    assert provider.api_key_env == "OPENAI_API_KEY"


def test_a_public_path_works_as_backend(settings):
    path = "mlango.agents.providers.OpenAICompatibleProvider"
    settings.MLANGO = {
        "PROVIDERS": {"vllm": {"BACKEND": path, "OPTIONS": {"base_url": "http://x"}}}
    }

    assert get_provider("vllm").base_url == "http://x"


def test_changed_settings_drop_what_was_made(settings):
    settings.MLANGO = {"PROVIDERS": {"here": LOCAL}}
    first = get_provider("here")
    settings.MLANGO = {"PROVIDERS": {"here": {"BACKEND": LOCAL, "OPTIONS": {"url": "new"}}}}

    assert get_provider("here") is not first
    assert get_provider("here").url == "new"


def test_an_unknown_alias_lists_all_and_suggests_the_closest():
    with pytest.raises(Misconfigured) as caught:
        get_provider("opnai")

    assert "There is no provider 'opnai'. Did you mean 'openai'?" in str(caught.value)
    assert "Providers are: anthropic, echo, gemini, litellm" in str(caught.value)


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (42, "must be a dotted path or {'BACKEND': path, 'OPTIONS': {…}}"),
        ({"OPTIONS": {}}, "MLANGO['PROVIDERS']['x'] needs a BACKEND"),
        ({"BACKEND": LOCAL, "OPTION": {}}, "has no key 'OPTION'. Did you mean 'OPTIONS'?"),
        ("no.such.Thing", "The provider 'x' cannot be imported from 'no.such.Thing'"),
        (f"{__name__}.LOCAL", "must be a subclass of Provider"),
        (
            {"BACKEND": LOCAL, "OPTIONS": {"ulr": 1}},
            "got an unexpected keyword argument 'ulr'. Did you mean 'url'? Options are: url.",
        ),
    ],
)
def test_a_wrong_declaration_says_what_is_wrong(settings, declared, message):
    settings.MLANGO = {"PROVIDERS": {"x": declared}}

    with pytest.raises(Misconfigured) as caught:
        get_provider("x")

    assert message in str(caught.value)


def test_a_missing_package_says_what_to_install(settings, monkeypatch):
    settings.MLANGO = {"PROVIDERS": {"x": f"{__name__}.Needy"}}
    monkeypatch.setattr("mlango.agents.providers.registry.find_spec", lambda name: None)

    with pytest.raises(Misconfigured, match="Run: pip install no_such_package_at_all"):
        get_provider("x")
    with pytest.raises(Misconfigured, match=r'pip install "django-mlango\[litellm\]"'):
        check_provider("anthropic")


def test_an_installed_package_may_bring_a_provider(monkeypatch):
    class Entry:
        name = "plugged"

        def load(self):
            return Local

    monkeypatch.setattr("mlango.agents.providers.registry._plugins", lambda: {"plugged": Entry()})

    assert "plugged" in available_providers()
    assert isinstance(get_provider("plugged"), Local)
    providers.registry._made.clear()


def test_a_check_refuses_what_is_neither_alias_nor_provider():
    check_provider("openai")
    check_provider(ScriptedProvider([]))
    with pytest.raises(Misconfigured, match="an alias or an instance of Provider, not 42"):
        check_provider(42)


class TestResolve:
    def resolved(self, *args):
        provider, model = resolve(*args)
        return provider.name, model

    def test_the_prefix_of_a_model_names_the_provider(self):
        assert self.resolved("openai/gpt-4o") == ("openai", "gpt-4o")
        assert self.resolved("openrouter/openai/gpt-4o") == ("openrouter", "openai/gpt-4o")
        assert self.resolved("anthropic/claude-opus-5") == ("anthropic", "claude-opus-5")

    def test_a_model_of_no_known_provider_goes_whole_to_the_default(self, settings):
        settings.MLANGO = {"DEFAULT_PROVIDER": "ollama"}

        assert self.resolved("llama3") == ("ollama", "llama3")
        assert self.resolved("hf/llama3") == ("ollama", "hf/llama3")

    def test_a_named_provider_gets_the_model_without_its_own_prefix(self):
        assert self.resolved("openai/gpt-4o", "openai") == ("openai", "gpt-4o")
        assert self.resolved("gpt-4o", "openai") == ("openai", "gpt-4o")
        assert self.resolved("openai/gpt-4o", "openrouter") == ("openrouter", "openai/gpt-4o")
        assert self.resolved("openai/gpt-4o", ScriptedProvider()) == ("scripted", "openai/gpt-4o")

    def test_an_alias_of_a_model_stands_for_it(self, settings):
        settings.MLANGO = {"MODELS": {"cheap": "openai/gpt-4o-mini"}}

        assert self.resolved("cheap") == ("openai", "gpt-4o-mini")
        assert self.resolved("cheap", "openai") == ("openai", "gpt-4o-mini")

    def test_an_alias_of_a_model_must_be_text(self, settings):
        settings.MLANGO = {"MODELS": {"cheap": 4}}

        with pytest.raises(Misconfigured, match=r"MLANGO\['MODELS'\]\['cheap'\] must be"):
            resolve("cheap")

    def test_no_model_is_an_error_only_where_one_is_needed(self, settings):
        settings.MLANGO = {"DEFAULT_PROVIDER": "openai"}

        assert self.resolved("", "echo") == ("echo", "")
        with pytest.raises(Misconfigured, match=r"Set Meta.model or .*'openai/<model>'"):
            resolve("")


def test_naming_providers_loads_no_client():
    code = (
        "import sys, django.conf; django.conf.settings.configure();"
        "from mlango.agents import providers; providers.get_provider('openai');"
        "providers.get_provider('litellm'); providers.get_provider('echo');"
        "print([m for m in ('litellm', 'openai', 'aiohttp', 'genai_prices') if m in sys.modules])"
    )

    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert shown.stdout.strip() == "[]"


def test_every_public_name_can_be_had():
    assert all(getattr(providers, name) is not None for name in providers.__all__)
    assert providers.END_TURN == "end_turn"


class VLLMProvider(Provider):
    name = "vllm"
    requires = ("openai",)

    def complete(
        self,
        *,
        model,
        messages,
        system="",
        tools=None,
        max_tokens=4096,
        thinking=None,
        effort=None,
        **kw,
    ) -> Completion:
        calls = [ToolCall(id="1", name="add", arguments={"a": 1, "b": 2})]
        if messages[-1]["role"] == "tool":
            calls = []
        return Completion(
            text="" if calls else f"{model} says {messages[-1]['content']}",
            tool_calls=calls,
            stop_reason=Completion.TOOL_USE if calls else Completion.END_TURN,
            usage=Usage(input_tokens=10, output_tokens=5),
        )


def test_a_provider_of_ones_own_is_one_class(settings):
    @tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    class Own(Agent):
        class Meta:
            app_label = "tests"
            model = "vllm/llama"
            tools = [add]
            tracing = False

    settings.MLANGO = {"PROVIDERS": {"vllm": f"{__name__}.VLLMProvider"}}

    run = Own().run("What is 1 + 2?")

    assert run.output == "llama says 3"
    assert run.usage.total_tokens == 30
    assert run.cost is None
