"""What happens in a run, one frozen dataclass a fact, in the order of ``seq``.

Each event has ``seq`` (from 0, without gaps), ``run`` (the trace's uuid), ``step``, ``at``
(seconds since the epoch) and ``parent`` (the uuid of the run that started this one, or None).
Exactly one Finished or Failed comes, last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from mlango.core.quick import maker, quick
from mlango.core.values import to_json

if TYPE_CHECKING:
    from mlango.core.run import AgentRun

VERSION = 1

E = TypeVar("E", bound="Event")


def iso(at: float) -> str:
    """Return seconds since the epoch as ISO 8601 text, in UTC."""
    second = int(at)
    micros = round((at - second) * 1e6)
    if not 0 < micros < 1_000_000:  # written without a fraction, or of the next second
        return datetime.fromtimestamp(at, UTC).isoformat()
    return f"{_second(second)}.{micros:06}+00:00"


@lru_cache(maxsize=8)
def _second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")


@dataclass(frozen=True, slots=True)
class Event:
    """The base of all events."""

    kind: ClassVar[str] = ""
    made: ClassVar[Callable[..., Any]]  # makes an event of all its fields, fast

    seq: int
    run: str
    step: int
    at: float
    parent: str | None

    def describe(self) -> dict[str, Any]:
        """Return the event as JSON-safe data, by the layout of version ``v``."""
        head = {
            "v": VERSION,
            "kind": self.kind,
            "seq": self.seq,
            "run": self.run,
            "step": self.step,
            "at": iso(self.at),
        }
        if self.parent is not None:
            head["parent"] = self.parent
        return head | self.payload()

    def payload(self) -> dict[str, Any]:
        """Return the fields of this kind of event, JSON-safe."""
        own = self.__class__.__annotations__
        return {name: to_json(getattr(self, name)) for name in own if name != "kind"}


def event(cls: type[E]) -> type[E]:
    """Make a frozen, slotted dataclass one of which a run makes many."""
    cls = quick(cls)
    cls.made = maker(cls)
    return cls


@event
@dataclass(frozen=True, slots=True)
class Started(Event):
    """The run begins; first of all events."""

    kind: ClassVar[str] = "started"

    agent: str
    trace: str
    session_id: str
    message: str


@event
@dataclass(frozen=True, slots=True)
class Thinking(Event):
    """The model is asked; its answer may take a while."""

    kind: ClassVar[str] = "thinking"

    model: str


@event
@dataclass(frozen=True, slots=True)
class TextChunk(Event):
    """A piece of the answer's text."""

    kind: ClassVar[str] = "text_chunk"

    text: str


@event
@dataclass(frozen=True, slots=True)
class ReasoningChunk(Event):
    """A piece of the model's thinking."""

    kind: ClassVar[str] = "reasoning_chunk"

    text: str


@event
@dataclass(frozen=True, slots=True)
class ToolCallChunk(Event):
    """A piece of a tool call's arguments, as JSON text; ``index`` counts the calls."""

    kind: ClassVar[str] = "tool_call_chunk"

    index: int
    tool_call_id: str
    name: str
    arguments: str


@event
@dataclass(frozen=True, slots=True)
class ToolCalled(Event):
    """A tool is about to run. ``arguments`` is a dict, or the text that is not one."""

    kind: ClassVar[str] = "tool_called"

    name: str
    arguments: Any
    tool_call_id: str


@event
@dataclass(frozen=True, slots=True)
class ToolProgress(Event):
    """A running tool tells how far it is."""

    kind: ClassVar[str] = "tool_progress"

    name: str
    tool_call_id: str
    progress: Any


@event
@dataclass(frozen=True, slots=True)
class ToolFinished(Event):
    """A tool returned, failed or was skipped. ``content`` is what the model reads.

    ``error_type`` is empty, or ``validation``, ``unknown``, ``timeout``, ``skipped``,
    ``cancelled``, ``tool`` (a ToolError) or the name of the exception's class.
    """

    kind: ClassVar[str] = "tool_finished"

    name: str
    tool_call_id: str
    content: Any
    is_error: bool
    error_type: str
    duration_s: float
    details: Any = None


@event
@dataclass(frozen=True, slots=True)
class StepFinished(Event):
    """A model call and the tool calls it asked for are done.

    ``text`` is all that the model said, which the chunks have told piece by piece.
    """

    kind: ClassVar[str] = "step_finished"

    stop_reason: str
    input_tokens: int
    output_tokens: int
    text: str = ""


@event
@dataclass(frozen=True, slots=True)
class Retrying(Event):
    """A model call failed and is tried again after ``delay`` seconds."""

    kind: ClassVar[str] = "retrying"

    attempt: int
    max_retries: int
    delay: float
    error: str
    exception_type: str


