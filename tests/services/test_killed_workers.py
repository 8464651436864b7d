"""Celery's workers are killed at the kill points of durable runs, and others go on."""

import os
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count

import pytest
from django.db import transaction

from mlango.models import DurableRun, Trace
from tests.durable import shapes
from tests.durable.agents import plan
from tests.durable.checker import violations
from tests.durable.crashing import Clerk
from tests.durable.shapes import Ledger, Shape, course, decide
from tests.services.orders import Orders
from tests.services.processes import until
from tests.services.workers import BROKERS, Site

pytestmark = pytest.mark.django_db(transaction=True)

# All of them take long. Each third run loses a second process at the same point, and
# each eighth its whole worker.
EVERY = int(os.environ.get("MLANGO_TEST_KILL_EVERY", "61"))
WORKERS, TWICE, WHOLE = 2, 3, 8
WITHDRAWN = plan([["put", {"what": "a"}]], [["withdraw", {}]], [["linger", {}]], "Never.")
SHAPES = shapes.SHAPES | {"cancel": Shape(Clerk, WITHDRAWN, 46)}
EACH = 5  # seconds that a run takes at most, in the midst of the others


@dataclass
class Kill:
    """Where a run of a shape is killed, and the same run left alone."""

    name: str
    unhurt: Trace
    part: int
    point: int
    times: int
    with_group: bool

    @property
    def shape(self):
        return SHAPES[self.name]

    def begin(self, orders):
        with transaction.atomic():  # no worker is told before the orders stand
            trace = self.shape.enqueue()
            for claims in range(self.part, self.part + self.times):
                orders.give(trace.pk, claims, self.point, with_group=self.with_group)
        return trace

    def deaths(self, trace):
        """Return how many processes died that had claimed the run."""
        return trace.durable.token - self.shape.parts


class Crew:
    """Workers that are replaced when they die, and a person who decides what is asked."""

    def __init__(self, site, stack):
        self._site = site
        self._stack = stack
        self._workers = []
        self.ledger = Ledger(site.ledger)
        self.orders = Orders(site.ledger)

    def see_through(self, traces):
        """Return the runs as they are when all of them have ended."""
        until(self._is_done, seconds=60 + EACH * len(traces))
        return [Trace.objects.get(pk=trace.pk) for trace in traces]

    def _is_done(self):
        living = [each for each in self._workers if each.poll() is None]
        for _ in range(WORKERS - len(living)):
            worker = self._site.worker("tests.services.mortalapp")
            living.append(self._stack.enter_context(worker))
        self._workers = living
        decide(self.ledger)
        return not DurableRun.objects.exclude(trace__status__in=Trace.ENDED).exists()


@pytest.fixture(params=BROKERS)
def crew(request, tmp_path, settings):
    settings.MLANGO = {"QUEUE": "celery", "LEASE_SECONDS": 3}
    site = Site(tmp_path, BROKERS[request.param])
    with site.talking(), ExitStack() as stack:
        yield Crew(site, stack)


def kills_of(unhurt, orders):
    """Yield where runs of every shape are to be killed."""
    numbers = count()
    for name, trace in unhurt.items():
        for part in range(SHAPES[name].parts):
            for point in range(EVERY // 2 + 1, orders.count(trace.pk, part) + 1, EVERY):
                number = next(numbers)
                times, with_group = 1 + (number % TWICE == 2), number % WHOLE == 4
                yield Kill(name, trace, part, point, times, with_group)


def test_each_run_is_done_wherever_its_workers_are_killed(crew):
    begun = {name: shape.enqueue() for name, shape in SHAPES.items()}
    unhurt = dict(zip(begun, crew.see_through(begun.values()), strict=True))

    kills = list(kills_of(unhurt, crew.orders))
    ended = crew.see_through([kill.begin(crew.orders) for kill in kills])

    effects = crew.ledger.read()
    for kill, trace in zip(kills, ended, strict=True):
        assert violations(trace, effects) == [], kill
        assert trace.output == kill.unhurt.output, kill
        assert trace.status == kill.unhurt.status, kill
        if trace.status != Trace.Status.CANCELLED:  # which may be sooner or later
            assert course(trace) == course(kill.unhurt), kill
    # A process that dies before it has claimed the run leaves no mark in its row.
    deaths = sum(kill.deaths(trace) for kill, trace in zip(kills, ended, strict=True))
    assert deaths > 0.8 * len(kills)
