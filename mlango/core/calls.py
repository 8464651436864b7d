"""The tool calls of one step: started in call order, side by side, answered in call order."""

from __future__ import annotations

import asyncio
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from time import monotonic, time
from typing import Any

from pydantic_core import from_json

from mlango.core.context import Context
from mlango.core.controls import Halt, Parked
from mlango.core.events import Event, ToolCalled, ToolFinished
from mlango.core.journal import TOOL, Entry
from mlango.core.messages import order_results, tool_message
from mlango.core.provider import ToolCall
from mlango.core.run import LEFT, Run, ToolOutcome
from mlango.core.slots import slots
from mlango.core.tasks import start
from mlango.core.threads import in_pool, in_thread, raised
from mlango.core.tools import Tool, render
from mlango.core.values import clean
from mlango.core.watch import NEVER, Interrupted, TimedOut
from mlango.exceptions import InvalidArguments, SignInRequired, ToolError

SKIPPED = "Skipped: the user sent a message before this call started. It did not run."
CANCELLED = "Cancelled: the run was stopped. The call did not end, or did not start."
CUT = (
    "Not run: the answer was cut at its length limit inside the tool calls. "
    "Repeat the call with shorter arguments."
)

# What a tool may return and have rendered right here: all else may hold a QuerySet, which is
# read on the way and so needs a thread.
PLAIN = {str, int, float, bool, type(None)}


def refuse(run: Run, calls: list[ToolCall], text: str, error_type: str) -> Iterator[Event]:
    """Answer ``calls`` with ``text`` without running them."""
    for call in calls:
        job = Job(call, None, run.ordering_of(call))
        yield finished(run, _add(run, job, job.end(text, error_type)))
    order_results(run.messages)  # others of the turn may have theirs


def cancel(run: Run, calls: list[ToolCall]) -> Iterator[Event]:
    """Answer ``calls`` that nobody makes any more."""
    for call in calls:
        job = Job(call, None, run.ordering_of(call))
        job.committed = run.journal.left(job.ordering)
        yield finished(run, _add(run, job, job.cancel()))
    order_results(run.messages)


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
        "committed",
        "deadline",
        "error",
        "is_approved",
        "is_parked",
        "is_saved",
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
        self.started_at = self.clock = 0.0
        self.is_approved = self.is_parked = self.is_saved = False
        self.timeout: float | None = None
        self.deadline = NEVER
        self.task: asyncio.Task[None] | None = None
        self.outcome: ToolOutcome | None = None
        self.committed: Any = None  # what an earlier process got of the tool, as rendered
        self.error = ""
        self.attributes: dict[str, Any] | None = None

    def end(self, content: Any, error_type: str = "", details: Any = None) -> ToolOutcome:
        """Set the outcome, once: what a tool returns after its time is up is not used."""
        if self.outcome is None:
            self.outcome = self.made(content, error_type, details)
        return self.outcome

    def cancel(self) -> ToolOutcome:
        """End a call that is not made any more, with what an earlier process got of it."""
        if self.committed is None:
            return self.end(CANCELLED, "cancelled")
        content, is_error, details = self.committed
        return self.end(content, "tool" if is_error else "", details)

    def made(self, content: Any, error_type: str = "", details: Any = None) -> ToolOutcome:
        """Return an outcome, which is not yet that of the call."""
        duration = monotonic() - self.clock if self.clock else 0.0
        call = self.call
        return ToolOutcome(
            call.id, call.name, content, bool(error_type), error_type, duration, details
        )


