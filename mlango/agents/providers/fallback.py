"""A provider that stands for several: where one fails, the next is asked."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Any, TypeGuard

from mlango.agents.providers.registry import check_provider, class_of, get_provider
from mlango.agents.providers.routing import Asked, check_model, resolve
from mlango.conf import settings
from mlango.core.provider import Completion, Delta, Message, Provider
from mlango.core.retry import is_of_the_model
from mlango.exceptions import Misconfigured, ProviderError

TOOL_CALLED = "No other provider was asked: a tool has been called, which may have had an effect."


class FallbackProvider(Provider):
    """Asks the first of ``providers``, and the next where that fails before it said anything.

    Each is an alias, which is asked for the run's model, an ``alias/model`` of its own, or a
    Provider. A run treats them as its ``Meta.fallback_models``, with the same retries, events
    and rules; requests that are no part of a run's conversation are not tried again.
    """

    name = "fallback"

    def __init__(self, providers: Iterable[str | Provider]) -> None:
        self.members = [providers] if isinstance(providers, str | Provider) else [*providers]
        if not self.members:
            raise Misconfigured("FallbackProvider(...) takes at least one provider.")
        for each in self.members:
            if not isinstance(each, str | Provider):
                raise Misconfigured(
                    f"FallbackProvider(...) takes aliases, 'alias/model' and providers, not "
                    f"{each!r}."
                )

    def chain(self, model: str) -> list[Asked]:
        """Return the members with the model that each is asked for, in order."""
        found = [_member(each, model) for each in self.members]
        for provider, _ in found:
            if isinstance(provider, FallbackProvider):
                raise Misconfigured(
                    f"The provider {self.name!r} falls back to {provider.name!r}, which falls "
                    f"back itself. Name the providers of that here."
                )
        return found

    @property
    def is_free(self) -> bool:
        return all(map(_is_free, self.members))

    async def astream(
        self, *, model: str, messages: list[Message], **request: Any
    ) -> AsyncGenerator[Delta]:
        chain, is_told = self.chain(model), False
        for position, (provider, name) in enumerate(chain, 1):
            answer = provider.astream(model=name, messages=messages, **request)
            try:
                async with aclosing(answer) as stream:
                    async for delta in stream:
                        is_told = True
                        yield delta
                        if isinstance(delta, Completion):
                            return
            except ProviderError as error:
                if is_told or position == len(chain) or not is_of_the_model(error):
                    raise
                if _has_called(messages):
                    error.add_note(TOOL_CALLED)
                    raise
            else:
                return

    async def aclose(self) -> None:
        for each in self.members:
            await _provider(each).aclose()


def check_members(provider: Any) -> None:
    """Raise Misconfigured unless a provider can be made, and those that it falls back to."""
    if isinstance(provider, str) and issubclass(class_of(provider), FallbackProvider):
        provider = get_provider(provider)
    if not isinstance(provider, FallbackProvider):
        check_provider(provider)
        return
    for each in provider.members:
        check_model(each) if _has_model(each) else check_provider(each)


def _member(named: str | Provider, model: str) -> Asked:
    """Return whom a member is, and the model that it is asked for where the run has this."""
    return resolve(named) if _has_model(named) else resolve(model, named)


def _provider(named: str | Provider) -> Provider:
    return resolve(named)[0] if _has_model(named) else get_provider(named)


def _is_free(named: str | Provider) -> bool:
    return _provider(named).is_free


def _has_model(named: str | Provider) -> TypeGuard[str]:
    """Return whether a member brings a model of its own."""
    return isinstance(named, str) and (named in settings.MODELS or "/" in named)


def _has_called(messages: list[Message]) -> bool:
    """Return whether a tool was called since the user last said something."""
    roles = [message["role"] for message in messages]
    latest = max((i for i, role in enumerate(roles) if role == "user"), default=0)
    return "tool" in roles[latest:]
