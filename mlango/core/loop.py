"""The loop: one async generator of events. Everything else consumes it.

Per step: limits → model call (streaming) → journal → tools side by side → journal →
steering, until there is an answer, a limit, an abort or a failure.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import replace
from decimal import Decimal
from time import monotonic, perf_counter, time
from typing import Any
from uuid import uuid4

from mlango.core.calls import CANCELLED as CANCELLED_CALL
from mlango.core.calls import CUT, Batch, refuse
from mlango.core.events import (
    Event,
    Failed,
    Finished,
    FollowedUp,
    ReasoningChunk,
    Retrying,
    Started,
    Steered,
    StepFinished,
    TextChunk,
    Thinking,
    ToolCallChunk,
)
from mlango.core.journal import LLM, Entry
from mlango.core.messages import assistant_message, open_calls, size, text_of
from mlango.core.provider import Completion, Delta, Message, ReasoningDelta, ToolCall
from mlango.core.run import CANCELLED, FAILED, FINISHED, STOPPED, Run
from mlango.core.usage import Usage
from mlango.core.values import clean, parse_json
from mlango.core.watch import Interrupted, TimedOut
from mlango.exceptions import ProviderError, ProviderTimeout

# After so many answers in a row that were cut inside a tool call, the run stops.
MAX_CUTS = 2
MAX_RETRY_DELAY = 60.0
NOT_REMEMBERED = ("history_limit", "refusal", "content_filter")


async def iterate(run: Run) -> AsyncGenerator[Event]:
    """Yield the events of ``run``, from Started to Finished or Failed."""
    run.watch.attach()
    if run.limits.run_timeout is not None:
        run.deadline = monotonic() + run.limits.run_timeout
    try:
        yield run.emit(Started, run.label, run.uuid, run.session_id, said_text(run.said))
        async with aclosing(_work(run)) as events:
            async for event in events:
                yield event
    except Interrupted:
        run.stop(CANCELLED, "cancelled", "The run was stopped.")
    except TimedOut:
        run.stop(STOPPED, "timeout", run.timeout_text())
    except Exception as error:  # noqa: BLE001 - the one place where a failure ends a run
        _fail(run, error)
    except BaseException:  # the reader left, or its task was cancelled
        run.stop(CANCELLED, "cancelled", "The run was stopped.")
        raise
    finally:
        await _end(run)
    for event in run.drain():
        yield event
    yield _last(run)


def said_text(said: list[Message]) -> str:
    """Return the text of what was said, for people."""
    return "\n".join(text_of(message["content"]) for message in said)


def _fail(run: Run, error: Exception) -> None:
    name = type(error).__name__
    if isinstance(error, ProviderError) or run.disclose_errors:
        text = clean(str(error) or name)
    else:
        text = f"The run failed with {name} (reference {run.uuid[:8]})."
    run.exception = error
    run.stop(FAILED, "error", text)


def _last(run: Run) -> Event:
    result = run.result()
    if run.status == FAILED:
        return run.emit(Failed, run.error, type(run.exception).__name__, result)
    return run.emit(Finished, result)


async def _end(run: Run) -> None:
    """Settle what is open and store the run. Goes on when its caller is cancelled."""
    run.watch.close()
    await asyncio.shield(run.spawn(_store(run)))


async def _store(run: Run) -> None:
    for _ in refuse(run, open_calls(run.messages), CANCELLED_CALL, "cancelled"):
        pass
    try:
        if run.memory and run.memory_key and _is_remembered(run):
            turn = [*run.said, *run.messages[len(run.history) + len(run.said) :]]
            await run.memory.aappend(run.memory_key, turn)
    except Exception as error:  # noqa: BLE001 - what was done must be stored all the same
        _fail(run, error)
    finally:
        await run.journal.close(run)
        if run.turn is not None:
            await run.turn.release(run)
        if run.release is not None:
            await run.release(run)


def _is_remembered(run: Run) -> bool:
    return run.status != FAILED and run.stop_reason not in NOT_REMEMBERED


async def _work(run: Run) -> AsyncGenerator[Event]:
    await run.spawn(_begin(run))
    while True:
        for event in _hear_steering(run):
            yield event
        if _must_stop(run):
            return
        run.step += 1
        async with aclosing(_ask(run)) as events:
            async for event in events:
                yield event
        if run.reply is None:  # steered or stopped before the model said anything
            continue
        calls = _take(run, run.reply)
        if calls and run.status == "running":
            async with aclosing(_act(run, calls)) as events:
                async for event in events:
                    yield event
        if run.journal.wants_sync:
            await run.spawn(run.journal.sync())
        usage = run.reply.usage
        yield run.emit(
            StepFinished, run.reply.stop_reason, usage.input_tokens, usage.output_tokens
        )
        if run.status != "running":
            return
        if calls or run.steering or run.reply.stop_reason == Completion.PAUSE_TURN:
            continue
        if not run.follow_ups:
            run.stop(FINISHED, "end_turn")
            return
        said = run.next_queued(run.follow_ups, run.follow_up_mode)
        run.hear(said, "follow_up")
        yield run.emit(FollowedUp, said_text(said))


async def _begin(run: Run) -> None:
    """Take the session's turn, recall what was said before, and open the trace."""
    if run.turn is not None:
        await run.turn.take(run)
    if run.memory is not None and run.memory_key is not None:
        run.history = await run.memory.aload(run.memory_key)
    if run.resolve is not None:
        await run.resolve(run)
    run.messages = [*run.history, *run.said]
    run.chars = sum(map(size, run.messages))
    run.call_ids = {
        call["id"] for message in run.messages for call in message.get("tool_calls") or ()
    }
    await run.journal.open(run)


