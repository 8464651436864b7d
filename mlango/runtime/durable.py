"""The journal of a durable run: what is about to be done and what was done, each committed.

Nothing here is best effort. Where a row cannot be written, the run stops in this process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import time
from typing import Any, TypeVar

from django.db import DEFAULT_DB_ALIAS, IntegrityError, connections, transaction

from mlango.conf import settings
from mlango.core.controls import Leave
from mlango.core.journal import AGENT, LLM, TOOL, Entry, Journal
from mlango.core.log import Branch
from mlango.core.run import LOST, QUEUED, WAITING, Run
from mlango.core.values import clean, dumps
from mlango.exceptions import IdempotencyConflict, SessionBusy
from mlango.models import Approval, Attempt, DurableRun, Instruction, Trace
from mlango.runtime import database
from mlango.runtime.leases import Lease, keeper, worker_name
from mlango.runtime.outgoing import Outgoing
from mlango.runtime.redaction import redact_json
from mlango.runtime.rows import (
    PROGRESS_PLACES,
    UPDATE_TRACE,
    end_values,
    moment,
    span_values,
    trace_of,
)
from mlango.runtime.statements import Values
from mlango.runtime.writer import writer

T = TypeVar("T")

# What a queued run's row is not told before it begins.
BEGINNING = (
    "session_id",
    "session_key",
    "provider",
    "model",
    "fingerprint",
    "input",
    "opening_json",
    "metadata_json",
)
BUSY = 5.0  # seconds until a run is due again whose session another one has


def _nothing() -> None:
    """Do nothing more in a transaction."""


class DurableJournal(Journal):
    """Writes one run down, while this process has it.

    Without a ``lease`` the run is new, and this process is the first to have it; ``new`` are
    the values of its row then. A sub-agent's run is written under the lease of its lead.
    """

    saves = True

    def __init__(
        self,
        lease: Lease | None = None,
        *,
        new: dict[str, Any] | None = None,
        lead: DurableJournal | None = None,
    ) -> None:
        self._lease = lease
        self._new = new or {}
        self._lead = lead
        self._run: Run | None = None
        self._outgoing: Outgoing = lead._outgoing if lead else Outgoing(self._flush)
        self._spans = 0
        self._errors = 0
        self._asked: int | None = None
        self._entered = False
        self._has_led = False  # whether another run has worked for this one
        # What the rows say of a run that goes on here.
        self.claimed: DurableRun | None = None
        self.attempts: dict[int, Attempt] = {}
        self.fingerprint = self.declared = ""  # of the agent: when the run began, and now

    def hold(self, claimed: DurableRun) -> None:
        """Write under the lease of this claim."""
        self.claimed = claimed
        alias = claimed._state.db or database.alias()
        self._lease = Lease(claimed.pk, claimed.token, alias, settings.LEASE_SECONDS)

    @property
    def lease(self) -> Lease:
        lease = self._lead.lease if self._lead is not None else self._lease
        assert lease is not None
        return lease

    @property
    def wants_sync(self) -> bool:
        # That the step has ended goes along with what comes next.
        return self._outgoing.has_spans

    def go_on(self, spans: int, errors: int, asked: int | None) -> None:
        self._spans, self._errors, self._asked = spans, errors, asked

    def keep_log(self, run: Run) -> None:
        lead = run.lead
        if lead is None:
            run.log = self._outgoing.log_of(run)
        elif lead.log is not None:
            run.log = Branch(lead.log)

    async def do(self, function: Callable[..., T], /, *args: Any) -> T:
        return await self.lease.do(partial(function, *args))

    # -- a run begins ---------------------------------------------------------------------------

    async def open(self, run: Run) -> None:
        self._run = run
        if self._lead is not None:
            self._lead._has_led = True
            if not run.is_resumed:
                await self.do(partial(trace_of(run).save, using=self.lease.alias))
            return
        lease = self._lease = self._lease or Lease(
            run.uuid, 1, database.alias(), settings.LEASE_SECONDS
        )
        lease.place = await database.place_of(lease.alias)
        if lease.place is None:
            writer.enter()
            self._entered = True
        if self._new:
            await self._create(lease, run)
        elif not run.is_resumed:
            await self.do(self._begin, run)
        if lease.place is None:
            keeper().add(run, lease)
            self._outgoing.open()

    async def _create(self, lease: Lease, run: Run) -> None:
        """Add the rows of a run that nobody had before."""
        work = partial(create, lease.alias, trace_of(run), self._new, lease.seconds)
        in_place = lease.place or lease.patiently
        try:
            await in_place(work)
        except IntegrityError as error:
            if await in_place(lease.rows.held(run.uuid, lease.token).exists):
                return  # the answer to its commit was lost
            lease.is_lost = True
            key = self._new["idempotency_key"]
            raise IdempotencyConflict(
                f"There is a run of {run.label} with the idempotency key {key!r} already."
            ) from error
        finally:
            self._new = {}

    def _begin(self, run: Run) -> None:
        trace = trace_of(run)
        values = {name: getattr(trace, name) for name in BEGINNING}
        Trace.objects.using(self.lease.alias).filter(pk=run.uuid).update(**values)
        # The message as the controls let it be read is in the trace from here on.
        durable = self.claimed
        assert durable is not None  # as nobody else begins what is in a queue
        durable.request = {**durable.request, "said": None}
        durable.save(using=self.lease.alias, update_fields=["request_json"])

    # -- it goes on -----------------------------------------------------------------------------

    def write(self, entry: Entry) -> None:
        assert self._run is not None
        self._spans += 1
        self._errors += bool(entry.error_type)
        parent = self._asked if entry.kind == TOOL else None
        if entry.kind == LLM:
            self._asked = entry.ordering
        self._outgoing.add(span_values(self._run, entry, parent), self._progress)
        if entry.kind == AGENT and self._lead is None:
            self._outgoing.hear(self.lease.heard(self._run))

    async def sync(self) -> None:
        if self._lead is not None:
            await self._commit()
            return
        assert self._run is not None
        told = await self._commit(then=self._instructions)
        self.lease.hand(self._run, told)

    def _instructions(self) -> list[Instruction]:
        rows = Instruction.objects.using(self.lease.alias)
        return list(rows.filter(trace=self.lease.uuid))

    def commit_with(self, entry: Entry) -> bool:
        """Let the result be known to whoever goes on with the run, if this process ends now.

        The span is written when the controls have had their say.
        """
        if self.shares_transactions:
            result = (entry.output, bool(entry.error_type), entry.attributes.get("details"))
            self.lease.hold()
            self._attempts(entry.ordering).update(result_json=redact_json(dumps(result)))
        return False

    async def committed(self, ordering: int) -> Any:
        if not self.shares_transactions:
            return None
        attempt = await self.do(self._attempts(ordering).last)
        return None if attempt is None or attempt.result is None else tuple(attempt.result)

    def left(self, ordering: int) -> Any:
        attempt = self.attempts.get(ordering)
        return None if attempt is None or attempt.result is None else tuple(attempt.result)

    @property
    def shares_transactions(self) -> bool:
        """Whether what tools write and the journal are in one database."""
        return self.lease.alias == DEFAULT_DB_ALIAS

    def _attempts(self, ordering: int) -> Any:
        assert self._run is not None
        rows = Attempt.objects.using(self.lease.alias)
        return rows.filter(trace_id=self._run.uuid, ordering=ordering, token=self.lease.token)

    async def act(self, attempt: Attempt) -> None:
        """Note what is about to be done, and all that was done before."""
        await self._commit(attempt)

    async def _flush(self) -> None:
        with suppress(Leave):  # which the run learns when it goes on
            await self._commit()

    async def _commit(self, *attempts: Attempt, then: Callable[[], Any] = _nothing) -> Any:
        """Write down all that was done and told, in one transaction with ``then``.

        Return what that returns.
        """
        async with self._outgoing.turn:
            rows = self._outgoing.take(attempts)

            def work() -> Any:
                rows.write(self.lease.alias)
                return then()

            return await self.lease.do(work, len(rows.spans))

    def _progress(self) -> Values:
        assert self._run is not None
        values = self._end_values(self._run)
        return [values[place] for place in PROGRESS_PLACES]

    def _end_values(self, run: Run) -> Values:
        return end_values(run, time(), self._spans, self._errors)

    def _trace(self) -> Any:
        assert self._run is not None
        return Trace.objects.using(self.lease.alias).filter(pk=self._run.uuid)

    async def adopt(self, fingerprint: str, decision: Approval) -> None:
        """Note that the run goes on with the agent as it is now, because somebody said so."""
        await self.do(self._adopt, fingerprint, decision)
        self.fingerprint = fingerprint

    def _adopt(self, fingerprint: str, decision: Approval) -> None:
        decision.use()
        self._trace().update(fingerprint=fingerprint)

    # -- it ends, or is left --------------------------------------------------------------------

    async def close(self, run: Run) -> None:
        if self._lead is None:
            self._outgoing.close()
        try:
            if self._run is None:  # it failed before it began
                self._run = run
                if self._new or self._lead is not None:
                    await self.open(run)
            if self._entered:  # after its last rows the writer may rest
                self._entered = False
                writer.leave()
            if self._was_busy(run):
                run.status = LOST
                await self.do(self.lease.rows.give_back, run.uuid, self.lease.token, BUSY)
            if run.status != LOST:
                await self._end(run)
        except Leave as leave:
            run.status = leave.status
        finally:
            keeper().remove(run)
            if self._entered:
                writer.leave()

    def _was_busy(self, run: Run) -> bool:
        """Return whether a run that nobody waits for could not have its session's turn."""
        waits = isinstance(run.exception, SessionBusy) and self.claimed is not None
        return waits and not run.is_resumed and run.step == 0

    async def _end(self, run: Run) -> None:
        *values, ended_at, uuid = self._end_values(run)
        values += [None if run.status == QUEUED else ended_at, uuid]
        await self._commit(then=partial(self._finish, run, values))

    def _finish(self, run: Run, values: Values) -> None:
        lease = self.lease
        UPDATE_TRACE.execute(connections[lease.alias], [values])
        if self._lead is not None:
            return
        if run.status == QUEUED:
            lease.rows.give_back(run.uuid, lease.token)
            return
        rest = lease.rows.park if run.status == WAITING else lease.rows.rest
        rest(run.uuid, lease.token)
        if (run.is_resumed or self._has_led) and run.status != WAITING:
            self._trace().only("pk").get().leave_nothing_open()
        if run.status == WAITING and run.approvals and not self._is_asked(run):
            lease.rows.wake(run.uuid)  # all was decided while the other calls went on

    def _is_asked(self, run: Run) -> bool:
        asked = [each["approval"] for each in run.approvals]
        return Approval.objects.using(self.lease.alias).filter(pk__in=asked).open().exists()

    # -- attempts -------------------------------------------------------------------------------

    def attempt(self, kind: str, name: str, ordering: int, **fields: Any) -> Attempt:
        """Return the row of what is about to be done."""
        assert self._run is not None
        return Attempt(
            trace_id=self._run.uuid,
            ordering=ordering,
            token=self.lease.token,
            kind=kind,
            name=clean(name)[:200],
            started_at=moment(time()),
            **fields,
        )


def create(alias: str, trace: Trace, values: dict[str, Any], seconds: float | None = None) -> None:
    """Add the rows of a durable run; with ``seconds``, this process has it from now on."""
    with transaction.atomic(using=alias):
        trace.save(using=alias, force_insert=True)
        rows = DurableRun.objects.using(alias)
        rows.create(pk=trace.pk, agent=trace.agent, owner_key=trace.owner_key, **values)
        if seconds is not None:
            rows.claim(trace.pk, worker_name(), seconds)


def digest(value: Any) -> str:
    """Return 64 hex characters that are the same for equal data."""
    ordered = dict(sorted(value.items())) if isinstance(value, dict) else value
    return hashlib.sha256(dumps(ordered).encode()).hexdigest()
