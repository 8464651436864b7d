"""DurableRun: a run that outlives its process, who has it, and when it is due.

A run is due from ``due_at`` on: when it was enqueued, or when the lease of a process that
said no more is over. So one query finds both what nobody has begun and what somebody left.
All times are those of the database's clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

from django.db import connections, models, transaction
from django.db.models import Case, F, Q, Value, When
from django.utils.translation import gettext_lazy as _

from mlango.clock import Now
from mlango.models.json import decoded
from mlango.models.owned import OwnedQuerySet
from mlango.models.trace import Trace

DEFAULT_QUEUE = "default"
NO_TIME = timedelta()
_RESTING: dict[str, Any] = {"worker": "", "crashes": 0, "crashed_at": None}


class DurableRunQuerySet(OwnedQuerySet["DurableRun"]):
    """Durable runs, and how each comes to have one process at a time."""

    def due(
        self, queue: str, count: int, *, late: timedelta = NO_TIME, lock: bool = False
    ) -> list[DurableRun]:
        """Return up to ``count`` runs that can be claimed, the most urgent first, then the oldest.

        Each priority is asked for by itself: so those for later are not read, however many
        there are. ``late`` is how long they must have been due; with ``lock`` those that
        another transaction has are left out.
        """
        found: list[DurableRun] = []
        features = connections[self.db].features
        for priority in self._priorities(queue):
            due = self.filter(queue=queue, priority=priority, due_at__lte=Now() - late)
            if lock and features.has_select_for_update:
                due = due.select_for_update(skip_locked=features.has_select_for_update_skip_locked)
            found += due.order_by("due_at")[: count - len(found)]
            if len(found) == count:
                break
        return found

    def left(self, count: int) -> list[DurableRun]:
        """Return up to ``count`` runs that a process held and let lapse, the oldest first."""
        return list(self._leased().filter(due_at__lte=Now())[:count])

    def next_lapse(self) -> float | None:
        """Return in how many seconds the first lease is over; None if nothing is held."""
        ends_in = self._leased().filter(due_at__gt=Now()).annotate(ends_in=F("due_at") - Now())
        first = ends_in.values_list("ends_in", flat=True).first()
        return None if first is None else first.total_seconds()

    def _leased(self) -> DurableRunQuerySet:
        return self.exclude(worker="").order_by("due_at")

    def _priorities(self, queue: str) -> Iterator[int]:
        """Yield the priorities of what is to be done in a queue, the highest first."""
        rows = self.filter(queue=queue, due_at__isnull=False).order_by("-priority")
        left = rows
        while (priority := left.values_list("priority", flat=True).first()) is not None:
            yield priority
            left = rows.filter(priority__lt=priority)

    def queues(self) -> Iterator[str]:
        """Yield the names of the queues in which something is to be done."""
        left = rows = self.filter(due_at__isnull=False).order_by("queue")
        while (queue := left.values_list("queue", flat=True).first()) is not None:
            yield queue
            left = rows.filter(queue__gt=queue)

    def claim_due(self, queue: str, worker: str, seconds: float, count: int) -> list[DurableRun]:
        """Claim up to ``count`` runs for a worker, with leases of so many seconds."""
        with transaction.atomic(using=self.db):
            due = self.only("pk").due(queue, count, lock=True)
            return self._claim([run.pk for run in due], worker, seconds) if due else []

    def claim(self, pk: str, worker: str, seconds: float) -> DurableRun | None:
        """Claim a run if it is due; return None if it is not, or another process was first.

        A run that was held when its lease ended has crashed, at the step that it was at.
        """
        with transaction.atomic(using=self.db):
            return next(iter(self._claim([pk], worker, seconds)), None)

    def _claim(self, pks: list[str], worker: str, seconds: float) -> list[DurableRun]:
        """Claim what is due of some runs; if they are several, this transaction has them."""
        again = ~Q(worker="") & Q(crashed_at=F("progress"))
        if not self.filter(pk__in=pks, due_at__lte=Now()).update(
            crashes=Case(
                When(again, then=F("crashes") + 1),
                When(~Q(worker=""), then=Value(1)),
                default=F("crashes"),
                output_field=models.PositiveSmallIntegerField(),
            ),
            crashed_at=Case(When(~Q(worker=""), then=F("progress")), default=F("crashed_at")),
            **_held(F("token") + 1, worker, seconds),
        ):
            return []
        Trace.objects.using(self.db).filter(pk__in=pks).update(status=Trace.Status.RUNNING)
        claimed = self.in_bulk(pks)
        return [claimed[pk] for pk in pks]

    def take(self, pk: str, worker: str, seconds: float) -> DurableRun | None:
        """Claim a run that waits, stopped or failed, for a process that goes on with it."""
        resting = self.filter(pk=pk, worker="")
        held = _held(F("token") + 1, worker, seconds)
        return self.get(pk=pk) if resting.update(cancel_requested=False, **held) else None

    def held(self, pk: str, token: int) -> DurableRunQuerySet:
        """Return the run while this token still holds it."""
        return self.filter(pk=pk, token=token, due_at__isnull=False).exclude(worker="")

    def mine(
        self, worker: str, pks: Iterable[str], renew: float | None = None
    ) -> dict[str, DurableRun]:
        """Return those of the runs that a worker still has, by key.

        With ``renew`` their leases last so many seconds from now.
        """
        mine = self.filter(pk__in=list(pks), worker=worker, due_at__isnull=False)
        if renew is not None:
            mine.update(due_at=_in(renew))
        return {run.pk: run for run in mine.only("token", "cancel_requested")}

    def give_back(self, pk: str, token: int, seconds: float = 0.0) -> bool:
        """Give a run back to be claimed by anyone, after so many seconds."""
        return bool(self.held(pk, token).update(worker="", due_at=_in(seconds)))

    def rest(self, pk: str, token: int) -> bool:
        """End a lease on a run that has ended: nothing is due any more."""
        return bool(self.held(pk, token).update(**_RESTING, due_at=None, cancel_requested=False))

    def park(self, pk: str, token: int) -> bool:
        """End a lease on a run that waits: it is due only if it was cancelled meanwhile."""
        is_cancelled = When(cancel_requested=True, then=Now())
        due_at = Case(is_cancelled, default=None, output_field=models.DateTimeField())
        return bool(self.held(pk, token).update(**_RESTING, due_at=due_at))

    def cancel(self, pk: str) -> bool:
        """Have a run stop, wherever it is; return whether there was anything to stop."""
        with transaction.atomic(using=self.db):
            run = self.filter(pk=pk)
            if run.filter(token=0, due_at__isnull=False).update(due_at=None):  # nobody began it
                return bool(
                    Trace.objects.using(self.db)
                    .filter(pk=pk)
                    .update(status=Trace.Status.CANCELLED, stop_reason="cancelled", ended_at=Now())
                )
            if run.exclude(worker="").update(cancel_requested=True):
                return True
            left = run.filter(trace__status__in=(Trace.Status.WAITING, Trace.Status.QUEUED))
            return bool(left.update(cancel_requested=True, due_at=Now()))

    def wake(self, pk: str) -> bool:
        """Have a run that waits be claimed."""
        waiting = self.filter(pk=pk, due_at__isnull=True, trace__status=Trace.Status.WAITING)
        with transaction.atomic(using=self.db):
            # Else who is about to park it would not be seen, and has looked before this.
            self.select_for_update().filter(pk=pk).first()
            return bool(waiting.update(due_at=Now()))


def _in(seconds: float) -> Any:
    # SQLite compares texts, and a sum has more digits than Now().
    return Now() + timedelta(seconds=seconds) if seconds else Now()


def _held(token: Any, worker: str, seconds: float) -> dict[str, Any]:
    return {"token": token, "worker": worker, "due_at": _in(seconds), "written": 0}


class DurableRun(models.Model):
    """What it takes to begin a run, or go on with it, in any process.

    ``token`` counts the processes that had it: what an earlier one still writes is refused.
    ``progress`` counts what was finished in it; ``crashes`` those that happened in a row
    while it stood at ``crashed_at``. ``written`` is the number of the last transaction of the
    process that has it: one whose answer was lost is known by it.
    """

    trace = models.OneToOneField(
        Trace, models.CASCADE, primary_key=True, related_name="durable", db_constraint=False
    )
    agent = models.CharField(_("agent"), max_length=200)
    owner_key = models.CharField(max_length=255, blank=True, default="", editable=False)
    request_json = models.TextField(blank=True, default="")
    idempotency_key = models.CharField(max_length=255, null=True, blank=True)
    request_digest = models.CharField(max_length=64, blank=True, default="")
    queue = models.CharField(_("queue"), max_length=32, default=DEFAULT_QUEUE)
    priority = models.SmallIntegerField(_("priority"), default=0)
    due_at = models.DateTimeField(_("due"), null=True, blank=True)
    token = models.PositiveIntegerField(default=0)
    written = models.PositiveIntegerField(default=0)
    worker = models.CharField(_("worker"), max_length=64, blank=True, default="")
    progress = models.PositiveIntegerField(default=0)
    crashes = models.PositiveSmallIntegerField(_("crashes"), default=0)
    crashed_at = models.PositiveIntegerField(null=True, blank=True)
    cancel_requested = models.BooleanField(default=False)

    # {"said", "config" of the agent, "options" of the run, "surroundings" of who asked}
    request = decoded("request_json", empty={})

    objects = DurableRunQuerySet.as_manager()

    class Meta:
        verbose_name = _("durable run")
        verbose_name_plural = _("durable runs")
        base_manager_name = "objects"
        constraints = [
            models.UniqueConstraint(
                fields=["agent", "owner_key", "idempotency_key"], name="mlango_durable_key"
            )
        ]
        # Only what is still to be done is in the index, however many runs have ended.
        indexes = [
            models.Index(
                fields=["queue", "-priority", "due_at"],
                condition=Q(due_at__isnull=False),
                name="mlango_durable_due",
            ),
            models.Index(fields=["due_at"], condition=~Q(worker=""), name="mlango_durable_lease"),
        ]

    def __str__(self) -> str:
        return f"{self.agent} {self.pk[:8]}"

    @property
    def lease_until(self) -> datetime | None:
        """Until when a process has the run, if it says no more; None if nobody has it."""
        return self.due_at if self.worker else None
