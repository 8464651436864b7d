"""How the events of a run are printed."""

from __future__ import annotations

import json
from typing import Protocol

from mlango.core.events import (
    ApprovalDecided,
    ApprovalRequested,
    ArtifactAdded,
    Compacted,
    Event,
    FellBack,
    FollowedUp,
    GuardrailRewrote,
    GuardrailTripped,
    HandedOff,
    QuestionAsked,
    Retrying,
    Steered,
    TextChunk,
    Thinking,
    ToolCalled,
    ToolFinished,
)
from mlango.core.messages import text_of
from mlango.core.run import AgentRun
from mlango.core.values import dumps
from mlango.exceptions import MlangoError
from mlango.management.terminal import DIM, RED, Screen, one_line

INDENT = "  "  # of what a sub-agent does


class Printer(Protocol):
    """Prints the events of a run, one after the other, and then how it ended."""

    def show(self, event: Event) -> None: ...

    def end(self, result: AgentRun, error: BaseException | None) -> None: ...


class JsonPrinter:
    """Prints every event as a line of JSON, in ASCII."""

    def __init__(self, out: Screen) -> None:
        self._out = out

    def show(self, event: Event) -> None:
        self._out.line(json.dumps(event.describe()))

    def end(self, result: AgentRun, error: BaseException | None) -> None:
        """Print nothing: the last event says it all."""


class TextPrinter:
    """Prints the answer to ``out`` while it arrives, and everything else to ``err``."""

    def __init__(self, out: Screen, err: Screen, *, show_steps: bool = False) -> None:
        self._out = out
        self._err = err
        self._show_steps = show_steps
        self._has_text = False

    def show(self, event: Event) -> None:
        is_own = event.parent is None  # and not of a sub-agent
        if isinstance(event, TextChunk) and is_own:
            self._out.write(event.text)
            self._has_text = True
        elif isinstance(event, Thinking | ToolCalled):
            self._out.fresh_line()
        if self._show_steps and (line := step_line(event)):
            indent = "" if is_own else INDENT
            self._err.short_line(f"{indent}{line}", RED if _is_error(event) else DIM)

    def end(self, result: AgentRun, error: BaseException | None) -> None:
        if result.text and not self._has_text:
            self._out.write(result.text)
        self._out.fresh_line()
        if result.error:
            self._err.line(result.error if error is None else reason(error), RED)
        tokens = result.usage.total_tokens
        self._err.line(
            f"{counted(result.steps, 'step')} · {counted(tokens, 'token')} · "
            f"trace {result.trace_uuid[:8]}",
            DIM,
        )


def counted(number: int, noun: str) -> str:
    """Return ``1 step`` or ``2 steps``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def reason(error: BaseException) -> str:
    """Return why a run failed, in full: who has a shell may know."""
    if isinstance(error, MlangoError) and str(error):
        return str(error)
    return f"{type(error).__name__}: {error}"


def step_line(event: Event) -> str:
    """Return one line about what the agent does, or an empty string."""
    match event:
        case Thinking():
            return f"step {event.step} · {event.model or 'model call'}"
        case ToolCalled():
            return f"→ {event.name} {one_line(_written(event.arguments))}"
        case ToolFinished():
            mark = "✗" if event.is_error else "✓"
            result = one_line(text_of(event.content))
            return f"{mark} {event.name} {event.duration_s:.2f} s {result}"
        case Retrying():
            return f"… {one_line(event.error)} Trying again in {event.delay:.1f} s."
        case FellBack():
            return f"… {one_line(event.error)} Asking {event.to_model}."
        case Steered() | FollowedUp():
            return f"· {one_line(event.message)}"
        case GuardrailTripped() | GuardrailRewrote():
            return f"! {event.name} {_done(event)}: {one_line(event.reason)}"
        case ApprovalRequested():
            what = "a sign-in" if event.asks == "sign_in" else "an approval"
            return f"? {event.name} waits for {what}"
        case ApprovalDecided():
            return f"· {event.name} {event.decision} {one_line(event.note)}".rstrip()
        case QuestionAsked():
            return f"? {one_line(event.question)}"
        case Compacted():
            tokens = f"{event.tokens_before:,} to {event.tokens_after:,} tokens"
            return f"· shortened from about {tokens} ({event.strategy})"
        case HandedOff():
            return f"⇒ {event.to_agent} goes on"
        case ArtifactAdded():
            return f"· {event.name} ({event.mime_type}, {counted(event.size, 'byte')})"
    return ""


def awaited(event: Event) -> str:
    """Return what is waited for after an event, or an empty string if that does not change."""
    match event:
        case Thinking():
            return event.model or "the model"
        case ToolCalled():
            return one_line(event.name)
    return ""


def _done(event: GuardrailTripped | GuardrailRewrote) -> str:
    verb = "refused" if isinstance(event, GuardrailTripped) else "rewrote"
    what = f"a call of {one_line(event.tool)}" if event.tool else f"the {event.on}"
    return f"{verb} {what}"


def _is_error(event: Event) -> bool:
    if isinstance(event, ToolFinished):
        return event.is_error
    return isinstance(event, GuardrailTripped)


def _written(arguments: object) -> str:
    return arguments if isinstance(arguments, str) else dumps(arguments)
