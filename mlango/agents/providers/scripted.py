"""A provider that says what a test tells it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass, field
from typing import Any

from mlango.agents.providers.turns import call, completion_of, deltas_of, with_ids
from mlango.core.messages import text_of
from mlango.core.provider import Delta, Message, Provider
from mlango.exceptions import ProviderError

__all__ = ["Request", "ScriptedProvider", "call"]


@dataclass(frozen=True, slots=True)
class Request:
    """What a provider was asked, as it was at that moment."""

    model: str
    messages: list[Message]
    system: str = ""
    tools: list[dict[str, Any]] | None = None
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def last_text(self) -> str:
        """The text of the last message."""
        return text_of(self.messages[-1].get("content")) if self.messages else ""


class ScriptedProvider(Provider):
    """Answers with the next of ``turns`` at each call.

    A turn is text, a tool call (``call("search", query="x")``), a list of calls, a Completion,
    a dict of its fields (with ``error``: the text is streamed, then the error raised), an
    exception, or a function of the Request that returns one of these and may be async.
    ``calls`` holds every Request.
    """

    name = "scripted"
    offline = True

    def __init__(self, turns: Iterable[Any] = ()) -> None:
        self.turns = list(turns)
        self.calls: list[Request] = []
        self._given_ids = 0
        self._seen: list[Message] = []
        self._copies: list[Message] = []

    @property
    def last_call(self) -> Request:
        return self.calls[-1]

    async def astream(
        self,
        *,
        model: str = "",
        messages: list[Message],
        system: str = "",
        tools: list[dict[str, Any]] | None = None,
        **options: Any,
    ) -> AsyncGenerator[Delta]:
        request = Request(
            model,
            self._copied(messages),
            system,
            None if tools is None else _copy(tools),
            _copy(options),
        )
        self.calls.append(request)
        turn = await self._turn(request)
        error: Any = turn.get("error") if isinstance(turn, dict) else turn
        failed = _is_exception(error)
        completion = completion_of({} if failed and turn is error else turn)
        completion = with_ids(completion, self._given_ids + 1)
        self._given_ids += len(completion.tool_calls)
        for delta in deltas_of(completion):
            if failed and delta is completion:
                raise error
            yield delta

    async def _turn(self, request: Request) -> Any:
        number = len(self.calls)
        if number > len(self.turns):
            raise ProviderError(
                f"The script has no turn for call {number}: it has {len(self.turns)}. "
                f"The last message is {_shown(request)}.",
                provider=self.name,
            )
        turn = self.turns[number - 1]
        if callable(turn) and not isinstance(turn, type):
            turn = turn(request)
            if hasattr(turn, "__await__"):
                turn = await turn
        return turn

    def _copied(self, messages: list[Message]) -> list[Message]:
        """Return a copy of the messages; those of the call before are not copied again.

        A conversation only grows, so this keeps a long script from taking quadratic time.
        """
        if self._seen != messages[: len(self._seen)]:
            self._seen, self._copies = [], []
        new = messages[len(self._seen) :]
        self._seen += new
        self._copies += [_copy(message) for message in new]
        return self._copies[:]

    def assert_exhausted(self) -> None:
        """Raise AssertionError unless every turn was used."""
        left = len(self.turns) - len(self.calls)
        if left > 0:
            raise AssertionError(
                f"{left} of {len(self.turns)} turns were not used. "
                f"The next one is {self.turns[len(self.calls)]!r:.200}."
            )

    def reset(self) -> None:
        """Begin again with the first turn."""
        self.calls.clear()
        self._given_ids = 0


def _is_exception(value: Any) -> bool:
    return isinstance(value, BaseException) or (
        isinstance(value, type) and issubclass(value, BaseException)
    )


def _shown(request: Request) -> str:
    role = request.messages[-1]["role"] if request.messages else "missing"
    return f"{role}: {request.last_text[:200]!r}"


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_copy(item) for item in value]
    return value
