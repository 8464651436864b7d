"""What is looked after from time to time, by whichever process does runs."""

from __future__ import annotations

import logging
import random
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from django.db import DatabaseError, InterfaceError, connections

from mlango.agents.queues import ring
from mlango.conf import settings
from mlango.exceptions import IdempotencyConflict
from mlango.models import DurableRun
from mlango.runtime import database
from mlango.runtime.registry import registry
from mlango.runtime.sweep import sweep

if TYPE_CHECKING:
    from mlango.agents.agent import Agent
    from mlango.agents.schedules import Cron, Firing

logger = logging.getLogger("mlango.durable")

OVERDUE = timedelta(seconds=5)  # what a bell that was heard takes at most to be answered
SPREAD = 0.5  # seconds over which the rounds of many workers are spread
MANY = 200  # runs of a queue to ring for in one round


class Clock:
    """Begins what the schedules of all agents say, and remembers what it has begun."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def fire(self, now: datetime) -> int:
        """Enqueue what is due and was not seen yet; return how many firings there were.

        Each has a key, so that however many processes look, one run comes of it.
        """
        seen, fired = set(), 0
        for agent, name, schedule in _schedules():
            for firing in _due(schedule, name, now):
                seen.add(firing.key)
                if firing.key not in self._seen:
                    _enqueue(agent, schedule, firing)
                    fired += 1
        self._seen = seen
        return fired


clock = Clock()


def go_round() -> None:
    """Have runs go on that wait for nobody any more, and begin those that are due by the clock."""
    sweep(database.alias())
    clock.fire(datetime.now(UTC))  # aware, whatever USE_TZ is


def go_round_alone() -> None:
    """Go round in a thread that is used for nothing else, and leave no connection in it."""
    try:
        go_round()
    finally:
        connections.close_all()


def _schedules() -> Iterator[tuple[type[Agent], str, Cron]]:
    """Yield the schedules with names that stay when one is added before them, or taken away."""
    for agent in registry.all():
        alike: Counter[str] = Counter()
        for schedule in agent._meta.schedule:
            number = alike[schedule.expression]
            alike[schedule.expression] += 1
            yield agent, f"{agent._meta.label} {schedule.expression} {number}", schedule


def _due(schedule: Cron, name: str, now: datetime) -> list[Firing]:
    try:
        return list(schedule.due(name, now))
    except (DatabaseError, InterfaceError):
        raise
    except Exception:  # the project's own function is called here
        logger.exception("The schedule %s does not say when it is due.", name)
        return []


def _enqueue(agent: type[Agent], schedule: Cron, firing: Firing) -> None:
    try:
        agent().enqueue(schedule.message, idempotency_key=firing.key, **firing.options)
    except IdempotencyConflict:  # it fired before the schedule was changed
        pass
    except (DatabaseError, InterfaceError):
        raise
    except Exception:  # the project's own classes and options are used here
        logger.exception("The run %s could not be begun.", firing.key)


def ring_for_overdue() -> int:
    """Ring for runs that were left, and again for those that nobody came for; return how many."""
    rows = DurableRun.objects.using(database.alias())
    late = [run for queue in rows.queues() for run in rows.due(queue, MANY, late=OVERDUE)]
    runs = {run.pk: run for run in (*rows.left(MANY), *late)}
    for run in runs.values():
        ring(run)
    return len(runs)


def until_next_round() -> float:
    """Return how many seconds to rest: until a lease may be over, or half of one.

    A process that lives renews its leases before that.
    """
    lapse = DurableRun.objects.using(database.alias()).next_lapse()
    return _half_a_lease() if lapse is None else min(lapse, _half_a_lease())


def _half_a_lease() -> float:
    return float(settings.LEASE_SECONDS) / 2


class Rounds(threading.Thread):
    """Goes round, and rings for what is overdue, beside workers that only come when called."""

    def __init__(self) -> None:
        super().__init__(name="mlango-rounds", daemon=True)
        self._ended = threading.Event()

    def run(self) -> None:
        rest = 0.0
        while not self._ended.wait(rest):
            rest = self._go_round() + random.uniform(0, SPREAD)

    def _go_round(self) -> float:
        """Return how many seconds to rest."""
        try:
            ring_for_overdue()
            go_round()
            return until_next_round()
        except (DatabaseError, InterfaceError) as error:
            logger.warning("The database cannot be asked: %s", type(error).__name__)
            return _half_a_lease()
        finally:
            connections.close_all()

    def stop(self) -> None:
        """End after the round that goes on."""
        self._ended.set()