class Batch:
    """The calls of one assistant turn. Each gets its one result, whatever happens."""

    def __init__(self, run: Run, calls: list[ToolCall]) -> None:
        self.run = run
        lookup = run.toolbox.get
        self.jobs = [Job(call, lookup(call.name), run.ordering_of(call)) for call in calls]
        if run.is_resumed:
            for job in self.jobs:
                job.committed = run.journal.left(job.ordering)
        self.left = len(calls)  # the calls whose end was not told yet
        self.pending = deque(self.jobs)
        self.announced: Job | None = None
        self.is_parked = False
        self.running: list[Job] = []
        self.saving: asyncio.Task[Event | None] | None = None  # what ended last

    def next(self) -> Event | None:
        """Go on as far as the next event and return it; None while there is none."""
        run, running = self.run, self.running
        if self.saving is not None:
            return self._saved()
        if self.announced is not None:
            self._start(self.announced)
            self.announced = None
        if run.outbox:
            return run.outbox.popleft()
        for job in running:
            if job.outcome is not None or job.is_parked:
                return self._ended(job)
        if not self.pending:
            return None
        if self._may_start():
            self.announced = job = self.pending.popleft()
            return run.emit(ToolCalled, job.call.name, _told(run, job.call), job.call.id)
        if not running:
            self._skip(self.pending.popleft())
            return self.next()
        return None

    def _ended(self, job: Job) -> Event | None:
        """Take a job that has ended, and return the next event."""
        run = self.run
        self.running.remove(job)
        if job.outcome is None or self._is_left_open(job):
            self.left -= 1
            self.is_parked = self.is_parked or job.is_parked
            return self.next()
        if not run.journal.saves:
            self.left -= 1
            return finished(run, job.outcome)
        run.journal.write(_entry(run, job, job.outcome))
        job.is_saved = True
        # Written down with the outcome, and told when both are safe. Others wait until then.
        self.saving = start(self._save(finished(run, job.outcome)), run.context)
        return None

    async def _save(self, event: Event) -> Event | None:
        """Return an event once it is in the journal, None if it cannot be written there."""
        try:
            await self.run.journal.sync()
        except Halt as halt:
            self.run.halt(halt)
            return None
        return event

    def _saved(self) -> Event | None:
        assert self.saving is not None
        if not self.saving.done():
            return None
        event, self.saving = self.saving.result(), None
        self.left -= 1
        return event or self.next()

    def finish(self) -> None:
        """Add the results in call order, whatever the order in which the tools ended."""
        run = self.run
        if self.running:
            if run.status == "running":  # its reader has left
                run.cut()
            self._cancel()
        for job in self.jobs:
            if job.is_parked:
                run.orderings[job.call.id] = job.ordering
                continue
            outcome = job.outcome or job.cancel()
            if run.status == "running" or not self._is_left_open(job):
                _add(run, job, outcome)
        if run.is_resumed:  # an earlier process may have had the results of other calls
            order_results(run.messages)

    def _is_left_open(self, job: Job) -> bool:
        """Return whether a call that did not end is one for whoever goes on with the run."""
        if self.run.status not in LEFT or job.outcome is None:
            return False
        return job.outcome.error_type == "cancelled"

    def _may_start(self) -> bool:
        run, running = self.run, self.running
        if run.aborted or run.steering or run.status != "running":
            return False
        if not running:
            return True
        tool, other = self.pending[0].tool, running[0].tool
        if (tool and not tool.parallel) or (other and not other.parallel):
            return False
        return len(running) < run.bounds.max_parallel_tools

    def _start(self, job: Job) -> None:
        run = self.run
        self.running.append(job)
        if run.aborted:  # by the reader of the last event
            job.cancel()
            return
        job.started_at, job.clock = time(), monotonic()
        job.timeout = (job.tool and job.tool.timeout) or run.bounds.tool_timeout
        if job.timeout is not None:
            job.deadline = job.clock + job.timeout
        job.task = start(perform(run, job), run.context)

    async def rest(self) -> None:
        """Wait until a job ends, a deadline passes, or someone has something to tell."""
        run = self.run
        if self.saving is not None:
            await asyncio.wait([self.saving])
            return
        if not self.running or any(job.outcome or job.is_parked for job in self.running):
            return
        if not run.aborted:
            deadline = min(run.deadline, *(job.deadline for job in self.running))
            with suppress(TimedOut, Interrupted):
                await run.watch.wait(run.watch.waker(), deadline)
        self._end_overdue(monotonic())

    def _end_overdue(self, now: float) -> None:
        run = self.run
        if now >= run.deadline:
            run.time_out()
        if run.aborted or run.status != "running":
            self._cancel()
            return
        for job in self.running:
            if now >= job.deadline and job.outcome is None and not job.is_parked:
                job.end(
                    f"The tool {job.call.name!r} did not answer within {job.timeout:g} seconds. "
                    f"It may still have an effect.",
                    "timeout",
                )
                self._abandon(job)

    def _cancel(self) -> None:
        for job in self.running:
            if job.outcome is None:
                job.is_parked = False  # nobody is waited for any more
                job.cancel()
                self._abandon(job)

    def _abandon(self, job: Job) -> None:
        task = job.task
        if task is not None and not task.done():
            self.run.leave_behind(task)
            task.cancel()

    def _skip(self, job: Job) -> None:
        """End a job that is not to begin any more."""
        self.running.append(job)
        if self.run.aborted or self.run.status != "running":
            job.cancel()
        else:
            job.end(SKIPPED, "skipped")


