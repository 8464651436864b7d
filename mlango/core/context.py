"""What a tool receives beside its arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlango.core.provider import ToolCall
    from mlango.core.run import Run


class Context:
    """A tool's view of its run. Annotate a parameter with it and it is passed in.

    The same object is handed to dynamic prompts, hooks and toolsets, then without a call.
    """

    __slots__ = ("_call", "_run", "ordinal")

    def __init__(self, run: Run, call: ToolCall | None = None, ordinal: int = 0) -> None:
        self._run = run
        self._call = call
        self.ordinal = ordinal

    @property
    def user(self) -> Any:
        """Who the run works for; None when nobody was given."""
        return self._run.user

    @property
    def request(self) -> Any:
        """The HttpRequest that started the run, or None."""
        return self._run.request

    @property
    def state(self) -> Any:
        """The object given as ``state=``, shared by all tools of the run."""
        return self._run.state

    @property
    def session_id(self) -> str:
        return self._run.session_id

    @property
    def agent(self) -> Any:
        return self._run.agent

    @property
    def trace_uuid(self) -> str:
        return self._run.uuid

    @property
    def step(self) -> int:
        return self._run.step

    @property
    def tool_call_id(self) -> str:
        return self._call.id if self._call else ""

    @property
    def idempotency_key(self) -> str:
        """A key that stays the same when this call of this run is tried again."""
        return f"{self._run.uuid}-{self._run.step}-{self.ordinal}"

    @property
    def cancelled(self) -> bool:
        """Whether the run was told to stop; a long tool should look and return early."""
        return self._run.aborted or self._run.status != "running"

    def progress(self, message: Any) -> None:
        """Tell those who watch the run how far this call is. May be called from a thread."""
        self._run.tell_progress(self._call, message)

    def artifact(self, data: bytes | str, mime_type: str, name: str) -> None:
        """Hand a file to whoever started the run; the model does not see it."""
        self._run.add_artifact(self._call, data, mime_type, name)


def run_of(context: Context) -> Run:
    """Return the run behind a context, which tools of mlango itself may need."""
    return context._run
