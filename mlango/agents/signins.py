"""The control that has the run's user sign in where a tool cannot do without."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.db import router, transaction

from mlango.agents.approvals import close, create
from mlango.agents.durability import tell
from mlango.core.controls import Control, Parked
from mlango.core.events import ApprovalDecided
from mlango.core.journal import TOOL
from mlango.core.threads import in_thread
from mlango.core.watch import NEVER
from mlango.exceptions import SignInRequired, ToolError

if TYPE_CHECKING:
    from mlango.core.calls import Job
    from mlango.core.run import Run
    from mlango.models import Approval


class SigningIn(Control):
    """Parks a call that raised SignInRequired."""

    async def sign_in(self, run: Run, job: Job, wanted: SignInRequired) -> None:
        if not run.journal.writes or not apps.is_installed("mlango"):
            return
        job.deadline = NEVER  # it has ended, and only its row is still to be written
        tell(run, await run.journal.do(_ask, run, job, wanted))
        raise Parked

    async def end(self, run: Run) -> None:
        await close(run)


class SignedIn(Control):
    """Lets a call of a run that waited be made again once its user has signed in."""

    async def before_call(self, run: Run, job: Job, arguments: dict[str, Any]) -> dict[str, Any]:
        row = await in_thread(_row_of, run, job)
        if row is None:
            return arguments
        if row.status == row.Status.PENDING:
            tell(run, row)
            raise Parked
        run.note(ApprovalDecided, row.uuid, row.tool, row.tool_call_id, row.status, row.note)
        if row.status == row.Status.EXPIRED:
            raise ToolError("The user did not sign in in time, so the call was not made.")
        if row.status == row.Status.REJECTED:
            reason = f": {row.note}" if row.note else "."
            raise ToolError(f"The user did not sign in{reason}")
        await run.journal.do(row.use)
        return arguments


def _row_of(run: Run, job: Job) -> Approval | None:
    """Return what was asked last about a call, its expiry looked at."""
    from mlango.models import Approval

    rows = Approval.objects.filter(
        trace_id=run.uuid, tool_call_id=job.call.id, kind=Approval.Kind.SIGN_IN
    ).exclude(status=Approval.Status.USED)
    rows.expire()
    return rows.first()


def _ask(run: Run, job: Job, wanted: SignInRequired) -> Approval:
    """Write down where to sign in, and that the call was not made: it will be once more."""
    from mlango.models import Approval, Attempt

    with transaction.atomic(using=router.db_for_write(Approval)):
        of_call = {"trace_id": run.uuid, "tool_call_id": job.call.id}
        used = {"kind": Approval.Kind.TOOL, "status": Approval.Status.USED}
        Approval.objects.filter(**of_call, **used).update(status=Approval.Status.APPROVED)
        if run.is_durable:
            Attempt.objects.filter(**of_call, kind=TOOL, ordering=job.ordering).delete()
        where = {"url": wanted.url, "label": wanted.label}
        return create(run, job, Approval.Kind.SIGN_IN, where, wanted.expires)
