"""The streams of a run's events, which ``stream()`` and ``astream()`` return."""

from __future__ import annotations

import contextvars
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from django.utils.module_loading import import_string

from mlango.agents.resolve import place
from mlango.core.events import Event, Started, StepFinished, ToolCalled
from mlango.core.loop import iterate
from mlango.core.run import FAILED, LEFT, AgentRun, Run
from mlango.core.signals import agent_finished, agent_started, agent_step, tool_called
from mlango.exceptions import IdempotencyConflict, RunError, SessionBusy
from mlango.runtime.live import register
from mlango.runtime.sync import Call

if TYPE_CHECKING:
    from django.http import StreamingHttpResponse

SIGNALS = (agent_started, agent_step, tool_called, agent_finished)


class Steerable:
    """What both streams offer beside their events. Any thread may call these."""

    _run: Run

    @property
    def run(self) -> AgentRun:
        """The run so far; complete once the last event was read."""
        return self._run.result()

    def steer(self, message: Any, *, now: bool = False) -> None:
        """Have the agent read ``message`` before its next model call."""
        self._run.steer(message, now=now)

    def follow_up(self, message: Any) -> None:
        """Have the agent go on with ``message`` when it would otherwise be done."""
        self._run.follow_up(message)

    @property
    def uuid(self) -> str:
        """The trace's uuid, from the beginning on."""
        return self._run.uuid

    def keep_log(self) -> Self:
        """Have the events written down, for ``follow()``; call it before the first is read."""
        self._run.journal.keep_log(self._run)
        return self

    def abort(self) -> None:
        """Stop the run; what it has done is kept."""
        self._run.abort()


class AsyncRunStream(Steerable):
    """The events of a run, for ``async for``. Leaving it early stops the run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        register(run)
        if run.is_durable:  # other processes go on with it, and its readers with them
            self.keep_log()
        listened = any(signal.receivers for signal in SIGNALS)
        self._events = _announced(run) if listened else iterate(run)

    def __aiter__(self) -> AsyncGenerator[Event]:
        return self._events

    def __anext__(self) -> Any:
        return self._events.__anext__()

    def as_response(self) -> StreamingHttpResponse:
        """Return the events as server-sent events, for an async view under ASGI to return.

        Call it in the view; the run begins when the server reads.
        """
        # Serving lies floors above, so it is found by name.
        response: Any = import_string("mlango.serve.sse.response")
        return response(self)  # type: ignore[no-any-return]

    def enter_context(self) -> None:
        """Go on in the caller's context; where the stream was made may be over."""
        self._run.context = contextvars.copy_context()
        place(self._run)

    async def aclose(self) -> None:
        """Stop the run if it still goes on, and store it."""
        await self._events.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()


class RunStream(Steerable):
    """The events of a run, for ``for``. Leaving it early stops the run."""

    def __init__(self, source: AsyncRunStream, call: Call) -> None:
        self._run = source._run
        self._events = call.iterate(source.__aiter__())

    def __iter__(self) -> Iterator[Event]:
        return self._events

    def __next__(self) -> Event:
        return next(self._events)

    def close(self) -> None:
        """Stop the run if it still goes on, and store it."""
        self._events.close()  # type: ignore[attr-defined]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


async def result_of(stream: AsyncRunStream, *, raise_on_error: bool) -> AgentRun:
    """Read a stream to its end and return the run, or raise what made it fail."""
    async with aclosing(stream):
        async for _ in stream:
            pass
    result = stream.run
    if result.status in LEFT and stream._run.exception is None:
        raise RunError(f"Another process goes on with the run {result.trace_uuid}.", run=result)
    if result.status in LEFT or (result.status == FAILED and raise_on_error):
        raise_failure(stream._run, result)
    return result


def raise_failure(run: Run, result: AgentRun) -> None:
    """Raise what made a run fail, with the run on it; what mlango does not know, as RunError."""
    error = run.exception
    if isinstance(error, RunError | SessionBusy | IdempotencyConflict):
        error.run = result
        raise error
    raise RunError(f"{type(error).__name__}: {error}", run=result) from error


async def _announced(run: Run) -> AsyncGenerator[Event]:
    """Pass the events on and send the signals about them, in the run's own context."""
    async with aclosing(iterate(run)) as events:
        async for event in events:
            # Sub-agents tell their own, of which only the events pass here.
            is_own = event.run == run.uuid
            signal, arguments = _signal_of(run, event) if is_own else (None, {})
            if signal is not None and signal.receivers:
                await run.spawn(
                    signal.asend_robust(
                        type(run.agent), agent=run.agent, run=run, event=event, **arguments
                    )
                )
            yield event


def _signal_of(run: Run, event: Event) -> tuple[Any, dict[str, Any]]:
    if isinstance(event, ToolCalled):
        tool = run.toolbox.get(event.name)
        return (tool_called if tool else None), {"tool": tool, "arguments": event.arguments}
    if isinstance(event, Started):
        return agent_started, {}
    if isinstance(event, StepFinished):
        return agent_step, {}
    if event.kind in ("finished", "failed"):
        return agent_finished, {"result": event.result}  # type: ignore[attr-defined]
    return None, {}
