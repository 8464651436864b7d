"""Where a run is written down, and read back.

The loop tells its journal what it is about to send and what came back. A run's state is the
fold of that (``mlango.core.state``), so a journal is also what resume and memory read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from mlango.core.threads import in_thread
from mlango.core.usage import Usage

if TYPE_CHECKING:
    from mlango.core.run import Run

T = TypeVar("T")

LLM, TOOL, AGENT, MEMORY = "llm", "tool", "agent", "memory"


@dataclass(slots=True)
class Entry:
    """One span: a model call, a tool call, or something said to the agent on the way.

    ``output`` is what the conversation gained: the assistant message of an ``llm`` entry
    (None when the call failed), the content of a ``tool`` entry, the messages of an
    ``agent`` entry. Times are seconds since the epoch and seconds.
    """

    kind: str
    name: str
    ordering: int
    step: int
    started_at: float
    duration_s: float
    input: Any = None
    output: Any = None
    tool_call_id: str = ""
    error: str = ""
    error_type: str = ""
    usage: Usage | None = None
    cost: Decimal | None = None
    attributes: dict[str, Any] = field(default_factory=dict)


class Journal:
    """Writes nothing down: the journal of a run without tracing, and the base of the others.

    Nothing here may raise for a failing store: a foreground run goes on without its trace.
    """

    @property
    def wants_sync(self) -> bool:
        """Whether the run should wait for ``sync`` at the end of this step."""
        return False

    # Whether a call's outcome is told only once it is safe: ``write`` is followed by ``sync``.
    saves: ClassVar[bool] = False

    async def do(self, function: Callable[..., T], /, *args: Any) -> T:
        """Call a function that writes rows, while this process may write for the run."""
        result: T = await in_thread(function, *args)
        return result

    def commit_with(self, entry: Entry) -> bool:
        """Write a tool call down in the transaction of its tool; return whether it was."""
        return False

    async def committed(self, ordering: int) -> tuple[Any, bool, Any] | None:
        """Return the result of an atomic tool that failed, if its transaction is there.

        So it is where the answer to the commit was lost, and nothing else.
        """
        return None

    def left(self, ordering: int) -> tuple[Any, bool, Any] | None:
        """Return the result of an atomic tool that an earlier process left, if it committed."""
        return None

    # Whether write() keeps anything, so that the loop need not make entries for nothing.
    writes: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.writes = cls.write is not Journal.write

    def go_on(self, spans: int, errors: int, asked: int | None) -> None:
        """Go on with a run that has so many entries, of which so many failed.

        ``asked`` is the place of the model call whose tool calls may be open.
        """

    def keep_log(self, run: Run) -> None:
        """Write the events of ``run`` down too, so that others can follow it."""

    async def open(self, run: Run) -> None:
        """Note that ``run`` began, with its history and the new messages."""

    def write(self, entry: Entry) -> None:
        """Take ``entry`` without waiting."""

    async def sync(self) -> None:
        """Return when all that was written is safe."""

    async def close(self, run: Run) -> None:
        """Note how ``run`` ended and return when that is safe."""


class ListJournal(Journal):
    """Keeps the entries in a list, for tests and scripts."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def write(self, entry: Entry) -> None:
        self.entries.append(entry)