@event
@dataclass(frozen=True, slots=True)
class FellBack(Event):
    """A model failed for good and another one is asked; both are ``provider/model``."""

    kind: ClassVar[str] = "fell_back"

    from_model: str
    to_model: str
    error: str
    exception_type: str


@event
@dataclass(frozen=True, slots=True)
class Steered(Event):
    """A message given with ``steer()`` was added to the conversation."""

    kind: ClassVar[str] = "steered"

    message: str


@event
@dataclass(frozen=True, slots=True)
class FollowedUp(Event):
    """A message given with ``follow_up()`` was added to the conversation."""

    kind: ClassVar[str] = "followed_up"

    message: str


@event
@dataclass(frozen=True, slots=True)
class Compacted(Event):
    """What the model reads was shortened, from about so many tokens to so many.

    A summary stands for the first ``covered`` messages; the results of the calls ``pruned``
    are left out. ``error`` says why there is no summary though one was wanted.
    """

    kind: ClassVar[str] = "compacted"

    strategy: str
    tokens_before: int
    tokens_after: int
    covered: int
    pruned: list[str]
    error: str


@event
@dataclass(frozen=True, slots=True)
class ArtifactAdded(Event):
    """A tool made a file; ``artifact`` is its id, by which it is downloaded."""

    kind: ClassVar[str] = "artifact_added"

    name: str
    mime_type: str
    size: int
    artifact: str


@event
@dataclass(frozen=True, slots=True)
class BudgetExceeded(Event):
    """A limit was reached. ``scope`` is ``run``, ``session`` or what a quota counts per."""

    kind: ClassVar[str] = "budget_exceeded"

    limit: str
    value: Any
    max: Any
    scope: str


@event
@dataclass(frozen=True, slots=True)
class GuardrailTripped(Event):
    """A guardrail refused the input, the output or, on ``tools``, a call of ``tool``."""

    kind: ClassVar[str] = "guardrail_tripped"

    name: str
    on: str
    reason: str
    tool: str


@event
@dataclass(frozen=True, slots=True)
class GuardrailRewrote(Event):
    """A guardrail changed the input, the output or, on ``tools``, the arguments of ``tool``."""

    kind: ClassVar[str] = "guardrail_rewrote"

    name: str
    on: str
    reason: str
    tool: str


@event
@dataclass(frozen=True, slots=True)
class ApprovalRequested(Event):
    """A tool call waits for someone with ``permission``; without one, for the run's user.

    ``arguments`` are those that will run, unless they are edited. ``asks`` is the kind of the
    approval: for a ``sign_in``, the arguments are the ``url`` and the ``label`` of where.
    """

    kind: ClassVar[str] = "approval_requested"

    approval: str
    name: str
    tool_call_id: str
    arguments: dict[str, Any]
    permission: str
    asks: str


@event
@dataclass(frozen=True, slots=True)
class ApprovalDecided(Event):
    """What was decided about a call takes effect.

    ``decision`` is ``approved``, ``rejected`` or ``expired``; ``note`` is what the person
    wrote.
    """

    kind: ClassVar[str] = "approval_decided"

    approval: str
    name: str
    tool_call_id: str
    decision: str
    note: str


@event
@dataclass(frozen=True, slots=True)
class QuestionAsked(Event):
    """The model asks the user something; ``options`` is None for a free answer."""

    kind: ClassVar[str] = "question_asked"

    approval: str
    tool_call_id: str
    question: str
    options: list[str] | None


@event
@dataclass(frozen=True, slots=True)
class HandedOff(Event):
    """Another agent goes on with the run. Both are told by their labels."""

    kind: ClassVar[str] = "handed_off"

    from_agent: str
    to_agent: str


@event
@dataclass(frozen=True, slots=True)
class Finished(Event):
    """The run ended, but did not fail; last of all events."""

    kind: ClassVar[str] = "finished"

    result: AgentRun

    @property
    def output(self) -> Any:
        return self.result.output

    @property
    def trace(self) -> str:
        return self.result.trace_uuid

    @property
    def tools_used(self) -> list[str]:
        return self.result.tools_used

    @property
    def usage(self) -> dict[str, Any]:
        return self.result.usage.describe()

    @property
    def error(self) -> str:
        return self.result.error

    def payload(self) -> dict[str, Any]:
        return self.result.describe()


@event
@dataclass(frozen=True, slots=True)
class Failed(Event):
    """The run failed; last of all events. ``error`` is safe to show."""

    kind: ClassVar[str] = "failed"

    error: str
    exception_type: str
    result: AgentRun

    def payload(self) -> dict[str, Any]:
        return {**self.result.describe(), "exception_type": self.exception_type}
