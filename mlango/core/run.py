"""A run: its state while it goes on, and the AgentRun that it leaves."""

from __future__ import annotations

import asyncio
import base64
import contextvars
import uuid as uuids
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from mimetypes import guess_extension
from time import perf_counter, time
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from mlango.core.controls import NO_CONTROLS, Controls, Halt
from mlango.core.events import ArtifactAdded, Event, ToolProgress
from mlango.core.journal import AGENT, Entry, Journal
from mlango.core.messages import size, text_of, user_messages
from mlango.core.numbers import plain
from mlango.core.options import Bounds
from mlango.core.provider import Completion, Message, Provider, ToolCall
from mlango.core.quick import quick
from mlango.core.tasks import contained, start
from mlango.core.usage import NO_USAGE, Usage
from mlango.core.values import to_json
from mlango.core.watch import NEVER, Interrupted, Watch
from mlango.exceptions import ToolError, WrongStatus

if TYPE_CHECKING:
    from mlango.core.context import Context
    from mlango.core.log import Log
    from mlango.core.lookups import Reference
    from mlango.core.memory import Memory, SessionKey
    from mlango.core.tools import Toolbox

E = TypeVar("E", bound=Event)

RUNNING = "running"
FINISHED, STOPPED, WAITING, CANCELLED, FAILED = (
    "finished",
    "stopped",
    "waiting",
    "cancelled",
    "failed",
)
# How a durable run is left by a process: for others to go on with, or because they do.
QUEUED, LOST = "queued", "lost"
LEFT = (QUEUED, LOST)
# Why a run can be told nothing any more, and what to do instead.
NOT_HEARING = {
    FINISHED: "has ended (finished). Start a new one.",
    STOPPED: "has ended (stopped). Start a new one, or go on with it by resume().",
    CANCELLED: "has ended (cancelled). Start a new one, or go on with it by resume().",
    FAILED: "has ended (failed). Start a new one, or go on with it by resume().",
    WAITING: "waits for a person. Decide about its approvals, and go on with it by resume().",
    QUEUED: "goes on in another process, which cannot be told from here.",
    LOST: "goes on in another process, which cannot be told from here.",
}


@quick
@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """What a tool call came to; ``content`` is what the model reads."""

    tool_call_id: str
    name: str
    content: Any
    is_error: bool = False
    error_type: str = ""
    duration_s: float = 0.0
    details: Any = None

    def as_text(self) -> str:
        return text_of(self.content)

    def describe(self) -> dict[str, Any]:
        return {
            "tool_call_id": self.tool_call_id,
            "name": self.name,
            "content": to_json(self.content),
            "is_error": self.is_error,
            "error_type": self.error_type,
            "duration_s": self.duration_s,
        }


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file that a run made; ``id`` is what it is kept and downloaded by."""

    data: bytes
    mime_type: str
    name: str
    run: str = ""
    id: str = field(default_factory=lambda: uuids.uuid4().hex)

    def describe(self) -> dict[str, Any]:
        size = len(self.data)
        return {"id": self.id, "name": self.name, "mime_type": self.mime_type, "size": size}


@dataclass(slots=True)
class AgentRun:
    """How a run ended and all that it did.

    ``output`` is the text of the answer; where ``Meta.output`` is set, its value, or None
    without a valid answer. ``status`` is ``finished``, ``stopped``,
    ``waiting``, ``cancelled`` or ``failed``; ``stop_reason`` says why. ``cost`` is in US
    dollars, None when a price is unknown. ``messages`` hold the history and all that was
    added; ``elapsed`` is in seconds.
    """

    agent: str
    output: Any
    text: str
    status: str
    stop_reason: str
    error: str
    steps: int
    usage: Usage
    cost: Decimal | None
    elapsed: float
    tool_results: list[ToolOutcome]
    messages: list[Message]
    artifacts: list[Artifact]
    trace_uuid: str
    session_id: str
    budget: Any = None
    approvals: list[Any] = field(default_factory=list)
    handoffs: list[str] = field(default_factory=list)

    # The rows live above this floor; whoever keeps them says how to find one.
    find_trace: ClassVar[Callable[[str], Any]] = staticmethod(lambda uuid: None)

    @property
    def ok(self) -> bool:
        return self.status == FINISHED

    @property
    def last_agent(self) -> str:
        """The label of the agent that the run ended as, after all handoffs."""
        return self.handoffs[-1] if self.handoffs else self.agent

    @property
    def tools_used(self) -> list[str]:
        """The names of the tools that were called, in order of their first call."""
        return list(dict.fromkeys(result.name for result in self.tool_results))

    @property
    def trace(self) -> Any:
        """The trace's row; None when the run was not traced."""
        return type(self).find_trace(self.trace_uuid)

    def describe(self) -> dict[str, Any]:
        """Return the run as JSON-safe data."""
        return {
            "agent": self.agent,
            "last_agent": self.last_agent,
            "output": to_json(self.output),
            "status": self.status,
            "stop_reason": self.stop_reason,
            "error": self.error,
            "steps": self.steps,
            "usage": self.usage.describe(),
            "cost": None if self.cost is None else plain(self.cost),
            "elapsed": self.elapsed,
            "tools_used": self.tools_used,
            "tool_results": [result.describe() for result in self.tool_results],
            "artifacts": [artifact.describe() for artifact in self.artifacts],
            "budget": self.budget.describe() if self.budget else None,
            "approvals": self.approvals,
            "trace": self.trace_uuid,
            "session_id": self.session_id,
        }

    def __str__(self) -> str:
        return self.text


