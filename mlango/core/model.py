"""One model call: what is asked, what arrives and when, and how it is written down."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import replace
from decimal import Decimal
from time import monotonic, perf_counter, time
from typing import Any, NoReturn
from uuid import uuid4

from mlango.core.events import Event, ReasoningChunk, TextChunk, ToolCallChunk
from mlango.core.journal import LLM, Entry
from mlango.core.messages import assistant_message
from mlango.core.provider import (
    Completion,
    Delta,
    Message,
    Provider,
    ReasoningDelta,
    ToolCall,
    pieces,
)
from mlango.core.run import Run
from mlango.core.usage import Usage
from mlango.core.values import clean
from mlango.core.watch import Interrupted, TimedOut
from mlango.exceptions import ProviderError, ProviderTimeout


class ModelCall:
    """One attempt at a model call: what arrived, and when."""

    __slots__ = (
        "ahead",
        "clock",
        "deadline",
        "first",
        "request",
        "run",
        "started_at",
        "stream",
        "texts",
        "written",
    )

    def __init__(self, run: Run) -> None:
        self.run = run
        self.texts: list[str] = []
        self.ahead: deque[Delta] = deque()
        self.started_at = time()
        self.clock = perf_counter()
        self.first: float | None = None
        self.written = False
        self.deadline = _earliest(run.deadline, run.limits.model_timeout, monotonic())
        self.request = {
            "model": run.model,
            "messages": run.messages,
            "system": run.system,
            "tools": run.toolbox.schemas or None,
            **run.request_options,
        }
        run.reply, run.released, run.watch.steerable = None, False, True
        # A provider that answers in one piece needs no stream, which costs to open.
        streams = type(run.provider).astream is not Provider.astream
        self.stream = run.provider.astream(**self.request) if streams else None

    async def next(self) -> Event | None:
        """Return the next event of the answer; None when it is complete, or was interrupted.

        Raise the ProviderError of a call that failed.
        """
        run = self.run
        try:
            if run.aborted:  # by the reader of the last event, while nothing was waited for
                raise Interrupted
            delta = self.ahead.popleft() if self.ahead else await self._receive()
        except Interrupted as interruption:
            self.write(error="cancelled")
            if not interruption.steered:
                raise
            return None
        except TimedOut:
            self._time_out()
        except ProviderError as error:
            error.text = error.text or "".join(self.texts)
            self.write(error=error)
            raise
        except BaseException as error:
            self.write(error=error)
            raise
        if isinstance(delta, Completion):
            self.write(delta)
            return None
        return self._event(delta)

    async def _receive(self) -> Delta:
        run, stream = self.run, self.stream
        deadline = _earliest(self.deadline, run.limits.chunk_timeout, monotonic())
        if stream is None:
            completion = await run.watch.wait(run.provider.acomplete(**self.request), deadline)
            self.ahead.extend(pieces(completion))
            return self.ahead.popleft()
        try:
            return await run.watch.wait(anext(stream), deadline)
        except StopAsyncIteration:
            name = run.provider.name
            raise ProviderError(
                f"The provider {name!r} ended its stream without a Completion.", provider=name
            ) from None

    def _event(self, delta: Any) -> Event:
        run = self.run
        if not run.released:
            run.released, run.watch.steerable = True, False
            self.first = perf_counter() - self.clock
        if isinstance(delta, str):
            self.texts.append(delta)
            return run.emit(TextChunk, clean(delta))
        if isinstance(delta, ReasoningDelta):
            return run.emit(ReasoningChunk, clean(delta.text))
        return run.emit(ToolCallChunk, delta.index, delta.id, delta.name, clean(delta.arguments))

    async def close(self) -> None:
        """End the provider's stream. A call that was left on its way is written down as such."""
        if not self.written:
            self.write(error="cancelled")
        if self.stream is not None:
            await self.stream.aclose()

    def _time_out(self) -> NoReturn:
        if self.run.deadline is not None and monotonic() >= self.run.deadline:
            self.write(error="timeout")
            raise TimedOut
        error = self.timeout_error()
        self.write(error=error)
        raise error

    def timeout_error(self) -> ProviderTimeout:
        limits, name = self.run.limits, self.run.provider.name
        late = limits.model_timeout is not None and monotonic() >= (
            self.clock_start() + limits.model_timeout
        )
        what = "end its answer" if late else "send anything"
        seconds = limits.model_timeout if late else limits.chunk_timeout
        return ProviderTimeout(
            f"The provider {name!r} did not {what} for {seconds:g} seconds.", provider=name
        )

    def clock_start(self) -> float:
        return monotonic() - (perf_counter() - self.clock)

    def write(self, completion: Completion | None = None, error: Any = None) -> None:
        """Write the call down; with a completion, take it as the reply."""
        run = self.run
        self.written = True
        usage = cost = message = None
        if completion is not None:
            completion, message = _normalised(run, completion)
            run.reply, usage = completion, completion.usage
            cost = _cost(run, usage)
            run.count(usage, cost)
            run.add(message)
        elif self.texts and not isinstance(error, ProviderError):
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
                perf_counter() - self.clock,
                self._input(),
                message,
                "",
                _error_text(error),
                type(error).__name__ if isinstance(error, BaseException) else (error or ""),
                usage,
                cost,
                self._attributes(completion),
            )
        )

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


def _cost(run: Run, usage: Usage) -> Decimal | None:
    if run.provider.is_free:
        return Decimal(0)
    return run.price(run.provider.name, run.model, usage) if run.price else None


def _error_text(error: Any) -> str:
    if isinstance(error, ProviderError):
        return clean(f"{type(error).__name__}: {error}")
    if isinstance(error, BaseException):
        return clean(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
    return error or ""


def _earliest(deadline: float | None, timeout: float | None, now: float) -> float | None:
    if timeout is None:
        return deadline
    at = now + timeout
    return at if deadline is None or at < deadline else deadline


def _normalised(run: Run, completion: Completion) -> tuple[Completion, Message]:
    """Return the answer and its message with ids that are unique in the conversation."""
    if completion.tool_calls:
        calls = [_with_id(run, call) for call in completion.tool_calls]
        if calls != completion.tool_calls:
            completion = replace(completion, tool_calls=calls)
    message = assistant_message(completion, run.provider.name)
    for call in message.get("tool_calls") or ():
        function = call["function"]
        if not _is_object(function["arguments"]):
            function["arguments"] = "{}"
    return completion, message


def _refuse_constant(text: str) -> Any:
    raise ValueError(text)


# NaN and Infinity are no JSON, though Python reads them.
_decode = json.JSONDecoder(parse_constant=_refuse_constant).decode


def _is_object(text: str) -> bool:
    try:
        return isinstance(_decode(text), dict)
    except (ValueError, RecursionError):
        return False


def _with_id(run: Run, call: ToolCall) -> ToolCall:
    if call.id and call.id not in run.call_ids:
        run.call_ids.add(call.id)
        return call
    fresh = ToolCall(f"call_{uuid4().hex[:24]}", call.name, call.arguments)
    run.call_ids.add(fresh.id)
    return fresh
