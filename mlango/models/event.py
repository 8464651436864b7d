"""Event: what a run told, so that any process can tell it again."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

from django.db import models
from django.db.models import Exists, OuterRef
from django.utils.translation import gettext_lazy as _

from mlango.core.log import Cursor, Told, end_of, told
from mlango.models.rows import RowQuerySet

BATCH = 1000  # rows that are deleted at once


class LastTold(NamedTuple):
    """The number that a run has given to its last event, and what kind of event it is."""

    seq: int
    kind: str


class EventQuerySet(RowQuerySet["Event"]):
    """Rows of logs, and how old ones are deleted."""

    def last_of(self, uuid: str) -> Event | None:
        """Return the last row of a run's log; None if it has none."""
        return self.filter(trace=uuid).order_by("-seq", "-part").first()

    def last_told(self, uuid: str, lead: str) -> LastTold | None:
        """Return what a run has told last; ``lead`` is the run that keeps the log."""
        if uuid == lead:
            row = self.last_of(uuid)
            return None if row is None else LastTold(row.last.seq, row.kind)
        rows = self.filter(trace=lead, part__gt=0, data_json__contains=uuid)
        for row in rows.order_by("-seq", "-part").iterator():
            document = [*row.told()][-1].describe()
            if document["run"] == uuid:  # others may speak of it
                return LastTold(document["seq"], row.kind)
        return None

    def prune(self, before: datetime) -> int:
        """Delete the rows from before then; return how many.

        The last row of each log stays, so that readers who come late are told that something
        is missing, and a run that goes on does not begin to count again.
        """
        later = self.model._base_manager.using(self.db).filter(
            trace=OuterRef("trace"), seq__gt=OuterRef("seq")
        )
        old = self.filter(Exists(later), at__lt=before).order_by("pk")
        deleted = 0
        while pks := list(old.values_list("pk", flat=True)[:BATCH]):
            self.filter(pk__in=pks).delete()
            deleted += len(pks)
        return deleted


class Event(models.Model):
    """One event of a run, or ``count`` chunks of text that came one after the other.

    ``seq`` and ``part`` are the first one's place: the run's own event, and how many events
    of sub-agents came since it.
    """

    # As with spans, the run's row may be written later, and the constraint is the index.
    trace = models.ForeignKey(
        "mlango.Trace",
        models.CASCADE,
        related_name="events",
        db_constraint=False,
        db_index=False,
    )
    seq = models.PositiveIntegerField()
    part = models.PositiveIntegerField(default=0)
    count = models.PositiveIntegerField(default=1)
    kind = models.CharField(_("kind"), max_length=30)
    at = models.DateTimeField(_("at"))
    data_json = models.TextField()

    objects = EventQuerySet.as_manager()

    class Meta:
        verbose_name = _("event")
        verbose_name_plural = _("events")
        base_manager_name = "objects"
        ordering = ("trace_id", "seq", "part")
        constraints = [
            models.UniqueConstraint(fields=["trace", "seq", "part"], name="mlango_event_unique")
        ]

    def __str__(self) -> str:
        return f"{self.first} {self.kind}"

    @property
    def first(self) -> Cursor:
        """The place of its first event."""
        return Cursor(self.seq, self.part)

    @property
    def last(self) -> Cursor:
        """The place of its last event."""
        return end_of(self.first, self.count)

    def told(self) -> Iterator[Told]:
        """Yield the events that the row stands for, as they were told."""
        return told(self.first, self.kind, self.count, self.data_json)