def _hear_steering(run: Run) -> Iterator[Event]:
    while run.steering:
        said = run.next_queued(run.steering, run.steering_mode)
        run.hear(said, "steer")
        yield run.emit(Steered, said_text(said))
        if run.steering_mode != "all":
            return


def _must_stop(run: Run) -> bool:
    """Stop the run if it was told to or has used up what it may."""
    limits = run.limits
    if run.aborted:
        run.stop(CANCELLED, "cancelled", "The run was stopped.")
    elif limits.max_steps is not None and run.step >= limits.max_steps:
        run.stop(STOPPED, "max_steps", f"Stopped after {run.step} steps (max_steps).")
    elif limits.max_history_chars is not None and run.chars > limits.max_history_chars:
        run.stop(
            STOPPED,
            "history_limit",
            f"Stopped: the conversation has {run.chars} characters, more than "
            f"{limits.max_history_chars} (MAX_MESSAGE_HISTORY_CHARS).",
        )
    elif run.deadline is not None and monotonic() >= run.deadline:
        run.stop(STOPPED, "timeout", run.timeout_text())
    return run.status != "running"


async def _ask(run: Run) -> AsyncGenerator[Event]:
    """Call the model, again after an error that may pass; leave its answer in ``reply``."""
    attempt = 0
    while True:
        try:
            async with aclosing(_attempt(run)) as events:
                async for event in events:
                    yield event
            return
        except ProviderError as error:
            attempt += 1
            delay = _retry_delay(run, error, attempt)
            if delay is None:
                raise
            name = type(error).__name__
            retries = run.limits.max_retries
            yield run.emit(Retrying, attempt, retries, delay, clean(str(error)), name)
        run.slept += delay
        await run.watch.wait(asyncio.sleep(delay), run.deadline)


def _retry_delay(run: Run, error: ProviderError, attempt: int) -> float | None:
    """Return how many seconds to wait before the next attempt; None to give up."""
    limits = run.limits
    if run.released or not error.retryable or attempt > limits.max_retries:
        return None
    delay = error.retry_after
    if delay is None:
        delay = random.uniform(0, limits.retry_base_delay * 2 ** (attempt - 1))
    delay = min(delay, MAX_RETRY_DELAY)
    budget = limits.retry_max_elapsed
    return None if budget is not None and run.slept + delay > budget else delay