def _add(run: Run, job: Job, outcome: ToolOutcome) -> ToolOutcome:
    """Add a result to the conversation and the journal."""
    run.add(tool_message(outcome.tool_call_id, outcome.content, outcome.is_error))
    run.tool_results.append(outcome)
    if run.journal.writes and not job.is_saved:
        run.journal.write(_entry(run, job, outcome))
    return outcome


def _entry(run: Run, job: Job, outcome: ToolOutcome) -> Entry:
    return Entry(
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
        attributes=_attributes(job, outcome),
    )


def _attributes(job: Job, outcome: ToolOutcome) -> dict[str, Any]:
    attributes = job.attributes or {}
    return attributes if outcome.details is None else attributes | {"details": outcome.details}


async def perform(run: Run, job: Job) -> None:
    """Run one tool call. Nothing that a tool raises gets past this."""
    tool = job.tool
    try:
        if tool is None:
            for look in run.controls.no_tool:
                await look(run, job)
            job.end(run.toolbox.unknown(job.call.name), "unknown")
            return
        if tool.permission:
            await _check_allowed(run, tool)
        _check_length(run, job.call.arguments)
        arguments = tool.parameters.validate(job.call.arguments)
        for before in run.controls.before_call:
            arguments = await before(run, job, arguments)
        if job.outcome is not None:
            return
        if tool.approval and not job.is_approved:
            raise ToolError(f"The tool {tool.name!r} needs an approval, which nobody gave.")
        result = job.committed or await _made(run, job, tool, arguments)
        content, is_error, details = result
        outcome = job.made(content, "tool" if is_error else "", details)
        for after in run.controls.after_call:
            outcome = await after(run, job, outcome)
        job.outcome = job.outcome or outcome
    except Parked:
        job.is_parked = job.outcome is None
    except Halt as halt:
        run.halt(halt)
        job.cancel()
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
    finally:
        run.watch.wake()


async def _check_allowed(run: Run, tool: Tool) -> None:
    """Raise ToolError unless the run's user may call the tool now."""
    allowed = getattr(run.user, "has_perm", None)
    if allowed is None or not await in_thread(allowed, tool.permission):
        raise ToolError(f"You may not call the tool {tool.name!r}.")


def _fail(run: Run, job: Job, error: BaseException) -> None:
    error = raised(error)
    name = type(error).__name__
    job.error = clean(f"{name}: {error}")
    trail = clean("".join(traceback.format_exception(error))[-8000:])
    job.attributes = {**(job.attributes or {}), "traceback": trail}
    text = (
        job.error
        if run.disclose_errors
        else (f"The tool failed with {name} (reference {run.uuid[:8]}-{job.ordering}).")
    )
    job.end(text, name)


def _told(run: Run, call: ToolCall) -> str | dict[str, Any]:
    """Return a call's arguments as readers are told them: a dict, or the text that is none."""
    arguments, limit = call.arguments, run.bounds.max_tool_args_chars
    if not isinstance(arguments, str) or (limit is not None and len(arguments) > limit):
        return arguments
    try:
        told = from_json(arguments, allow_inf_nan=False)
    except (TypeError, ValueError):  # the first for half a surrogate pair
        return arguments
    return told if isinstance(told, dict) else arguments


def _check_length(run: Run, arguments: Any) -> None:
    limit = run.bounds.max_tool_args_chars
    if limit is not None and isinstance(arguments, str) and len(arguments) > limit:
        raise InvalidArguments(
            f"Invalid arguments: {len(arguments)} characters, but at most {limit} are allowed."
        )


