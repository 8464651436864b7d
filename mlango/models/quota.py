"""What was spent of a quota, and what model calls on their way may still spend."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import reduce
from operator import or_
from typing import Any, ClassVar

from django.db import models, router, transaction
from django.db.models import F, Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from mlango.clock import Now
from mlango.models.rows import RowQuerySet

# How long a period may be; a day has 25 hours when the clocks go back.
LONGEST = {
    "hour": timedelta(hours=2),
    "day": timedelta(hours=25),
    "week": timedelta(days=8),
    "month": timedelta(days=32),
}


@dataclass(frozen=True, slots=True, order=True)
class Share:
    """So many ``units`` that a model call may take of a counter that may reach ``limit``."""

    per: str
    subject: str
    unit: str
    every: str
    starts_at: datetime
    units: int
    limit: int

    ORDER: ClassVar = ("per", "subject", "unit", "every", "starts_at")

    @property
    def key(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.ORDER}


class Exhausted(Exception):
    """A share does not fit; ``taken`` units of its counter are spent or reserved."""

    def __init__(self, share: Share, taken: int) -> None:
        super().__init__()
        self.share = share
        self.taken = taken


class QuotaUsageQuerySet(RowQuerySet["QuotaUsage"]):
    """Counters, and how something is reserved of several of them."""

    def reserve(self, shares: Iterable[Share], lasts: timedelta) -> list[QuotaReservation]:
        """Reserve all shares or, raising Exhausted, none. They lapse when so long is over."""
        alias = router.db_for_write(self.model)
        rows = self.using(alias)
        with transaction.atomic(using=alias):
            # Always in one order, so that no two wait for each other.
            return [rows._reserve_one(share, lasts) for share in sorted(shares)]

    def _reserve_one(self, share: Share, lasts: timedelta) -> QuotaReservation:
        # The first statement writes: SQLite cannot go from reading to writing when others do.
        if not self._take(share):
            self.get_or_create(**share.key)
            counter = self.select_for_update().get(**share.key)
            counter.release_lapsed()
            if not self._take(share):
                raise Exhausted(share, counter.spent + counter.reserved)
        return QuotaReservation._default_manager.using(self.db).create(
            counter=self.get(**share.key), units=share.units, expires_at=Now() + lasts
        )

    def _take(self, share: Share) -> bool:
        fits = self.filter(**share.key, spent__lte=share.limit - share.units - F("reserved"))
        return fits.update(reserved=F("reserved") + share.units) > 0

    def delete_before(self, moment: datetime) -> int:
        """Delete the counters of periods that were over then; return how many.

        One of which something is reserved stays, and so does one whose period goes on.
        """
        latest = {every: min(moment, timezone.now() - length) for every, length in LONGEST.items()}
        over = [Q(every=every, starts_at__lt=before) for every, before in latest.items()]
        free = self.filter(reserved=0, reservations=None).filter(reduce(or_, over))
        return free.delete()[1].get(self.model._meta.label, 0)

    def settle(self, spent: Iterable[tuple[QuotaReservation, int]]) -> None:
        """Put what was spent in the place of what was reserved."""
        alias = router.db_for_write(self.model)
        with transaction.atomic(using=alias):
            for reservation, units in spent:
                counter = self.using(alias).filter(pk=reservation.counter.pk)
                counter.update(spent=F("spent") + units)
                if reservation.withdraw():
                    counter.update(reserved=F("reserved") - reservation.units)


class QuotaUsage(models.Model):
    """A counter: what was spent, and is reserved, since ``starts_at``.

    It counts tokens, or billionths of a US dollar. ``subject`` is the user's key, the
    agent's label or the tenant.
    """

    per = models.CharField(_("per"), max_length=10)
    subject = models.CharField(_("subject"), max_length=255, blank=True, default="")
    unit = models.CharField(_("unit"), max_length=10)
    every = models.CharField(_("every"), max_length=10)
    starts_at = models.DateTimeField(_("starts"))
    spent = models.BigIntegerField(_("spent"), default=0)
    reserved = models.BigIntegerField(_("reserved"), default=0)

    objects = QuotaUsageQuerySet.as_manager()

    class Meta:
        verbose_name = _("quota usage")
        verbose_name_plural = _("quota usage")
        base_manager_name = "objects"
        ordering = ("-starts_at",)
        constraints = [
            models.UniqueConstraint(
                fields=["per", "subject", "unit", "every", "starts_at"],
                name="mlango_quota_counter",
            )
        ]

    def __str__(self) -> str:
        return f"{self.per} {self.subject} {self.unit} a {self.every}"

    def release_lapsed(self) -> int:
        """Give back what was reserved by processes that died; return how many rows it was.

        The row must be locked.
        """
        rows = QuotaReservation._default_manager.using(self._state.db)
        # Once found, the same are deleted: SQLite's clock goes on in a transaction.
        lapsed = list(rows.filter(counter=self, expires_at__lte=Now()))
        if not lapsed:
            return 0
        self.reserved -= sum(each.units for each in lapsed)
        self.save(update_fields=["reserved"], using=self._state.db)
        return rows.filter(pk__in=[each.pk for each in lapsed]).delete()[0]


class QuotaReservationQuerySet(RowQuerySet["QuotaReservation"]):
    """Reservations, and how those of dead processes are given back."""

    def release_lapsed(self) -> int:
        """Give back what was reserved by processes that died; return how many rows it was."""
        alias = router.db_for_write(self.model)
        lapsed = self.using(alias).filter(expires_at__lte=Now())
        counters = QuotaUsage.objects.using(alias).filter(
            pk__in=list(lapsed.values_list("counter", flat=True))
        )
        with transaction.atomic(using=alias):
            # In the order in which they are reserved, so that no two wait for each other.
            ordered = counters.select_for_update().order_by(*Share.ORDER)
            return sum(counter.release_lapsed() for counter in ordered)


class QuotaReservation(models.Model):
    """What one model call may spend of a counter, until it ends or ``expires_at``."""

    counter = models.ForeignKey(QuotaUsage, models.CASCADE, related_name="reservations")
    units = models.BigIntegerField()
    expires_at = models.DateTimeField()

    objects = QuotaReservationQuerySet.as_manager()

    class Meta:
        verbose_name = _("quota reservation")
        verbose_name_plural = _("quota reservations")
        base_manager_name = "objects"

    def __str__(self) -> str:
        return f"{self.units} until {self.expires_at}"

    def withdraw(self) -> bool:
        """Delete the row; return whether it was still there."""
        rows = type(self)._default_manager.using(self._state.db)
        return rows.filter(pk=self.pk).delete()[0] > 0
