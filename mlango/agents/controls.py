"""Which controls watch over a run: those that its agent declares, in the order of their say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.exceptions import PermissionDenied

from mlango.agents.approvals import Asking
from mlango.agents.artifacts import Keeping
from mlango.agents.compaction import Compacting
from mlango.agents.durability import Durability
from mlango.agents.hooks import BeforeModel, hooking
from mlango.agents.output.control import AnswerTool, Structured
from mlango.agents.quotas import reserving
from mlango.agents.signins import SignedIn, SigningIn
from mlango.agents.spending import earlier_in
from mlango.agents.team import Sharing, Succession
from mlango.core.controls import NO_CONTROLS, Control, Controls
from mlango.core.durability import Durable
from mlango.core.guarding import Guarding
from mlango.core.limits import Limiting
from mlango.core.memory import SessionKey
from mlango.core.threads import in_thread
from mlango.core.values import dumps
from mlango.exceptions import ToolError
from mlango.runtime.redaction import REDACTED

if TYPE_CHECKING:
    from mlango.core.calls import Job
    from mlango.core.run import Run


def controls_for(run: Run, given: dict[str, Any], key: SessionKey | None) -> Controls:
    """Return the controls of a run, whose tools are known, with the options it was ``given``.

    ``key`` is the run's session, None without one.
    """
    meta = run.agent._meta
    controls: list[Control] = []
    if meta.permission:
        controls.append(Permitted(meta.permission))
    limits = given["limits"] or meta.limits
    session_limits = meta.session_limits if key is not None else None
    if limits or session_limits:
        controls.append(Limiting(limits, session_limits, earlier_in(key)))
    controls += reserving(run, meta.quotas)
    if run.is_buffered:
        controls.append(Buffering())
    if meta.compaction:
        controls.append(Compacting(meta.compaction))
    if run.agent.transforms:
        controls.append(BeforeModel(run.agent.transform_context))
    hooks = hooking(meta.hooks)
    controls += hooks.before_model
    if meta.output:  # guardrails read the answer as text
        controls.append(AnswerTool(meta.output))
    # What hooks have changed is what guardrails check and people approve.
    controls += hooks.before_others
    if meta.guardrails:
        controls.append(Guarding(meta.guardrails))
    if run.is_resumed:  # before an approval is taken, which serves one call
        controls += [Unredacted(), SignedIn()]
    if run.toolbox or run.is_resumed:
        controls.append(SigningIn())
    # What was asked before the run waited is decided, whatever the agent says now.
    if meta.permissions or meta.ask_question or run.toolbox.asks or run.is_resumed:
        controls.append(Asking(meta.permissions, given["approve"]))
    controls += hooks.after_tool
    if meta.output:
        controls.append(Structured(meta.output, meta.output_retries))
    if run.journal.writes and run.capture_content:
        controls.append(Keeping())
    if run.lead is not None:
        controls.append(Sharing())
    if meta.handoffs:  # the last to speak: it goes on to those of the agent that takes over
        controls.append(Succession())
    if run.is_durable:  # nothing changes any more what it writes down
        controls.append(Durability(Durable.of(meta.durable)))
    return Controls(tuple(controls)) if controls else NO_CONTROLS


class Buffering(Control):
    """Holds each answer back until it is complete: one that breaks off is asked for anew."""

    def holds(self, run: Run) -> bool:
        return True


class Unredacted(Control):
    """Refuses a call whose arguments the rows do not hold any more, as secrets were in them."""

    def __init__(self) -> None:
        self.from_rows: set[str] = set()

    async def begin(self, run: Run) -> None:
        self.from_rows = set(run.orderings)

    async def before_call(self, run: Run, job: Job, arguments: dict[str, Any]) -> dict[str, Any]:
        if job.call.id in self.from_rows and REDACTED in dumps(job.call.arguments):
            raise ToolError(
                "The call was not made: a secret in its arguments was not written down when the "
                "run stopped. Make the call anew if it is still wanted."
            )
        return arguments


class Permitted(Control):
    """Ends a run at once whose user may not use the agent."""

    def __init__(self, permission: str) -> None:
        self.permission = permission

    async def begin(self, run: Run) -> None:
        allowed = getattr(run.user, "has_perm", None)
        if allowed is None or not await in_thread(allowed, self.permission):
            raise PermissionDenied(f"{run.label} needs the permission {self.permission!r}.")
