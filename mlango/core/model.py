"""One model call: what is asked, what arrives and when, and how it is written down."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Awaitable
from dataclasses import replace
from decimal import Decimal
from time import monotonic, time
from typing import Any, NoReturn
from uuid import uuid4

from mlango.core.controls import Halt
from mlango.core.events import Event, ReasoningChunk, TextChunk, ToolCallChunk
from mlango.core.journal import LLM, Entry
from mlango.core.messages import assistant_message
from mlango.core.provider import (
    Completion,
    Delta,
    Provider,
    ReasoningDelta,
    ToolCall,
    ToolCallDelta,
    pieces,
)
from mlango.core.run import Run
from mlango.core.tasks import failure_of
from mlango.core.usage import Usage
from mlango.core.values import clean
from mlango.core.watch import NEVER, Interrupted, TimedOut
from mlango.exceptions import ProviderError, ProviderTimeout

NOTHING = Decimal(0)


class ModelCall:
    """One attempt at a model call: what arrived, and when."""

    __slots__ = (
        "ahead",
        "answer",
        "clock",
        "deadline",
        "first",
        "held",
        "is_guarded",
        "patience",
        "request",
        "run",
        "started_at",
        "stream",
        "texts",
        "until",
        "written",
    )

    def __init__(self, run: Run) -> None:
        bounds, provider = run.bounds, run.provider
        self.run = run
        self.texts: list[str] = []
        self.ahead: deque[Delta] = deque()
        self.held: list[Delta] = []  # what controls keep from the reader, for now
        self.answer: Completion | None = None  # before it was checked
        self.is_guarded = bool(run.controls.holds or run.controls.after_model)
        self.started_at = time()
        self.clock = now = monotonic()
        self.deadline = min(run.deadline, now + (bounds.model_timeout or NEVER))
        self.patience = bounds.chunk_timeout or NEVER
        # Of the first wait; the others are counted from when they begin.
        self.until: float | None = min(self.deadline, now + self.patience)
        self.first: float | None = None
        self.written = False
        self.request = {
            "model": run.model,
            "messages": run.messages if run.view is None else run.view,
            "system": run.system,
            "tools": run.toolbox.schemas or None,
            **run.request_options,
        }
        run.reply, run.released, run.watch.steerable = None, False, True
        run.is_muted = False
        self.stream: AsyncGenerator[Delta] | None = None
        # A provider that answers in one piece needs no stream, which costs to open.
        if type(provider).astream is not Provider.astream:
            self.stream = provider.astream(**self.request)

    async def next(self) -> Event | None:
        """Return the next event of the answer; None when it is complete, or was interrupted.

        Raise the ProviderError of a call that failed.
        """
        run = self.run
        try:
            # By the reader of the last event, while nothing was waited for.
            if run.aborted or (run.is_hurried and not run.released):
                raise Interrupted(steered=not run.aborted)
            if self.ahead:
                delta = self.ahead.popleft()
            else:
                until = self.until or min(self.deadline, monotonic() + self.patience)
                self.until = None
                delta = await run.watch.wait(self._receive(), until)
            if self.is_guarded and self.answer is None:
                delta = await self._cleared(delta)
        except Interrupted as interruption:
            self.write(error="cancelled")
            if not interruption.steered:
                raise
            return None
        except TimedOut:
            self._time_out()
        except StopAsyncIteration:
            self._fail(self._ended_early())
        except ProviderError as error:
            self._fail(error)
        except BaseException as error:
            self.write(error=error)
            if failure := failure_of(error):
                raise failure from error
            raise
        if isinstance(delta, Completion):
            self.write(delta)
            return None
        return self._event(delta)

    async def _cleared(self, delta: Delta) -> Delta:
        """Return the first piece that the run's controls let out, be it only the answer."""
        controls = self.run.controls
        held = self.held = [delta]
        while not isinstance(delta, Completion) and any(h(self.run) for h in controls.holds):
            delta = self.ahead.popleft() if self.ahead else await self._next_held()
            held.append(delta)
        if isinstance(delta, Completion):
            self.answer = checked = delta
            for after in controls.after_model:
                checked = await after(self.run, checked)
            if self.run.is_muted:
                held = [checked]
            elif checked is not delta:
                held = pieces(checked) if len(held) > 1 else [checked]
        first, *rest = held
        self.held = []
        self.ahead.extendleft(reversed(rest))
        return first

    async def _next_held(self) -> Delta:
        deadline = min(self.deadline, monotonic() + self.patience)
        return await self.run.watch.wait(self._receive(), deadline)

    def _receive(self) -> Awaitable[Delta]:
        return self._whole() if self.stream is None else self.stream.__anext__()

    async def _whole(self) -> Delta:
        """Return the first piece of an answer that comes in one, and keep the others."""
        completion = await self.run.provider.acomplete(**self.request)
        if completion.__class__ is not Completion:
            self._refuse(completion, "acomplete() returns a Completion")
        if not completion.text and not completion.reasoning:
            return completion
        first, *rest = pieces(completion)
        self.ahead.extend(rest)
        return first

    def _event(self, delta: Any) -> Event:
        run = self.run
        if not run.released:
            run.released, run.watch.steerable = True, False
            self.first = monotonic() - self.clock
        if isinstance(delta, str):
            self.texts.append(delta)
            return run.emit(TextChunk, clean(delta))
        if isinstance(delta, ReasoningDelta):
            return run.emit(ReasoningChunk, clean(delta.text))
        if not isinstance(delta, ToolCallDelta):
            self._refuse(delta, "astream() yields texts, deltas and, at last, a Completion")
        return run.emit(ToolCallChunk, delta.index, delta.id, delta.name, clean(delta.arguments))

    async def close(self) -> None:
        """End the provider's stream. A call that was left on its way is written down as such."""
        self.run.watch.steerable = False
        if not self.written:
            self.write(error="cancelled")
        if self.stream is not None:
            await self.stream.aclose()

    def _time_out(self) -> NoReturn:
        if monotonic() >= self.run.deadline:
            self.write(error="timeout")
            raise TimedOut
        self._fail(self.timeout_error())

    def _fail(self, error: ProviderError) -> NoReturn:
        # What controls wanted to check is not told by an error either.
        arrived = "" if self.run.controls.after_model else error.text or _text_of(self.held)
        error.text = arrived or "".join(self.texts)
        self.write(error=error)
        raise error

    def _refuse(self, sent: Any, right: str) -> NoReturn:
        """Fail a call whose provider does not do as providers must."""
        name, kind = self.run.provider.name, type(sent).__name__  # not itself: this is told
        self._fail(
            ProviderError(f"The provider {name!r} gave a {kind}, but {right}.", provider=name)
        )

    def _ended_early(self) -> ProviderError:
        name = self.run.provider.name
        return ProviderError(
            f"The provider {name!r} ended its stream without a Completion.", provider=name
        )

    def timeout_error(self) -> ProviderTimeout:
        bounds, name = self.run.bounds, self.run.provider.name
        late = monotonic() >= self.deadline
        what = "end its answer" if late else "send anything"
        seconds = bounds.model_timeout if late else bounds.chunk_timeout
        return ProviderTimeout(
            f"The provider {name!r} did not {what} for {seconds:g} seconds.", provider=name
        )

    def write(self, completion: Completion | None = None, error: Any = None) -> None:
        """Write the call down; with a completion, take it as the reply."""
        run = self.run
        self.written = True
        usage = cost = message = None
        if answer := completion or self.answer:  # a refused answer has its price too
            usage = answer.usage
            cost = NOTHING if run.provider.is_free else _price(run, usage)
            run.count(usage, cost)
        if completion is not None:
            run.reply = completion = _normalised(run, completion)
            message = assistant_message(completion, run.provider.name)
            run.add(message)
        elif self.texts and not isinstance(error, ProviderError) and not self._is_repeated(error):
            # What the reader has seen stays in the conversation.
            message = {"role": "assistant", "content": clean("".join(self.texts))}
            run.text = message["content"]
            run.add(message)
        if not run.journal.writes:
            return
        run.journal.write(
            Entry(
                LLM,
                run.model,
                run.next_ordering(),
                run.step,
                self.started_at,
                monotonic() - self.clock,
                self._input(),
                message,
                "",
                _error_text(error),
                _error_type(error),
                usage,
                cost,
                self._attributes(completion),
            )
        )

    def _is_repeated(self, error: Any) -> bool:
        """Return whether another process makes this call again."""
        return error == "cancelled" and self.run.is_kept

    def _input(self) -> dict[str, Any]:
        run = self.run
        count = len(run.messages) - (1 if run.reply is not None else 0)
        return {"messages": count, **run.request_options}

    def _attributes(self, completion: Completion | None) -> dict[str, Any]:
        attributes: dict[str, Any] = {"provider": self.run.provider.name}
        if completion is not None:
            attributes["stop_reason"] = completion.stop_reason
            if completion.model:
                attributes["response_model"] = completion.model
        if self.first is not None:
            attributes["ttft_s"] = self.first
        return attributes


def _text_of(deltas: list[Delta]) -> str:
    return "".join(delta for delta in deltas if isinstance(delta, str))


def _price(run: Run, usage: Usage) -> Decimal | None:
    return run.price(run.provider.name, run.model, usage) if run.price else None


def _error_type(error: Any) -> str:
    if isinstance(error, Halt):
        return error.reason
    return type(error).__name__ if isinstance(error, BaseException) else (error or "")


def _error_text(error: Any) -> str:
    if isinstance(error, Halt):
        return clean(str(error))
    if isinstance(error, ProviderError):
        return clean(f"{type(error).__name__}: {error}")
    if isinstance(error, BaseException):
        return clean(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
    return error or ""


def _normalised(run: Run, completion: Completion) -> Completion:
    """Return the answer with ids of tool calls that are unique in the conversation."""
    calls, seen = completion.tool_calls, run.call_ids
    for index, call in enumerate(calls):
        if not call.id or call.id in seen:
            calls = [*calls]
            call = calls[index] = ToolCall(f"call_{uuid4().hex[:24]}", call.name, call.arguments)
        seen.add(call.id)
    return completion if calls is completion.tool_calls else replace(completion, tool_calls=calls)
