"""The control that asks: rules by tool name, approvals by people, questions of the model."""

from __future__ import annotations

import hashlib
import inspect
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.utils import timezone

from mlango.agents.durability import digest_of, tell
from mlango.core.context import Context
from mlango.core.controls import Control, Parked
from mlango.core.events import ApprovalDecided, QuestionAsked
from mlango.core.guarding import Guarding
from mlango.core.memory import owner_key
from mlango.core.messages import text_of
from mlango.core.policy import ALLOW, DENY, Approval, Rule, approval_of, holds_for
from mlango.core.run import LEFT, WAITING
from mlango.core.threads import in_thread
from mlango.core.tools import tool
from mlango.core.values import dumps
from mlango.exceptions import ToolError
from mlango.runtime.redaction import redact_json

if TYPE_CHECKING:
    from mlango.core.calls import Job
    from mlango.core.run import Run
    from mlango.models import Approval as Row


@tool(effect="read")
def ask_question(question: str, options: list[str] | None = None) -> str:
    """Ask the user when you cannot go on without an answer. The run waits for it.

    Args:
        question: What to ask, in one sentence.
        options: Answers to choose from; leave it out for free text.
    """
    raise ToolError("Nobody can be asked here.")


class Asking(Control):
    """Refuses, lets through, or asks, call by call, when the call is about to run.

    ``approve`` is a function that decides in the place of a person: it gets what a person
    would see, and returns True, False or a reason to refuse, or None to have a person asked.
    """

    def __init__(self, rules: tuple[Rule, ...] = (), approve: Any = None) -> None:
        self.rules = rules
        self.approve = approve

    async def before_call(self, run: Run, job: Job, arguments: dict[str, Any]) -> dict[str, Any]:
        assert job.tool is not None
        context = Context(run, job.call, job.ordering)
        wanted = await self._wanted(job, arguments, context)
        row = await in_thread(_row_of, run, job) if run.is_resumed else None
        if row is not None:  # what was decided holds, whether or not it would be asked now
            return await self._decided(run, job, row, arguments)
        if wanted is None:
            job.is_approved = True
            return arguments
        if job.tool is ask_question or self.approve is None:
            await self._ask(run, job, wanted, arguments)
        verdict = await _verdict(self.approve, run, job, arguments)
        if verdict is None:
            await self._ask(run, job, wanted, arguments)
        if verdict is not True:
            raise ToolError(_refusal(verdict if isinstance(verdict, str) else ""))
        job.is_approved = True
        return arguments

    async def end(self, run: Run) -> None:
        await close(run)

    async def _wanted(
        self, job: Job, arguments: dict[str, Any], context: Context
    ) -> Approval | None:
        """Return the approval that a call needs; None if it needs none. Raise if refused."""
        assert job.tool is not None
        if job.tool is ask_question:
            return Approval()
        own = approval_of(job.tool.approval)
        for rule in self.rules:
            if rule.covers(job.tool.name) and await holds_for(rule.when, arguments, context):
                if rule.effect == DENY:
                    raise ToolError(f"The tool {job.tool.name!r} may not be called here.")
                if rule.effect == ALLOW:
                    return None
                return own or Approval()
        if own is None or not await holds_for(own.when, arguments, context):
            return None
        return own

    async def _ask(self, run: Run, job: Job, wanted: Approval, arguments: dict[str, Any]) -> None:
        """Write the question down and park the call; raise ToolError where nobody can see it."""
        if not run.journal.writes or not apps.is_installed("mlango"):
            raise ToolError(f"The tool {job.call.name!r} needs an approval, which nobody gave.")
        row = await run.journal.do(_create, run, job, wanted, _shown(job, arguments))
        _tell(run, row)
        raise Parked

    async def _decided(
        self, run: Run, job: Job, row: Row, arguments: dict[str, Any]
    ) -> dict[str, Any]:
        """Act on what was decided about a call, which serves this once."""
        if row.status == row.Status.PENDING:
            _tell(run, row)
            raise Parked
        run.note(ApprovalDecided, row.uuid, row.tool, row.tool_call_id, row.status, row.note)
        if row.status == row.Status.EXPIRED:
            raise ToolError("Nobody decided in time, so the call was not made.")
        if row.status == row.Status.REJECTED:
            raise ToolError(_refusal(row.note))
        if row.arguments_hash != _digest(_shown(job, arguments)):
            raise ToolError(
                "The arguments are not those that were approved. The call was refused."
            )
        # In a durable run the journal tells whether the call was made since.
        is_used = row.status == row.Status.USED and run.is_durable
        if not (is_used or await run.journal.do(row.use)):
            raise ToolError("The approval was used already. The call was not made again.")
        job.is_approved = True
        if row.kind == row.Kind.QUESTION:
            job.end(await _read(run, row.note))
            return arguments
        return arguments if row.edited is None else await self._edited(run, job, row)

    async def _edited(self, run: Run, job: Job, row: Row) -> dict[str, Any]:
        """Return the arguments as a person changed them, checked as the model's are."""
        assert job.tool is not None
        arguments = job.tool.parameters.validate(row.edited)
        context = Context(run, job.call, job.ordering)
        for rule in self.rules:
            if rule.covers(job.tool.name) and await holds_for(rule.when, arguments, context):
                if rule.effect == DENY:
                    raise ToolError(f"The tool {job.tool.name!r} may not be called like this.")
                break
        for each in run.controls.all:
            if isinstance(each, Guarding):
                arguments = await each.before_call(run, job, arguments)
        return arguments


