"""Runs that begin by the clock: ``Meta.schedule``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError
from django.utils import timezone
from django.utils.module_loading import import_string

from mlango.exceptions import Misconfigured

logger = logging.getLogger("mlango.durable")

FIELDS = 5  # cronsim knows seconds too, but nobody looks that often
OFTEN = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Target:
    """Someone for whom a schedule fires, such as a tenant.

    ``key`` tells it from others. ``time_zone`` is the one that its hours are of, the
    schedule's own if empty. ``options`` are those of ``enqueue()``, such as ``user``.
    """

    key: str = ""
    time_zone: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Firing:
    """A run that is due: its key is the same in every process."""

    key: str
    at: datetime
    options: Mapping[str, Any]


class Cron:
    """Asks the agent ``message`` at the times of a cron expression, such as ``0 8 * * 1-5``.

    The hours are those of ``time_zone``, the site's ``TIME_ZONE`` if empty; where clocks are
    put forward or back, it fires as Debian's cron does. ``targets`` returns the Targets to
    fire for, or is the dotted path of what does. What fell due while no worker ran is made
    up for, once, if that is no longer ago than ``catch_up``.
    """

    def __init__(
        self,
        expression: str,
        message: str,
        *,
        time_zone: str = "",
        targets: Callable[[], Iterable[Target]] | str | None = None,
        catch_up: timedelta = timedelta(hours=1),
        **options: Any,
    ) -> None:
        self.expression = expression
        self.message = message
        self.time_zone = time_zone
        self.catch_up = catch_up
        self.options = options
        self._targets = targets
        if not isinstance(message, str) or not message.strip():
            raise Misconfigured(f"Cron({expression!r}) needs a message for the agent.")
        if not isinstance(catch_up, timedelta) or catch_up < OFTEN:
            raise Misconfigured(
                f"Cron({expression!r}, catch_up={catch_up!r}): it is a timedelta of a minute or "
                f"more, as workers do not look more often."
            )
        check_expression(expression)
        zone_named(time_zone)

    def __repr__(self) -> str:
        return f"Cron({self.expression!r}, {self.message!r})"

    def targets(self) -> Iterable[Target]:
        """Return for whom it fires; asks the database, perhaps."""
        if self._targets is None:
            return (Target(),)
        found = import_string(self._targets) if isinstance(self._targets, str) else self._targets
        return found()

    def last(self, now: datetime, time_zone: str = "") -> datetime:
        """Return when it was last due, which may be now."""
        # Going back begins with the minute before its start.
        start = now.astimezone(UTC).replace(second=0, microsecond=0) + timedelta(minutes=1)
        zone = zone_named(time_zone or self.time_zone)
        return next(CronSim(self.expression, start.astimezone(zone), reverse=True))

    def due(self, name: str, now: datetime) -> Iterator[Firing]:
        """Yield what is to run: the last firing of each target, unless it is too long ago."""
        for target in self.targets():
            try:
                at = self.last(now, target.time_zone)
            except StopIteration:  # a day that no month has
                continue
            except Misconfigured:  # the others fire all the same
                logger.exception("%r does not fire for %r.", self, target.key)
                continue
            if now - at <= self.catch_up:
                key = " ".join((name, target.key, at.astimezone(UTC).isoformat()))
                yield Firing(key, at, {**self.options, **target.options})


def check_expression(expression: Any) -> None:
    """Raise Misconfigured unless cron would read the expression."""
    try:
        CronSim(expression, datetime(2000, 1, 1))
        is_cron, why = len(expression.split()) == FIELDS, "Wrong number of fields"
    except (CronSimError, AttributeError) as error:
        is_cron, why = False, str(error)
    if not is_cron:
        raise Misconfigured(
            f"{expression!r} is no cron expression: {why}. "
            f"Write five fields, such as '0 8 * * 1-5' for eight o'clock on weekdays."
        )


def zone_named(name: str) -> tzinfo:
    """Return a time zone, the site's for an empty name."""
    if not name:
        return timezone.get_default_timezone()
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, TypeError):
        raise Misconfigured(
            f"There is no time zone {name!r}. Write one such as 'Europe/Berlin'."
        ) from None
