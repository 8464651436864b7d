"""The tool calls of one step: started in call order, side by side, answered in call order."""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections import deque
from collections.abc import Coroutine, Iterator
from time import monotonic, perf_counter, time
from typing import Any

from mlango.core.context import Context
from mlango.core.events import Event, ToolCalled, ToolFinished
from mlango.core.journal import TOOL, Entry
from mlango.core.messages import tool_message
from mlango.core.provider import ToolCall
from mlango.core.run import STOPPED, Run, ToolOutcome
from mlango.core.slots import slots
from mlango.core.threads import in_pool, in_thread
from mlango.core.tools import Tool, render
from mlango.core.values import clean
from mlango.exceptions import InvalidArguments, ToolError

SKIPPED = "Skipped: the user sent a message before this call started. It did not run."
CANCELLED = "Cancelled: the run was stopped. The call did not end, or did not start."
CUT = (
    "Not run: the answer was cut at its length limit inside the tool calls. "
    "Repeat the call with shorter arguments."
)


def refuse(run: Run, calls: list[ToolCall], text: str, error_type: str) -> Iterator[Event]:
    """Answer ``calls`` with ``text`` without running them."""
    for call in calls:
        job = Job(call, None, run.next_ordering())
        yield finished(run, _add(run, job, job.end(text, error_type)))


def finished(run: Run, outcome: ToolOutcome) -> Event:
    """Return the event of an outcome."""
    return run.emit(
        ToolFinished,
        outcome.name,
        outcome.tool_call_id,
        outcome.content,
        outcome.is_error,
        outcome.error_type,
        outcome.duration_s,
        outcome.details,
    )


class Job:
    """One tool call on its way."""

    __slots__ = (
        "attributes",
        "call",
        "clock",
        "deadline",
        "error",
        "ordering",
        "outcome",
        "started_at",
        "task",
        "timeout",
        "tool",
    )

    def __init__(self, call: ToolCall, tool: Tool | None, ordering: int) -> None:
        self.call = call
        self.tool = tool
        self.ordering = ordering
        self.started_at = 0.0
        self.clock = 0.0
        self.timeout: float | None = None
        self.deadline: float | None = None
        self.task: asyncio.Task[None] | None = None
        self.outcome: ToolOutcome | None = None
        self.error = ""
        self.attributes: dict[str, Any] | None = None

    def end(self, content: Any, error_type: str = "", details: Any = None) -> ToolOutcome:
        """Set the outcome, once: what a tool returns after its time is up is not used."""
        if self.outcome is None:
            duration = perf_counter() - self.clock if self.clock else 0.0
            call = self.call
            self.outcome = ToolOutcome(
                call.id, call.name, content, bool(error_type), error_type, duration, details
            )
        return self.outcome