async def _read(run: Run, answer: str) -> str:
    """Return what a user has answered as the run's controls let it be read, like any message."""
    said = [{"role": "user", "content": answer}]
    for hear in run.controls.hear:
        said = await hear(run, said)
    return text_of(said[0]["content"])


def _tell(run: Run, row: Row) -> None:
    if row.kind != row.Kind.QUESTION:
        tell(run, row)
        return
    run.approvals.append(row.describe())
    asked = row.arguments
    run.note(QuestionAsked, row.uuid, row.tool_call_id, asked["question"], asked["options"])


def _refusal(reason: str) -> str:
    return f"The call was refused: {reason}" if reason else "The call was refused."


def _shown(job: Job, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments as a person sees them: those that the model may set."""
    injected = job.tool.parameters.injected if job.tool else {}
    return {name: value for name, value in arguments.items() if name not in injected}


def _digest(arguments: dict[str, Any]) -> str:
    """Return what binds an approval to its arguments, whatever their order."""
    ordered = dict(sorted(arguments.items()))
    return hashlib.sha256(dumps(ordered).encode()).hexdigest()


async def _verdict(approve: Any, run: Run, job: Job, arguments: dict[str, Any]) -> Any:
    """Ask the function that decides in code."""
    request = {
        "agent": run.label,
        "trace": run.uuid,
        "tool": job.call.name,
        "tool_call_id": job.call.id,
        "arguments": _shown(job, arguments),
    }
    if inspect.iscoroutinefunction(approve):
        return await approve(request)
    return await in_thread(approve, request)


def _row_of(run: Run, job: Job) -> Row | None:
    """Return the approval of a call, its expiry looked at."""
    from mlango.models import Approval as Row

    kinds = (Row.Kind.TOOL, Row.Kind.QUESTION)
    rows = Row.objects.filter(trace_id=run.uuid, tool_call_id=job.call.id, kind__in=kinds)
    rows.expire()
    return rows.first()


async def close(run: Run) -> None:
    """Close what was asked by a run that does not wait for it, here or elsewhere."""
    may_have_asked = run.approvals or (run.is_durable and run.is_resumed)
    if may_have_asked and run.status not in (WAITING, *LEFT):
        await run.journal.do(_close, run)


def _close(run: Run) -> None:
    from mlango.models import Approval as Row

    rows = Row.objects.filter(trace_id=run.uuid, status=Row.Status.PENDING)
    rows.update(status=Row.Status.EXPIRED, decided_at=timezone.now())


def _create(run: Run, job: Job, wanted: Approval, shown: dict[str, Any]) -> Row:
    from mlango.models import Approval as Row

    return create(
        run,
        job,
        Row.Kind.QUESTION if job.tool is ask_question else Row.Kind.TOOL,
        shown,
        wanted.expires,
        permission=wanted.permission,
        four_eyes=wanted.four_eyes,
    )


def create(
    run: Run,
    job: Job,
    kind: str,
    shown: dict[str, Any],
    expires: timedelta | None,
    **fields: Any,
) -> Row:
    """Return a new row that asks about a call, for so long as it may wait."""
    from mlango.models import Approval as Row

    return Row.objects.create(
        trace_id=run.uuid,
        tool_call_id=job.call.id,
        kind=kind,
        agent=run.label[:200],
        tool=job.call.name,
        tool_digest=digest_of(job.tool) if job.tool else "",
        arguments_json=redact_json(dumps(shown)),
        arguments_hash=_digest(shown),
        owner_key=owner_key(run.user),
        expires_at=timezone.now() + expires if expires else None,
        **fields,
    )
