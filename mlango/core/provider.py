"""What speaks to a model: one request, one streamed response.

To add a provider, subclass Provider and override one of ``complete``, ``acomplete`` or
``astream``; the other two adapt. Register it in ``MLANGO["PROVIDERS"]``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from mlango.core.quick import quick
from mlango.core.threads import in_pool
from mlango.core.usage import NO_USAGE, Usage
from mlango.core.wanted import TEXT, Wanted, check_made, instance_of

if TYPE_CHECKING:
    from mlango.core.run import Run

Message = dict[str, Any]


@quick
@dataclass(frozen=True, slots=True)
class ToolCall:
    """A model's request to call a tool.

    ``arguments`` is the JSON text as the model wrote it, which may be broken, or a dict.
    """

    id: str
    name: str
    arguments: str | dict[str, Any] = "{}"


@quick
@dataclass(frozen=True, slots=True)
class Completion:
    """A model's whole answer.

    ``raw_content`` is the assistant turn as the provider wants it echoed back, JSON-safe;
    None when the text and the tool calls say it all. ``images`` are content parts.
    """

    END_TURN: ClassVar[str] = "end_turn"
    TOOL_USE: ClassVar[str] = "tool_use"
    MAX_TOKENS: ClassVar[str] = "max_tokens"
    PAUSE_TURN: ClassVar[str] = "pause_turn"
    REFUSAL: ClassVar[str] = "refusal"
    CONTENT_FILTER: ClassVar[str] = "content_filter"

    text: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    stop_reason: str = ""
    usage: Usage = NO_USAGE
    raw_content: Any = None
    model: str = ""
    refusal: str = ""
    reasoning: str = ""
    images: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.stop_reason:
            reason = self.TOOL_USE if self.tool_calls else self.END_TURN
            object.__setattr__(self, "stop_reason", reason)
        # Each step makes one, so what is right must cost no call.
        is_right = (
            self.text.__class__ is str
            and self.usage.__class__ is Usage
            and self.stop_reason.__class__ is str
            and self.tool_calls.__class__ is list
        )
        if is_right:
            for call in self.tool_calls:
                is_right = is_right and call.__class__ is ToolCall
        if not is_right:
            check_made(self, _WANTED)


def _are_calls(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(each, ToolCall) for each in value)


_WANTED = {
    "text": TEXT,
    "tool_calls": Wanted(_are_calls, "a list of ToolCall(...)"),
    "stop_reason": TEXT,
    "usage": instance_of("Usage(...)", Usage),
}


@quick
@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """A piece of the model's thinking."""

    text: str


@quick
@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of a tool call's arguments; ``index`` counts the calls of the answer."""

    index: int
    id: str
    name: str
    arguments: str


# What a stream yields: text as plain str, and the Completion last.
Delta = str | ReasoningDelta | ToolCallDelta | Completion


def pieces(completion: Completion) -> list[Delta]:
    """Return what a stream would have yielded of an answer that came in one piece."""
    thought = [ReasoningDelta(completion.reasoning)] if completion.reasoning else []
    return [*thought, *([completion.text] if completion.text else []), completion]


class Provider:
    """One request to a model, one response. Retries, tools and memory are not its business.

    ``name`` is the provider's alias; ``requires`` the import names of packages that it
    needs; ``offline`` says that it never touches the network and costs nothing;
    ``needs_model`` that a request without a model's name is a mistake.
    """

    name: str = ""
    requires: ClassVar[tuple[str, ...]] = ()
    offline: bool = False
    needs_model: bool = False

    def complete(
        self,
        *,
        model: str,
        messages: list[Message],
        system: str = "",
        tools: list[dict[str, Any]] | None = None,
        max_tokens: int = 4096,
        **options: Any,
    ) -> Completion:
        """Return the model's answer to ``messages``, oldest first.

        ``options`` hold what was set of ``temperature``, ``stop_sequences``, ``thinking``,
        ``effort`` and the extra keyword arguments of the run. Raise a ProviderError.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must override complete(), acomplete() or astream()."
        )

    # Type checkers let a method with *args and **kwargs be overridden with any signature.
    async def acomplete(self, *args: Any, **request: Any) -> Completion:
        """Return the answer; by default of astream() if that is overridden, else of complete()."""
        if type(self).astream is Provider.astream:
            completion: Completion = await in_pool(self.complete, **request)
            return completion
        async for delta in self.astream(**request):
            if isinstance(delta, Completion):
                return delta
        raise NotImplementedError(f"{type(self).__name__}.astream() ended without a Completion.")

    async def astream(self, *args: Any, **request: Any) -> AsyncGenerator[Delta]:
        """Yield the answer's pieces as they come and the whole Completion last."""
        for piece in pieces(await self.acomplete(**request)):
            yield piece

    @property
    def is_free(self) -> bool:
        """Whether a call costs nothing, whatever the table of prices says."""
        return self.offline

    def chain(self, model: str) -> list[tuple[Provider, str]]:
        """Return who is asked for a model, and by which name: the first, or where it fails
        the next.
        """
        return [(self, model)]

    def for_run(self, run: Run) -> Provider:
        """Return what serves one run, where that needs to know more than its requests."""
        return self

    async def aclose(self) -> None:
        """Close what is kept between calls, such as connections."""


PROVIDER = instance_of("the alias of a provider, or a Provider", str, Provider)
