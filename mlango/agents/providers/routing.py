"""Which provider serves which model.

1. A model that is an alias in ``MLANGO["MODELS"]`` stands for what that says.
2. A provider that was named serves the model, less that provider's own alias: with the
   provider ``openai``, ``"openai/gpt-4o"`` and ``"gpt-4o"`` are the same.
3. Otherwise ``"alias/model"`` goes to the provider of that alias, if there is one, as
   ``"model"``: ``"openrouter/openai/gpt-4o"`` asks OpenRouter for ``"openai/gpt-4o"``.
4. Anything else goes to ``MLANGO["DEFAULT_PROVIDER"]`` by rule 2.
"""

from __future__ import annotations

from mlango.agents.providers.registry import check_provider, get_provider, is_alias
from mlango.conf import settings
from mlango.core.provider import Provider
from mlango.exceptions import Misconfigured

Asked = tuple[Provider, str]  # and the model's name as it knows it


def resolve(model: str, provider: str | Provider | None = None) -> Asked:
    """Return the provider for a model and the model's name as that provider knows it.

    Raises Misconfigured where a name is missing or unknown.
    """
    model = _aliased(model)
    chosen = get_provider(provider or _alias_for(model))
    name = model.removeprefix(f"{chosen.name}/") if chosen.name else model
    if not name and chosen.needs_model:
        raise Misconfigured(
            f"The provider {chosen.name!r} needs the name of a model. Set Meta.model or "
            f"MLANGO['DEFAULT_AGENT_MODEL'], such as '{chosen.name}/<model>'."
        )
    return chosen, name


def check_model(model: str, provider: str | Provider | None = None) -> None:
    """Raise Misconfigured unless who serves a model can be made, without making it."""
    model = _aliased(model)
    check_provider(provider or _alias_for(model))


def chain(model: str, provider: str | Provider | None = None) -> list[Asked]:
    """Return who is asked for a model, the first one first; raise as resolve() does."""
    chosen, name = resolve(model, provider)
    return chosen.chain(name)


def _alias_for(model: str) -> str:
    """Return the alias of the provider that a model names, or of the default one."""
    alias, slash, _ = model.partition("/")
    return alias if slash and is_alias(alias) else settings.DEFAULT_PROVIDER


def _aliased(model: str) -> str:
    meant = settings.MODELS.get(model, model)
    if not isinstance(meant, str):
        raise Misconfigured(
            f"MLANGO['MODELS'][{model!r}] must be 'provider/model', not {meant!r}."
        )
    return meant
