"""The providers of a project by alias, each made at its first use and then kept.

An alias comes from ``MLANGO["PROVIDERS"]``, from BUILT_IN, or from an installed package that
has an entry point in the group ``mlango.providers``; the first of these that has it counts.
"""

from __future__ import annotations

import inspect
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any

from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from mlango.conf import settings
from mlango.core.provider import Provider
from mlango.exceptions import Misconfigured, did_you_mean

LITELLM = "mlango.agents.providers.litellm.LiteLLMProvider"
COMPATIBLE = "mlango.agents.providers.openai_compatible.OpenAICompatibleProvider"

BUILT_IN: dict[str, dict[str, Any]] = {
    "litellm": {"BACKEND": LITELLM},
    "anthropic": {"BACKEND": LITELLM, "OPTIONS": {"prefix": "anthropic/"}},
    "gemini": {"BACKEND": LITELLM, "OPTIONS": {"prefix": "gemini/"}},
    "openai": {
        "BACKEND": COMPATIBLE,
        "OPTIONS": {"base_url": "https://api.openai.com/v1", "api_key_env": "OPENAI_API_KEY"},
    },
    "openrouter": {
        "BACKEND": COMPATIBLE,
        "OPTIONS": {
            "base_url": "https://openrouter.ai/api/v1",
            "api_key_env": "OPENROUTER_API_KEY",
        },
    },
    "ollama": {"BACKEND": COMPATIBLE, "OPTIONS": {"base_url": "http://127.0.0.1:11434/v1"}},
    "echo": {"BACKEND": "mlango.agents.providers.echo.EchoProvider"},
}

# What to install for a package that a provider of mlango needs.
EXTRAS = {"litellm": '"django-mlango[litellm]"'}

_made: dict[str, Provider] = {}


def get_provider(provider: str | Provider) -> Provider:
    """Return the provider of an alias, the same one at each call; an instance is returned as is.

    Raises Misconfigured for an unknown alias and for a package that is not installed.
    """
    if isinstance(provider, Provider):
        return provider
    kept = _made.get(provider) if isinstance(provider, str) else None
    return kept or _made.setdefault(provider, _make(provider))


def available_providers() -> list[str]:
    """Return every alias, sorted."""
    return sorted({*settings.PROVIDERS, *BUILT_IN, *_plugins()})


def check_provider(provider: Any) -> None:
    """Raise Misconfigured unless ``provider`` is a Provider or an alias that can be made."""
    if not isinstance(provider, Provider):
        _check_options(provider, *_backend(provider))


def class_of(alias: str) -> type[Provider]:
    """Return the class of an alias; raise Misconfigured if it cannot be made."""
    check_provider(alias)
    return _backend(alias)[0]


def is_alias(name: str) -> bool:
    """Return whether there is a provider of this name."""
    return name in settings.PROVIDERS or name in BUILT_IN or name in _plugins()


@cache
def _plugins() -> dict[str, Any]:
    return {entry.name: entry for entry in entry_points(group="mlango.providers")}


def _make(alias: str) -> Provider:
    backend, options = _backend(alias)
    _check_options(alias, backend, options)
    provider = backend(**options)
    provider.name = alias
    return provider


def _check_options(alias: str, backend: type[Provider], options: dict[str, Any]) -> None:
    try:
        inspect.signature(backend).bind(**options)
    except TypeError as error:
        known = list(inspect.signature(backend).parameters)
        wrong = next((name for name in options if name not in known), "")
        raise Misconfigured(
            f"The options of the provider {alias!r} do not fit {backend.__name__}: {error}."
            f"{did_you_mean(wrong, known)} Options are: {', '.join(known) or 'none'}."
        ) from None


def _backend(alias: Any) -> tuple[type[Provider], dict[str, Any]]:
    """Return the class of an alias and what to make it with."""
    declared = _declared(alias)
    backend = declared["BACKEND"]
    if isinstance(backend, str):
        try:
            backend = import_string(backend)
        except ImportError as error:
            raise Misconfigured(
                f"The provider {alias!r} cannot be imported from {backend!r}: {error}."
            ) from error
    if not (isinstance(backend, type) and issubclass(backend, Provider)):
        raise Misconfigured(
            f"The provider {alias!r} must be a subclass of Provider, not {backend!r}."
        )
    _check_packages(alias, backend)
    return backend, dict(declared.get("OPTIONS", {}))


def _declared(alias: Any) -> dict[str, Any]:
    if not isinstance(alias, str):
        raise Misconfigured(f"A provider is an alias or an instance of Provider, not {alias!r}.")
    if alias in settings.PROVIDERS:
        return _from_settings(alias)
    if alias in BUILT_IN:
        return BUILT_IN[alias]
    if alias in _plugins():
        return {"BACKEND": _plugins()[alias].load()}
    names = available_providers()
    raise Misconfigured(
        f"There is no provider {alias!r}.{did_you_mean(alias, names)} "
        f"Providers are: {', '.join(names)}."
    )


def _from_settings(alias: str) -> dict[str, Any]:
    """Return what the settings say of an alias; OPTIONS alone change a built-in one."""
    given = settings.PROVIDERS[alias]
    if isinstance(given, str):
        return {"BACKEND": given}
    where = f"MLANGO['PROVIDERS'][{alias!r}]"
    if not isinstance(given, dict) or not isinstance(given.get("OPTIONS", {}), dict):
        raise Misconfigured(
            f"{where} must be a dotted path or {{'BACKEND': path, 'OPTIONS': {{…}}}}."
        )
    for key in given:
        if key not in ("BACKEND", "OPTIONS"):
            raise Misconfigured(
                f"{where} has no key {key!r}.{did_you_mean(key, ('BACKEND', 'OPTIONS'))} "
                f"Keys are: BACKEND, OPTIONS."
            )
    if "BACKEND" in given:
        return given
    if alias not in BUILT_IN:
        raise Misconfigured(f"{where} needs a BACKEND: the dotted path of a provider.")
    own = BUILT_IN[alias]
    return {**own, "OPTIONS": {**own.get("OPTIONS", {}), **given.get("OPTIONS", {})}}


def _check_packages(alias: str, backend: type[Provider]) -> None:
    for package in backend.requires:
        if find_spec(package.partition(".")[0]) is None:
            raise Misconfigured(
                f"The provider {alias!r} needs the package {package!r}. "
                f"Run: pip install {EXTRAS.get(package, package)}"
            )


def _forget(*, setting: str, **kwargs: Any) -> None:
    if setting == "MLANGO":
        _made.clear()


setting_changed.connect(_forget, dispatch_uid="mlango.providers")
