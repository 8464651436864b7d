"""The control of durable runs: journal before act, and what a crash has left open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlango.core.context import Context
from mlango.core.controls import Control, Halt, Parked
from mlango.core.durability import TELL_MODEL, Durable
from mlango.core.events import ApprovalDecided, ApprovalRequested
from mlango.core.journal import LLM, TOOL
from mlango.core.memory import owner_key
from mlango.core.run import FAILED, WAITING
from mlango.core.tools import REPEATABLE, Tool
from mlango.core.values import dumps, parse_json
from mlango.exceptions import RunError, ToolError
from mlango.runtime.redaction import redact_json

if TYPE_CHECKING:
    from mlango.core.calls import Job
    from mlango.core.run import Run
    from mlango.models import Approval, Attempt
    from mlango.runtime.durable import DurableJournal

CRASH_LOOP, NEEDS_DECISION = "crash_loop", "needs_decision"
CUT_OFF = (
    "The process ended during this call. Nobody knows whether the call had its effect. "
    "Find out before you repeat it."
)
HAPPENED = "The process ended during this call, but the call had its effect."
DID_NOT = "The process ended during this call, and the call had no effect."


class Durability(Control):
    """Writes down each act before it is done, and never does one twice that may have been.

    It comes last, so that what it writes is what is about to happen.
    """

    def __init__(self, durable: Durable) -> None:
        self.durable = durable

    async def begin(self, run: Run) -> None:
        claimed = _journal(run).claimed
        if claimed is not None and claimed.crashes >= self.durable.max_crashes:
            text = crashed(claimed.crashes)
            error = RunError(text)
            halt = Halt(CRASH_LOOP, text, error=error)
            halt.status = FAILED
            raise halt
        if run.is_resumed:
            await self._compare(run)

    async def _compare(self, run: Run) -> None:
        """Have a person decide whether a run goes on that was begun by other code."""
        journal = _journal(run)
        now = journal.declared
        if not journal.fingerprint or journal.fingerprint == now:
            return
        row = await journal.do(_change_of, run, journal.fingerprint, now)
        if row.status == row.Status.PENDING:
            tell(run, row)
            halt = Halt(NEEDS_DECISION, "The agent has changed since the run began.")
            halt.status = WAITING
            raise halt
        run.note(ApprovalDecided, row.uuid, row.tool, row.tool_call_id, row.status, row.note)
        if row.status in (row.Status.REJECTED, row.Status.EXPIRED):
            raise Halt(NEEDS_DECISION, "The agent has changed, and the run was not to go on.")
        await journal.adopt(now, row)

    async def before_model(self, run: Run) -> None:
        journal = _journal(run)
        await journal.act(journal.attempt(LLM, run.model, run.ordering + 1))

    async def before_call(self, run: Run, job: Job, arguments: dict[str, Any]) -> dict[str, Any]:
        if run.is_leaving:
            raise Parked
        journal, tool = _journal(run), job.tool
        assert tool is not None
        if job.outcome is not None:
            return arguments
        cut_off = journal.attempts.get(job.ordering)
        if cut_off is not None and not _may_repeat(journal, effect_of(tool), cut_off):
            await self._settle(run, job, cut_off)
            if job.outcome is not None or job.committed is not None:
                return arguments
        if tool.effect != "read":
            from mlango.runtime.durable import digest

            await journal.act(
                journal.attempt(
                    TOOL,
                    tool.name,
                    job.ordering,
                    effect=effect_of(tool),
                    tool_call_id=job.call.id,
                    arguments_hash=digest(job.call.arguments),
                    idempotency_key=Context(run, job.call, job.ordering).idempotency_key,
                )
            )
        return arguments

    async def no_tool(self, run: Run, job: Job) -> None:
        cut_off = _journal(run).attempts.get(job.ordering)
        if cut_off is not None:  # the tool was there when the call was made
            await self._settle(run, job, cut_off)
            if job.committed is not None:
                content, is_error, details = job.committed
                job.end(content, "tool" if is_error else "", details)

    async def _settle(self, run: Run, job: Job, cut_off: Attempt) -> None:
        """End a call that was cut off, unless somebody wants it to be made again."""
        if job.committed is not None:
            return
        if self.durable.unknown == TELL_MODEL:
            job.end(CUT_OFF, "unknown")
            return
        row = await _journal(run).do(_unknown_of, run, job)
        if row.status == row.Status.PENDING:
            tell(run, row)
            raise Parked
        run.note(ApprovalDecided, row.uuid, row.tool, row.tool_call_id, row.choice, row.note)
        if row.choice == row.Choice.HAPPENED:
            job.end(row.note or HAPPENED)
        elif row.choice == row.Choice.AGAIN and await _journal(run).do(row.use):
            return
        elif row.choice == row.Choice.DID_NOT:
            job.end(row.note or DID_NOT, "unknown")
        else:
            raise ToolError(CUT_OFF)


def crashed(times: int) -> str:
    """Return why a run fails that ends one process after the other."""
    return f"The process of the run ended {times} times at the same step."


def _journal(run: Run) -> DurableJournal:
    return run.journal  # type: ignore[return-value]  # no other run has this control


def effect_of(tool: Tool) -> str:
    """Return what a crash means to a call: that of a sub-agent goes on where it was."""
    if tool.goes_on:
        return "idempotent"
    if tool.effect == "transactional" and not tool.is_transactional:
        return "once"
    return tool.effect


def _may_repeat(journal: DurableJournal, effect: str, cut_off: Attempt) -> bool:
    """Return whether a call that was cut off does no harm if it is made again.

    What the tool said of its effect counts as it was then, and as it is now.
    """
    if cut_off.result is not None:
        return False
    if cut_off.effect == "transactional":  # nothing that it wrote has stayed
        return journal.shares_transactions
    return cut_off.effect in REPEATABLE and effect != "once"


def tell(run: Run, row: Approval) -> None:
    """Tell that a run waits for a person."""
    run.approvals.append(row.describe())
    asked = (row.uuid, row.tool, row.tool_call_id, row.arguments, row.permission, row.kind)
    run.note(ApprovalRequested, *asked)


# -- the rows -------------------------------------------------------------------------------


def _unknown_of(run: Run, job: Job) -> Approval:
    """Return the row that asks what became of a call; made if nobody was asked yet."""
    from mlango.models import Approval

    # A second crash, after somebody had it run again, is a second question.
    asked = Approval.objects.filter(
        trace_id=run.uuid, tool_call_id=job.call.id, kind=Approval.Kind.UNKNOWN
    ).exclude(status=Approval.Status.USED)
    return asked.first() or _ask(
        run,
        Approval.Kind.UNKNOWN,
        tool=job.call.name,
        tool_call_id=job.call.id,
        arguments=_arguments_of(job),
        tool_digest=digest_of(job.tool) if job.tool else "",
    )


def _arguments_of(job: Job) -> dict[str, Any]:
    if job.tool is not None:
        return job.tool.parameters.validate(job.call.arguments)
    made_with = job.call.arguments
    return parse_json(made_with) if isinstance(made_with, str) else made_with


def _change_of(run: Run, before: str, now: str) -> Approval:
    from mlango.models import Approval

    asked = Approval.objects.filter(
        trace_id=run.uuid, kind=Approval.Kind.CHANGE, arguments_hash=now
    ).exclude(status=Approval.Status.USED)
    return asked.first() or _ask(
        run,
        Approval.Kind.CHANGE,
        arguments={"begun_with": before, "now": now},
        arguments_hash=now,
    )


def _ask(run: Run, kind: str, *, arguments: dict[str, Any], **fields: Any) -> Approval:
    from mlango.models import Approval
    from mlango.runtime.durable import digest

    return Approval.objects.create(
        trace_id=run.uuid,
        kind=kind,
        agent=run.label[:200],
        arguments_json=redact_json(dumps(arguments)),
        owner_key=owner_key(run.user),
        **{"arguments_hash": digest(arguments), **fields},
    )


def digest_of(tool: Tool) -> str:
    """Return what changes with a tool as the model sees it, and with its effect."""
    from mlango.runtime.durable import digest

    return digest({"schema": tool.to_schema(), "effect": effect_of(tool)})