def _rendered(run: Run, job: Job, tool: Tool, value: Any) -> tuple[Any, bool, Any]:
    """Return what the model reads of a value, and note what the conversion lost."""
    notes: list[str] = []
    rendered = render(tool, value, run.bounds.max_tool_output_chars, notes)
    if notes:
        job.attributes = {**(job.attributes or {}), "notes": notes}
    return rendered


async def _made(run: Run, job: Job, tool: Tool, arguments: dict[str, Any]) -> Any:
    """Invoke a tool, and have its user sign in first where it asks for that."""
    invoke = _tried if tool.retries else _invoke
    try:
        return await invoke(run, job, tool, arguments)
    except SignInRequired as wanted:
        if job.outcome is None:  # else its time was up meanwhile
            for sign_in in run.controls.sign_in:
                await sign_in(run, job, wanted)
        raise


async def _tried(run: Run, job: Job, tool: Tool, arguments: dict[str, Any]) -> Any:
    """Invoke a tool again when it fails, as often as it may be, while its time lasts."""
    failed: list[str] = []
    while True:
        try:
            return await _invoke(run, job, tool, dict(arguments))
        except (ToolError, Parked, Halt):
            raise
        except Exception as error:
            failed.append(clean(f"{type(error).__name__}: {error}"))
            job.attributes = {**(job.attributes or {}), "attempts": failed}
            if len(failed) > tool.retries or run.aborted or monotonic() >= job.deadline:
                raise
        await asyncio.sleep(0)  # a tool that fails at once must not keep others waiting


async def _invoke(run: Run, job: Job, tool: Tool, arguments: dict[str, Any]) -> Any:
    """Return what the model reads of a call's result, as _rendered() does."""
    if tool.parameters.injected:
        context = Context(run, job.call, job.ordering)
        for name, what in tool.parameters.injected.items():
            arguments[name] = context if what == "context" else getattr(context, what)
    if tool.parameters.references:
        await in_thread(_fetch, run, job, tool, arguments)
    if not slots.take():
        await slots.wait(job.call.name, run.bounds.tool_queue_timeout)
    if tool.kind not in ("async", "async_generator"):
        return await _in_thread(run, job, tool, arguments)
    try:
        if tool.kind == "async":
            value = await tool.fn(**arguments)
        else:
            value = await _collect_async(run, job, tool.fn(**arguments))
    finally:
        slots.free()
    if type(value) in PLAIN:
        return _rendered(run, job, tool, value)
    return await in_thread(_rendered, run, job, tool, value)


def _fetch(run: Run, job: Job, tool: Tool, arguments: dict[str, Any]) -> None:
    """Put rows in the place of their keys; asks the database."""
    if run.fetch is None:
        raise ToolError(f"The tool {tool.name!r} works on rows, and there are none here.")
    context = Context(run, job.call, job.ordering)
    for name, reference in tool.parameters.references.items():
        if arguments.get(name) is not None:
            arguments[name] = run.fetch(context, reference, arguments[name])


async def _in_thread(run: Run, job: Job, tool: Tool, arguments: dict[str, Any]) -> Any:
    """Call a plain function. Its slot stays taken until the thread is done with it."""
    free = slots.once()
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
            free()

    work = partial(_in_transaction, run, job, call) if tool.is_transactional else call
    try:
        value = await (in_thread if tool.thread_sensitive else in_pool)(work)
    except Exception:
        value = await run.journal.committed(job.ordering) if tool.is_transactional else None
        if value is None:
            raise
    finally:
        if not entered:  # it may still be, just now
            free()
    if hasattr(value, "__await__"):
        return await in_thread(_rendered, run, job, tool, await value)
    return value


def _in_transaction(run: Run, job: Job, call: Callable[[], Any]) -> Any:
    """Keep what a call writes only if it ends well, and while someone still waits for it.

    The journal says so in the same transaction.
    """
    from django.db import transaction  # the core loads without the ORM

    with transaction.atomic():
        value = call()
        if job.outcome is not None:
            transaction.set_rollback(True)
        elif isinstance(value, tuple):  # not where a plain function has returned an awaitable
            content, is_error, details = value
            made = job.made(content, "tool" if is_error else "", details)
            job.is_saved = run.journal.commit_with(_entry(run, job, made))
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