async def _attempt(run: Run) -> AsyncGenerator[Event]:
    """Call the model once."""
    yield run.emit(Thinking, run.model)
    call = ModelCall(run)
    run.reply, run.released = None, False
    stream = run.provider.astream(
        model=run.model,
        messages=run.messages,
        system=run.system,
        tools=run.toolbox.schemas or None,
        **run.request_options,
    )
    try:
        async with aclosing(stream):
            async for event in call.events(stream):
                yield event
    except Interrupted as interruption:
        call.write(error="cancelled")
        if not interruption.steered:
            raise
    except TimedOut:
        if run.deadline is not None and monotonic() >= run.deadline:
            call.write(error="timeout")
            raise
        error = call.timeout_error()
        call.write(error=error)
        raise error from None
    except ProviderError as error:
        error.text = error.text or "".join(call.texts)
        call.write(error=error)
        raise
    except BaseException as error:
        call.write(error=error)
        raise


class ModelCall:
    """One attempt at a model call: what arrived, and when."""

    __slots__ = ("clock", "deadline", "first", "run", "started_at", "texts")

    def __init__(self, run: Run) -> None:
        self.run = run
        self.texts: list[str] = []
        self.started_at = time()
        self.clock = perf_counter()
        self.first: float | None = None
        self.deadline = _earliest(run.deadline, run.limits.model_timeout, monotonic())

    async def events(self, stream: AsyncIterator[Delta]) -> AsyncGenerator[Event]:
        """Pass on the deltas of ``stream``; at its Completion, set the run's reply."""
        run, texts, wait = self.run, self.texts, self.run.watch.wait
        chunk_timeout = run.limits.chunk_timeout
        run.watch.steerable = True
        while True:
            if run.aborted:  # by the reader of the last event, while nothing was waited for
                raise Interrupted
            deadline = _earliest(self.deadline, chunk_timeout, monotonic())
            try:
                delta = await wait(anext(stream), deadline)
            except StopAsyncIteration:
                raise ProviderError(
                    f"The provider {run.provider.name!r} ended its stream without a Completion.",
                    provider=run.provider.name,
                ) from None
            if isinstance(delta, Completion):
                self.write(delta)
                return
            if not run.released:
                run.released, run.watch.steerable = True, False
                self.first = perf_counter() - self.clock
            if isinstance(delta, str):
                texts.append(delta)
                yield run.emit(TextChunk, clean(delta))
            elif isinstance(delta, ReasoningDelta):
                yield run.emit(ReasoningChunk, clean(delta.text))
            else:
                yield run.emit(
                    ToolCallChunk, delta.index, delta.id, delta.name, clean(delta.arguments)
                )

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
    if run.provider.offline:
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


def _is_object(text: str) -> bool:
    try:
        return isinstance(parse_json(text), dict)
    except ValueError:
        return False


def _with_id(run: Run, call: ToolCall) -> ToolCall:
    if call.id and call.id not in run.call_ids:
        run.call_ids.add(call.id)
        return call
    fresh = ToolCall(f"call_{uuid4().hex[:24]}", call.name, call.arguments)
    run.call_ids.add(fresh.id)
    return fresh


def _take(run: Run, reply: Completion) -> list[ToolCall]:
    """Note what the answer means for the run; return the tool calls to answer."""
    if reply.text or not reply.tool_calls:
        run.text = clean(reply.text)
    reason = reply.stop_reason
    if reason in (Completion.REFUSAL, Completion.CONTENT_FILTER):
        run.stop(STOPPED, reason, clean(reply.refusal) or f"The model refused ({reason}).")
        return []
    run.cuts = run.cuts + 1 if reason == Completion.MAX_TOKENS else 0
    if run.cuts and (not reply.tool_calls or run.cuts > MAX_CUTS):
        run.stop(STOPPED, reason, "The answer was cut at its length limit (max_tokens).")
        return []
    return reply.tool_calls


async def _act(run: Run, calls: list[ToolCall]) -> AsyncGenerator[Event]:
    """Answer the tool calls of one assistant turn."""
    if run.cuts:
        for event in refuse(run, calls, CUT, "cut"):
            yield event
        return
    async with aclosing(Batch(run, calls).events()) as events:
        async for event in events:
            yield event