class Batch:
    """The calls of one assistant turn. Each gets its one result, whatever happens."""

    def __init__(self, run: Run, calls: list[ToolCall]) -> None:
        self.run = run
        lookup = run.toolbox.get
        self.jobs = [Job(call, lookup(call.name), run.next_ordering()) for call in calls]
        self.pending = deque(self.jobs)
        self.running: list[Job] = []

    @property
    def is_active(self) -> bool:
        return bool(self.pending or self.running)

    def advance(self) -> Iterator[Event]:
        """Start what may start and take in what has ended."""
        yield from self._reap()
        while self._may_start():
            job = self.pending.popleft()
            yield self.run.emit(ToolCalled, job.call.name, job.call.arguments, job.call.id)
            self._start(job)
            yield from self._reap()
        if self.pending and not self.running:
            yield from self._skip(SKIPPED, "skipped")

    def finish(self) -> None:
        """Add the results in call order, whatever the order in which the tools ended."""
        self._cancel()
        for job in self.jobs:
            _add(self.run, job, job.end(CANCELLED, "cancelled"))

    def _may_start(self) -> bool:
        run, running = self.run, self.running
        if not self.pending or run.aborted or run.steering or run.status != "running":
            return False
        if not running:
            return True
        tool, other = self.pending[0].tool, running[0].tool
        if (tool and not tool.parallel) or (other and not other.parallel):
            return False
        return len(running) < run.limits.max_parallel_tools

    def _start(self, job: Job) -> None:
        job.started_at, job.clock = time(), perf_counter()
        job.timeout = (job.tool and job.tool.timeout) or self.run.limits.tool_timeout
        if job.timeout is not None:
            job.deadline = monotonic() + job.timeout
        job.task = start_task(perform(self.run, job), self.run)
        self.running.append(job)

    def _reap(self) -> Iterator[Event]:
        run = self.run
        if run.outbox:
            yield from run.drain()
        for job in self.running[:]:
            if job.outcome is not None:
                self.running.remove(job)
                yield finished(run, job.outcome)

    async def rest(self) -> None:
        """Wait until a job ends, a deadline passes, or someone has something to tell."""
        run = self.run
        tasks: list[Any] = [job.task for job in self.running if job.task and not job.task.done()]
        if len(tasks) < len(self.running):
            return
        deadlines = [run.deadline, *(job.deadline for job in self.running)]
        deadline = min((at for at in deadlines if at is not None), default=None)
        timeout = None if deadline is None else max(0.0, deadline - monotonic())
        if not run.aborted:
            tasks.append(run.watch.waker())
            await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        self._end_overdue(monotonic())

    def _end_overdue(self, now: float) -> None:
        run = self.run
        if run.deadline is not None and now >= run.deadline:
            run.stop(STOPPED, "timeout", run.timeout_text())
        if run.aborted or run.status != "running":
            self._cancel()
            return
        for job in self.running:
            if job.deadline is not None and now >= job.deadline and job.outcome is None:
                job.end(
                    f"The tool {job.call.name!r} did not answer within {job.timeout:g} seconds. "
                    f"It may still have an effect.",
                    "timeout",
                )
                self._abandon(job)

    def _cancel(self) -> None:
        for job in self.running:
            if job.outcome is None:
                job.end(CANCELLED, "cancelled")
                self._abandon(job)

    def _abandon(self, job: Job) -> None:
        task = job.task
        if task is not None and not task.done():
            # A strong reference: the loop keeps only weak ones to its tasks.
            self.run.stray.add(task)
            task.add_done_callback(self.run.stray.discard)
            task.cancel()

    def _skip(self, text: str, error_type: str) -> Iterator[Event]:
        while self.pending:
            job = self.pending.popleft()
            if self.run.aborted or self.run.status != "running":
                text, error_type = CANCELLED, "cancelled"
            yield finished(self.run, job.end(text, error_type))


def _add(run: Run, job: Job, outcome: ToolOutcome) -> ToolOutcome:
    """Add a result to the conversation and the journal."""
    run.add(tool_message(outcome.tool_call_id, outcome.content, outcome.is_error))
    run.tool_results.append(outcome)
    if not run.journal.writes:
        return outcome
    run.journal.write(
        Entry(
            TOOL,
            outcome.name,
            job.ordering,
            run.step,
            job.started_at or time(),
            outcome.duration_s,
            job.call.arguments,
            outcome.content,
            outcome.tool_call_id,
            job.error or (str(outcome.content) if outcome.is_error else ""),
            outcome.error_type,
            attributes=job.attributes or {},
        )
    )
    return outcome


if sys.version_info >= (3, 12):

    def start_task(coroutine: Coroutine[Any, Any, None], run: Run) -> asyncio.Task[None]:
        """Start a task in a context of its own; it runs at once, up to its first wait."""
        loop = asyncio.get_running_loop()
        return asyncio.Task(coroutine, loop=loop, context=run.context.copy(), eager_start=True)

else:

    def start_task(coroutine: Coroutine[Any, Any, None], run: Run) -> asyncio.Task[None]:
        """Start a task in a context of its own."""
        return asyncio.get_running_loop().create_task(coroutine, context=run.context.copy())


async def perform(run: Run, job: Job) -> None:
    """Run one tool call. Nothing that a tool raises gets past this."""
    tool = job.tool
    try:
        if tool is None:
            job.end(run.toolbox.unknown(job.call.name), "unknown")
            return
        if tool.permission or tool.approval:
            await _check_allowed(run, tool)
        arguments = tool.parameters.validate(_checked(run, job.call.arguments))
        content, is_error, details = await _invoke(run, job, tool, arguments)
        job.end(content, "tool" if is_error else "", details)
    except InvalidArguments as error:
        job.end(clean(str(error)), "validation")
    except ToolError as error:
        job.end(clean(str(error)), "tool")
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        _fail(run, job, error)
    # A tool may call sys.exit() or raise KeyboardInterrupt; in a task either would end the
    # whole event loop. A real Ctrl-C does not pass through here.
    except BaseException as error:  # noqa: BLE001
        _fail(run, job, error)


