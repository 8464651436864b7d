"""Trace: the record of a run."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from asgiref.sync import sync_to_async
from django.apps import apps
from django.conf import settings as django_settings
from django.db import models
from django.db.models.functions import Coalesce
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from mlango.clock import Now
from mlango.conf import settings
from mlango.core.messages import user_messages
from mlango.core.numbers import plain
from mlango.core.provider import Message
from mlango.core.state import fold
from mlango.core.usage import Usage
from mlango.core.values import dumps
from mlango.exceptions import Misused, WrongStatus
from mlango.models.instruction import MAX_WAITING, Instruction
from mlango.models.json import decoded
from mlango.models.owned import OwnedQuerySet
from mlango.models.span import Span

# A run may wait for its session before its own time begins, and its end takes a moment.
LOST_MARGIN = timedelta(minutes=5)
# Without AGENT_TIMEOUT a run may take as long as it likes; no foreground run takes a day.
LOST_WITHOUT_TIMEOUT = timedelta(days=1)


class TraceQuerySet(OwnedQuerySet["Trace"]):
    """Traces, and what is done to many of them."""

    def with_turns(self) -> TraceQuerySet:
        """Fetch the spans too, as far as ``turn`` needs them."""
        spans = Span.objects.defer("input_json", "attributes_json", "error")
        return self.prefetch_related(models.Prefetch("spans", spans))

    def messages_of(self, uuids: Iterable[str]) -> list[Message]:
        """Return what the runs with these uuids added to their conversation, in that order."""
        found = self.with_turns().in_bulk(list(uuids))
        return [message for uuid in uuids if uuid in found for message in found[uuid].turn]

    def mark_lost(self, older_than: timedelta | None = None) -> int:
        """Mark the runs whose process died as lost; return how many there were.

        A run is lost if it is still running and its last sign of life is older than
        ``older_than``, by default AGENT_TIMEOUT and a margin. Signs of life are its beginning,
        what it has written since, also for those that work for it, and its session's turn.
        """
        since = timezone.now() - (_longest() if older_than is None else older_than)
        running = self.alias(begun_at=Coalesce("resumed_at", "started_at")).filter(
            ~_has_written(since),
            ~_holds_turn(since),
            status=Trace.Status.RUNNING,
            begun_at__lt=since,
        )
        return running.exclude(pk__in=self._durable(running)).update(
            status=Trace.Status.LOST, error="The process ended before the run did."
        )

    def _durable(self, running: TraceQuerySet) -> list[str]:
        """Return the keys of those that another process goes on with, or with their lead."""
        return [trace.pk for trace in running.only("parent") if hasattr(trace.root, "durable")]


def _has_written(since: datetime) -> models.Q:
    """Return the condition that a run, or one that works for it, has written since."""
    own = models.Q(trace=models.OuterRef("pk"))
    family = own | models.Q(trace__parent=models.OuterRef("pk"))
    # By name: its module imports this one's neighbours.
    events = apps.get_model("mlango", "Event")._base_manager
    return models.Q(models.Exists(Span.objects.filter(family, ended_at__gte=since))) | models.Q(
        models.Exists(events.filter(own, at__gte=since))
    )


def _holds_turn(since: datetime) -> models.Q:
    """Return the condition that a run has renewed the turn of its session since."""
    until = since + timedelta(seconds=settings.LEASE_SECONDS)
    sessions = apps.get_model("mlango", "Session")._base_manager
    held = sessions.filter(turn=models.OuterRef("pk"), turn_until__gte=until)
    return models.Q(models.Exists(held))


def _longest() -> timedelta:
    seconds = settings.AGENT_TIMEOUT
    if seconds is None:
        return LOST_WITHOUT_TIMEOUT
    return timedelta(seconds=seconds + settings.SESSION_WAIT) + LOST_MARGIN


class Trace(models.Model):
    """A run: who ran what, how it ended, and what it used.

    ``cost`` is in US dollars, None where a price is unknown. ``input`` and ``output`` are
    text for people; ``messages`` are what the model was told and said. ``ended_at`` is None
    while the run goes on, and for a lost one.
    """

    class Status(models.TextChoices):
        QUEUED = "queued", _("queued")
        RUNNING = "running", _("running")
        FINISHED = "finished", _("finished")
        STOPPED = "stopped", _("stopped")
        WAITING = "waiting", _("waiting")
        CANCELLED = "cancelled", _("cancelled")
        FAILED = "failed", _("failed")
        LOST = "lost", _("lost")

    # Of these nothing more is to come, unless someone resumes them.
    ENDED = (Status.FINISHED, Status.STOPPED, Status.CANCELLED, Status.FAILED, Status.LOST)

    OPEN = (Status.QUEUED, Status.RUNNING, Status.WAITING)

    # 32 lowercase hex characters: also valid as the trace id of W3C and OpenTelemetry.
    uuid = models.CharField(primary_key=True, max_length=32)
    agent = models.CharField(_("agent"), max_length=200)
    status = models.CharField(_("status"), max_length=10, choices=Status, default=Status.RUNNING)
    stop_reason = models.CharField(_("stop reason"), max_length=50, blank=True, default="")
    # A run must be recorded even if its user or session is deleted while it goes on, or
    # lives in another database: these keys are not checked by the database.
    user = models.ForeignKey(
        django_settings.AUTH_USER_MODEL,
        models.SET_NULL,
        verbose_name=_("user"),
        null=True,
        blank=True,
        db_constraint=False,
        db_index=False,
        related_name="+",
    )
    owner_key = models.CharField(max_length=255, blank=True, default="", editable=False)
    session = models.ForeignKey(
        "mlango.Session",
        models.SET_NULL,
        verbose_name=_("session"),
        null=True,
        blank=True,
        db_constraint=False,
        db_index=False,
        related_name="traces",
    )
    session_key = models.CharField(max_length=128, blank=True, default="")
    parent = models.ForeignKey(
        "self",
        models.SET_NULL,
        verbose_name=_("parent"),
        null=True,
        blank=True,
        db_constraint=False,
        db_index=False,
        related_name="children",
    )
    provider = models.CharField(_("provider"), max_length=100, blank=True, default="")
    model = models.CharField(_("model"), max_length=200, blank=True, default="")
    fingerprint = models.CharField(max_length=64, blank=True, default="")
    input = models.TextField(_("input"), blank=True, default="")
    output = models.TextField(_("output"), blank=True, default="")
    error = models.TextField(_("error"), blank=True, default="")
    opening_json = models.TextField(blank=True, default="")
    metadata_json = models.TextField(blank=True, default="")
    steps = models.PositiveIntegerField(_("steps"), default=0)
    span_count = models.PositiveIntegerField(default=0)
    error_count = models.PositiveIntegerField(default=0)
    input_tokens = models.BigIntegerField(_("input tokens"), default=0)
    output_tokens = models.BigIntegerField(_("output tokens"), default=0)
    cache_read_tokens = models.BigIntegerField(default=0)
    cache_write_tokens = models.BigIntegerField(default=0)
    reasoning_tokens = models.BigIntegerField(default=0)
    estimated = models.BooleanField(default=False)
    cost = models.DecimalField(
        _("cost"), max_digits=20, decimal_places=10, null=True, blank=True, default=0
    )
    started_at = models.DateTimeField(_("started"))
    # A run may have waited for days before it went on, and has its whole time again.
    resumed_at = models.DateTimeField(null=True, blank=True, editable=False)
    ended_at = models.DateTimeField(_("ended"), null=True, blank=True)

    # {"system", "said", "surroundings" (the language and the time zone), and "messages" or
    # "traces": the uuids the history was recalled from}, and "buffered" for a run whose
    # answers are told when they are complete
    opening = decoded("opening_json", empty={})
    metadata = decoded("metadata_json", empty={})

    objects = TraceQuerySet.as_manager()

    class Meta:
        verbose_name = _("trace")
        verbose_name_plural = _("traces")
        base_manager_name = "objects"
        ordering = ("-started_at",)
        get_latest_by = "started_at"
        indexes = [
            models.Index(fields=["-started_at"], name="mlango_trace_started"),
            models.Index(fields=["agent", "-started_at"], name="mlango_trace_agent"),
            models.Index(fields=["status", "-started_at"], name="mlango_trace_status"),
            models.Index(fields=["user", "-started_at"], name="mlango_trace_user"),
            models.Index(fields=["session", "-started_at"], name="mlango_trace_session"),
            models.Index(fields=["parent"], name="mlango_trace_parent"),
            models.Index(
                fields=["agent", "owner_key", "session_key", "-ended_at"],
                name="mlango_trace_memory",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.agent} {self.uuid[:8]}"

    @property
    def history(self) -> list[Message]:
        """The messages of earlier runs that this one began with, oldest first."""
        opening = self.opening
        if "traces" in opening:
            return type(self)._default_manager.using(self._state.db).messages_of(opening["traces"])
        return list(opening.get("messages", ()))

    @property
    def turn(self) -> list[Message]:
        """The messages that this run added, oldest first; none if content was not captured."""
        if not self.opening_json:
            return []
        return fold(self.opening["said"], self.spans.all())

    @property
    def messages(self) -> list[Message]:
        """The history and the turn, as ``AgentRun.messages`` has them."""
        return [*self.history, *self.turn]

    @property
    def root(self) -> Trace:
        """The run that this one works for in the end, which is the one to go on with."""
        trace = self
        while trace.parent is not None:
            trace = trace.parent
        return trace

    def cancel(self) -> bool:
        """Have a durable run stop, whichever process has it; what it has done is kept.

        Return whether there was anything to stop. Raise Misused for a run that is not durable.
        """
        rows = type(self._must_be_durable())._default_manager.using(self._state.db)
        return bool(rows.cancel(self.pk))

    async def acancel(self) -> bool:
        """Have a durable run stop; see ``cancel``."""
        return await sync_to_async(self.cancel)()

    def steer(self, message: Any, *, now: bool = False) -> None:
        """Have a durable run read ``message`` before its next model call, in any process.

        It is told within about a second. Raise Misused for a run that is not durable, and
        WrongStatus for one that neither goes on nor is about to.
        """
        self._instruct(Instruction.Kind.STEER, message, now=now)

    async def asteer(self, message: Any, *, now: bool = False) -> None:
        """Have a durable run read ``message`` before its next model call; see ``steer``."""
        await sync_to_async(self.steer)(message, now=now)

    def follow_up(self, message: Any) -> None:
        """Have a durable run go on with ``message`` when it would be done; see ``steer``."""
        self._instruct(Instruction.Kind.FOLLOW_UP, message)

    async def afollow_up(self, message: Any) -> None:
        """Have a durable run go on with ``message`` when it would be done; see ``steer``."""
        await sync_to_async(self.follow_up)(message)

    def _instruct(self, kind: str, message: Any, *, now: bool = False) -> None:
        said = user_messages(message)
        self._must_be_durable()
        self.refresh_from_db(fields=["status"])
        if self.status not in (Trace.Status.RUNNING, Trace.Status.QUEUED):
            raise WrongStatus(f"The run {self.uuid[:8]} is {self.status} and hears nothing.")
        rows = Instruction.objects.using(self._state.db)
        if rows.filter(trace=self).count() >= MAX_WAITING:
            raise Misused(f"{MAX_WAITING} messages wait for the run {self.uuid[:8]} already.")
        rows.create(trace=self, kind=kind, now=now, said_json=dumps(said))

    def _must_be_durable(self) -> Any:
        """Return the run's DurableRun; raise Misused if it has none."""
        durable = getattr(self, "durable", None)
        if durable is None:
            raise Misused(
                f"The run {self.uuid[:8]} is not durable: only its own process can tell it."
            )
        return durable

    @property
    def tree(self) -> set[str]:
        """The keys of this run and of those that wait and work for it."""
        pks, newest = {self.pk}, {self.pk}
        rows = type(self)._default_manager.using(self._state.db)
        while newest:
            children = rows.filter(parent__in=newest, status=Trace.Status.WAITING)
            newest = set(children.values_list("pk", flat=True)) - pks
            pks |= newest
        return pks

    @property
    def duration_s(self) -> float | None:
        """How many seconds the run took; None if it has not ended."""
        return None if self.ended_at is None else (self.ended_at - self.started_at).total_seconds()

    @property
    def usage(self) -> Usage:
        return Usage(
            self.input_tokens,
            self.output_tokens,
            self.cache_read_tokens,
            self.cache_write_tokens,
            self.reasoning_tokens,
            self.estimated,
        )

    @property
    def used(self) -> tuple[Usage, Decimal | None]:
        """What the model calls used, with those of the runs that work for this one, and cost.

        It is up to date while the run goes on, too.
        """
        asked = [span for span in self.spans.all() if span.kind == Span.Kind.LLM]
        used = [(span.usage or Usage(), span.cost) for span in asked if span.output_json]
        used += [child.used for child in self.children.all()]
        costs = [cost for _, cost in used]
        cost = None if None in costs else sum(filter(None, costs), Decimal(0))
        return sum((usage for usage, _ in used), Usage()), cost

    def give_up(self) -> None:
        """Cancel this run, which nobody goes on with, and all that is open for it."""
        self._end(self.Status.CANCELLED, "cancelled", "The run that asked for this one ended.")

    def fail(self, error: str, reason: str = "error") -> None:
        """Fail this run, which nobody goes on with, and close all that is open for it."""
        self._end(self.Status.FAILED, reason, error)

    def _end(self, status: str, reason: str, error: str) -> None:
        rows = type(self)._default_manager.using(self._state.db)
        ended = {"status": status, "stop_reason": reason, "error": error, "ended_at": Now()}
        rows.filter(pk=self.pk, status__in=self.OPEN).update(**ended)
        self.leave_nothing_open()

    def leave_nothing_open(self) -> None:
        """Close what this run has asked, and give up the runs that were to work for it."""
        self.approvals.filter(status="pending").update(status="expired", decided_at=Now())
        for child in self.children.filter(status__in=self.OPEN):
            child.give_up()

    def describe(self) -> dict[str, Any]:
        """Return what a list of runs shows, JSON-safe and without content."""
        return {
            "trace": self.uuid,
            "agent": self.agent,
            "status": self.status,
            "stop_reason": self.stop_reason,
            "session_id": self.session_key,
            "model": self.model,
            "steps": self.steps,
            "usage": self.usage.describe(),
            "cost": None if self.cost is None else plain(self.cost),
            "started_at": self.started_at.isoformat(),
            "duration_s": self.duration_s,
        }