@dataclass(slots=True, kw_only=True, eq=False, weakref_slot=True)
class Run:
    """One execution of an agent: what was resolved for it and what it has done so far.

    Only the loop changes it; others read it, and ask through ``steer``, ``follow_up`` and
    ``abort``, which any thread may call.
    """

    label: str
    provider: Provider
    model: str
    said: list[Message]
    toolbox: Toolbox
    bounds: Bounds = field(default_factory=Bounds)
    agent: Any = None
    system: str = ""
    request_options: dict[str, Any] = field(default_factory=dict)
    journal: Journal = field(default_factory=Journal)
    memory: Memory | None = None
    memory_key: SessionKey | None = None
    turn: Any = None
    resolve: Callable[[Run], Coroutine[Any, Any, None]] | None = None
    release: Callable[[Run], Coroutine[Any, Any, None]] | None = None
    price: Callable[[str, str, Usage], Decimal | None] | None = None
    controls: Controls = NO_CONTROLS
    fallbacks: tuple[tuple[Provider, str], ...] = ()  # what to ask when the model fails
    fetch: Callable[[Context, Reference, Any], Any] | None = None  # a row by its key
    disclose_errors: bool = False
    capture_content: bool = True
    steering_mode: str = "one-at-a-time"
    follow_up_mode: str = "one-at-a-time"

    uuid: str = field(default_factory=lambda: uuids.uuid4().hex)
    parent: str | None = None
    lead: Run | None = None  # the run of the parent, in this process
    children: set[asyncio.Task[Any]] = field(default_factory=set)
    options: dict[str, Any] = field(default_factory=dict)  # as they were given
    handoffs: list[str] = field(default_factory=list)
    successor: Callable[[Run], Coroutine[Any, Any, None]] | None = None
    user: Any = None
    request: Any = None
    state: Any = None
    session_id: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)

    history: list[Message] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    view: list[Message] | None = None  # what the next model call reads, if not all messages
    chars: int = 0
    step: int = 0
    seq: int = 0
    first: int = 0  # the number of its first event, which others may be made before
    ordering: int = 0
    text: str = ""
    output: Any = None  # the typed value, where the agent declares one
    budget: Any = None
    approvals: list[Any] = field(default_factory=list)
    is_resumed: bool = False
    remembered: int = 0  # the messages of its turn that its memory has from before
    was_stopped_speaking: bool = False  # its last message is what the model had said until then
    owes_step: bool = False  # an earlier process did not come to tell that its step ended
    is_heard: bool = True  # whether what was said is as the controls let it be read
    is_told: bool = False  # whether the first event is on its way to the reader
    is_hurried: bool = False  # what was said need not wait for the model
    is_buffered: bool = False  # each answer is told when it is complete
    is_durable: bool = False  # it goes on without its reader, and without this process
    is_leaving: bool = False  # at the end of its step, another process is to go on
    orderings: dict[str, int] = field(default_factory=dict)  # of the calls that are open
    status: str = "running"
    stop_reason: str = ""
    error: str = ""
    exception: BaseException | None = None
    usage: Usage = NO_USAGE
    cost: Decimal | None = Decimal(0)
    tool_results: list[ToolOutcome] = field(default_factory=list)
    artifacts: list[Artifact] = field(default_factory=list)
    artifact_sizes: list[int] = field(default_factory=list)  # also of those on their way
    reply: Completion | None = None
    released: bool = False
    is_muted: bool = False  # whether a control has what was just said kept from readers
    aborted: bool = False
    cuts: int = 0
    slept: float = 0.0
    call_ids: set[str] = field(default_factory=set)
    deadline: float = NEVER
    time_budget: Any = None  # the limit that set the deadline, if one did

    steering: deque[list[Message]] = field(default_factory=deque)
    follow_ups: deque[list[Message]] = field(default_factory=deque)
    outbox: deque[Event] = field(default_factory=deque)
    log: Log | None = None  # what others follow the run by
    ending: list[Event] = field(default_factory=list)  # what is told once it is stored
    stray: set[asyncio.Task[Any]] = field(default_factory=set)
    started_at: float = field(default_factory=time)
    started: float = field(default_factory=perf_counter)
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    surroundings: dict[str, str] | None = None  # the language and the time zone it began in
    watch: Watch = field(default_factory=Watch)

    @property
    def heard(self) -> list[Message]:
        """What was said, as it may be told and stored: nothing before it is checked."""
        return self.said if self.is_heard else []

    # -- what the loop does -------------------------------------------------------------

    def emit(self, kind: type[E], *fields: Any) -> E:
        """Return the next event of this run."""
        seq = self.seq
        self.seq = seq + 1
        event: E = kind.made(seq, self.uuid, self.step, time(), self.parent, *fields)
        if self.log is not None:
            self.log.add(event)
        return event

    def add(self, message: Message) -> None:
        """Append a message to the conversation."""
        self.messages.append(message)
        self.chars += size(message)

    def hear(self, said: list[Message], name: str) -> None:
        """Append what someone said on the way, and write it down."""
        for message in said:
            self.add(message)
        self.journal.write(
            Entry(AGENT, name, self.next_ordering(), self.step, time(), 0.0, output=said)
        )

    def next_ordering(self) -> int:
        self.ordering += 1
        return self.ordering

    def ordering_of(self, call: ToolCall) -> int:
        """Return the place of a call, which it keeps when the run goes on elsewhere."""
        if self.orderings and (place := self.orderings.pop(call.id, 0)):
            return place
        self.ordering += 1
        return self.ordering

    def count(self, usage: Usage, cost: Decimal | None) -> None:
        """Add what a model call used, to the runs that this one works for too."""
        self.usage = self.usage + usage if self.usage is not NO_USAGE else usage
        self.cost = None if cost is None or self.cost is None else self.cost + cost
        if self.lead is not None:
            self.lead.count(usage, cost)

    def stop(self, status: str, reason: str, error: str = "") -> None:
        """Note how the run ended; the first word counts."""
        if self.status == "running":
            self.status, self.stop_reason, self.error = status, reason, error

    def halt(self, halt: Halt) -> None:
        """End as a control says."""
        if halt.error is not None and self.status == "running":
            self.exception = halt.error
        status = halt.status or (FAILED if halt.error else STOPPED)
        self.stop(status, halt.reason, str(halt))

    def cut(self) -> None:
        """Note that it was told to stop, or that its reader has left."""
        if self.is_kept:
            self.stop(QUEUED, "released")
        else:
            self.stop(CANCELLED, "cancelled", "The run was stopped.")

    @property
    def is_kept(self) -> bool:
        """Whether another process goes on with the run if it ends here and now."""
        if self.lead is not None:
            return self.lead.is_leaving or self.lead.status in LEFT
        return self.is_durable and not self.aborted

    def park(self) -> None:
        """Note that calls were left open: for people to decide, or another process to make."""
        if self.is_leaving:
            self.stop(QUEUED, "released")
        else:
            self.stop(WAITING, "awaiting_approval")

    def time_out(self) -> None:
        """Note that the run's time is up."""
        if self.time_budget is None:
            self.stop(STOPPED, "timeout", self.timeout_text())
        else:
            self.budget = self.time_budget
            self.stop(STOPPED, "budget_exceeded", f"Stopped: {self.time_budget}.")

    def wait_for(self, task: asyncio.Task[Any]) -> None:
        """Have the run end only after a task of a run that works for it."""
        self.children.add(task)
        task.add_done_callback(self.children.discard)

    def leave_behind(self, task: asyncio.Task[Any]) -> None:
        """Have a task end by itself: nobody waits for it, or asks how it ended."""
        if task.done():
            self._was_left(task)
        else:
            self.stray.add(task)  # the event loop keeps only a weak reference
            task.add_done_callback(self._was_left)

    def _was_left(self, task: asyncio.Task[Any]) -> None:
        self.stray.discard(task)
        if not task.cancelled():
            task.exception()  # or asyncio complains that nobody looked at it

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task in a context of its own, with the run's thread for blocking work."""
        return start(contained(coroutine), self.context)

    def timeout_text(self) -> str:
        return f"Stopped: the run took longer than {self.bounds.run_timeout:g} seconds."

    def next_queued(self, queue: deque[list[Message]], mode: str) -> list[list[Message]]:
        """Take one message, or all that wait, by the queue's mode."""
        # Others may add one meanwhile.
        return [queue.popleft() for _ in range(len(queue) if mode == "all" else 1)]

    def result(self) -> AgentRun:
        return AgentRun(
            agent=self.label,
            output=self.output if self._is_typed else self.text,
            text=self.text,
            status=self.status,
            stop_reason=self.stop_reason,
            error=self.error,
            steps=self.step,
            usage=self.usage,
            cost=self.cost,
            elapsed=perf_counter() - self.started,
            tool_results=list(self.tool_results),
            messages=list(self.messages),
            artifacts=list(self.artifacts),
            trace_uuid=self.uuid,
            session_id=self.session_id,
            budget=self.budget,
            approvals=list(self.approvals),
            handoffs=list(self.handoffs),
        )

    @property
    def _is_typed(self) -> bool:
        return self.agent is not None and self.agent._meta.output is not None

    # -- what others ask, from any thread -------------------------------------------------

    def steer(self, message: Any, *, now: bool = False) -> list[Message]:
        """Have the agent read ``message`` before its next model call; return what it reads.

        Running tools end; those not yet started are skipped. With ``now`` a model call
        that has not said anything yet is cancelled too.
        """
        said = self._queue(self.steering, message)
        if now:
            self.watch.call_soon(self._hurry)
        return said

    def _hurry(self) -> None:
        # On the loop's thread, where nobody reads the queue meanwhile.
        self.is_hurried = bool(self.steering)
        if self.is_hurried and self.watch.steerable:
            self.watch.end_wait(Interrupted(steered=True))

    def follow_up(self, message: Any) -> list[Message]:
        """Have the agent go on with ``message`` when it would be done; return what it reads."""
        return self._queue(self.follow_ups, message)

    def abort(self) -> None:
        """Stop the run. What it has done is kept."""
        self.aborted = True
        self.watch.interrupt_soon()

    def leave(self, *, now: bool = False) -> None:
        """Have another process go on from the next step; with ``now``, from this one."""
        self.is_leaving = True
        if now:
            self.watch.interrupt_soon()

    def _queue(self, queue: deque[list[Message]], message: Any) -> list[Message]:
        said = user_messages(message)
        if self.status == RUNNING:
            queue.append(said)
            if self.status == RUNNING or not _is_taken_back(queue, said):
                self.watch.wake_soon()
                return said
        raise WrongStatus(f"The run {self.uuid[:8]} {NOT_HEARING[self.status]}")

    def note(self, kind: type[E], *fields: Any) -> None:
        """Have an event told as soon as the loop looks up."""
        self._tell(lambda: self.emit(kind, *fields))

    # -- what tools tell, from any thread -------------------------------------------------

    def tell_progress(self, call: ToolCall | None, progress: Any) -> None:
        name, call_id = (call.name, call.id) if call else ("", "")
        self.note(ToolProgress, name, call_id, to_json(progress))

    def add_artifact(
        self, call: ToolCall | None, data: bytes | str, mime_type: str, name: str
    ) -> None:
        """Add a file that a tool made; raise ToolError if it is too much."""
        payload = data.encode() if isinstance(data, str) else bytes(data)
        self._refuse_artifact(name, len(payload))
        self.artifact_sizes.append(len(payload))
        artifact = Artifact(payload, mime_type, name, self.uuid)

        def add() -> Event:
            self.artifacts.append(artifact)
            return self.emit(ArtifactAdded, name, mime_type, len(payload), artifact.id)

        self._tell(add)

    def add_images(self, images: Iterable[dict[str, Any]]) -> None:
        """Add the images that the model made; those that are too much are only in its message."""
        for number, found in enumerate(filter(None, map(data_of, images)), 1):
            data, mime_type = found
            name = f"image-{self.step}-{number}{guess_extension(mime_type) or ''}"
            with suppress(ToolError):
                self.add_artifact(None, data, mime_type, name)

    def _refuse_artifact(self, name: str, size: int) -> None:
        bounds, sizes = self.bounds, self.artifact_sizes
        for value, limit, what in (
            (len(sizes) + 1, bounds.max_artifacts, "files in one run (MAX_ARTIFACTS)"),
            (size, bounds.max_artifact_bytes, "bytes in one file (MAX_ARTIFACT_BYTES)"),
            (
                sum(sizes) + size,
                bounds.max_total_artifact_bytes,
                "bytes in all files of a run (MAX_TOTAL_ARTIFACT_BYTES)",
            ),
        ):
            if limit is not None and value > limit:
                raise ToolError(f"The file {name!r} was not added: at most {limit:,} {what}.")

    def _tell(self, make: Callable[[], Event]) -> None:
        # Events get their number on the loop's thread, in the order in which they leave.
        self.watch.call_soon(lambda: self.outbox.append(make()))

    def drain(self) -> Iterable[Event]:
        # Not what comes meanwhile: its number may be after that of an event on its way.
        for _ in range(len(self.outbox)):
            yield self.outbox.popleft()


def _is_taken_back(queue: deque[list[Message]], said: list[Message]) -> bool:
    """Take a message back from a run that has just ended; False if it was kept by then."""
    try:
        queue.remove(said)
    except ValueError:
        return False
    return True


def data_of(part: dict[str, Any]) -> tuple[bytes, str] | None:
    """Return the bytes and media type of an inline image; None for one that is elsewhere."""
    url = part.get("image_url")
    url = url.get("url") if isinstance(url, dict) else url
    if not isinstance(url, str) or not url.startswith("data:") or ";base64," not in url:
        return None
    head, _, body = url[5:].partition(";base64,")
    try:
        return base64.b64decode(body), head
    except ValueError:
        return None