async def _check_allowed(run: Run, tool: Tool) -> None:
    """Raise ToolError unless the run's user may call the tool now."""
    if tool.approval:
        # Nobody can be asked yet, so a tool that needs somebody's yes does not run.
        raise ToolError(f"The tool {tool.name!r} needs an approval, which nobody can give here.")
    allowed = getattr(run.user, "has_perm", None)
    if allowed is None or not await in_thread(allowed, tool.permission):
        raise ToolError(f"You may not call the tool {tool.name!r}.")


def _fail(run: Run, job: Job, error: BaseException) -> None:
    name = type(error).__name__
    job.error = clean(f"{name}: {error}")
    job.attributes = {"traceback": clean("".join(traceback.format_exception(error))[-8000:])}
    text = (
        job.error
        if run.disclose_errors
        else (f"The tool failed with {name} (reference {run.uuid[:8]}-{job.ordering}).")
    )
    job.end(text, name)


def _checked(run: Run, arguments: Any) -> Any:
    limit = run.limits.max_tool_args_chars
    if limit is not None and isinstance(arguments, str) and len(arguments) > limit:
        raise InvalidArguments(
            f"Invalid arguments: {len(arguments)} characters, but at most {limit} are allowed."
        )
    return arguments


def _rendered(run: Run, job: Job, tool: Tool, value: Any) -> tuple[Any, bool, Any]:
    """Return what the model reads of a value, and note what the conversion lost."""
    notes: list[str] = []
    rendered = render(tool, value, run.limits.max_tool_output_chars, notes)
    if notes:
        job.attributes = {"notes": notes}
    return rendered


async def _invoke(run: Run, job: Job, tool: Tool, arguments: dict[str, Any]) -> Any:
    """Return what the model reads of a call's result, as _rendered() does."""
    if tool.parameters.injected:
        context = Context(run, job.call, job.ordering)
        for name, what in tool.parameters.injected.items():
            arguments[name] = context if what == "context" else getattr(context, what)
    if not slots.take():
        await slots.wait(job.call.name, run.limits.tool_queue_timeout)
    if tool.kind not in ("async", "async_generator"):
        return await _in_thread(run, job, tool, arguments)
    try:
        if tool.kind == "async":
            value = await tool.fn(**arguments)
        else:
            value = await _collect_async(run, job, tool.fn(**arguments))
    finally:
        slots.free()
    return await _render_async(run, job, tool, value)


async def _render_async(run: Run, job: Job, tool: Tool, value: Any) -> Any:
    # A QuerySet is read while it is rendered, which may be done in a thread only.
    if value is None or isinstance(value, str | int | float | dict | list):
        return _rendered(run, job, tool, value)
    return await in_thread(_rendered, run, job, tool, value)


async def _in_thread(run: Run, job: Job, tool: Tool, arguments: dict[str, Any]) -> Any:
    """Call a plain function. Its slot stays taken until the thread is done with it."""
    loop = asyncio.get_running_loop()
    entered = False

    def call() -> Any:
        nonlocal entered
        entered = True
        try:
            value = tool.fn(**arguments)
            if hasattr(value, "__next__"):
                value = _collect(run, job, value)
            return value if hasattr(value, "__await__") else _rendered(run, job, tool, value)
        finally:
            loop.call_soon_threadsafe(slots.free)

    try:
        value = await (in_thread if tool.thread_sensitive else in_pool)(call)
    finally:
        if not entered:
            slots.free()
    if hasattr(value, "__await__"):
        return await _render_async(run, job, tool, await value)
    return value


def _collect(run: Run, job: Job, generator: Any) -> Any:
    """Run a generator: what it yields is progress, what it returns is the result."""
    values: list[Any] = []
    while True:
        try:
            value = next(generator)
        except StopIteration as stop:
            return _joined(values) if stop.value is None else stop.value
        values.append(value)
        run.tell_progress(job.call, value)


async def _collect_async(run: Run, job: Job, generator: Any) -> Any:
    values: list[Any] = []
    async for value in generator:
        values.append(value)
        run.tell_progress(job.call, value)
    return _joined(values)


def _joined(values: list[Any]) -> Any:
    if values and all(isinstance(value, str) for value in values):
        return "".join(values)
    return values
