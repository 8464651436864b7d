"""Runs whose next process is killed too, and runs that are cancelled at every kill point."""

import os
from itertools import count
from random import Random

import pytest

from mlango.agents.execution import execute_now
from mlango.models import Trace
from tests.durable.checker import violations
from tests.durable.shapes import SHAPES, course, decide, let_lapse, see_through

# There are thousands of pairs, of which some are drawn; all cancels take minutes.
PAIRS = int(os.environ.get("MLANGO_TEST_KILL_PAIRS", "2"))
EVERY = int(os.environ.get("MLANGO_TEST_CANCEL_EVERY", "23"))

pytestmark = pytest.mark.django_db(transaction=True)


def pairs(name):
    """Return pairs of kill points for a shape, always the same."""
    chance, points = Random(name), range(1, SHAPES[name].points)
    return [tuple(chance.choices(points, k=2)) for _ in range(PAIRS)]


@pytest.mark.parametrize("name", SHAPES)
def test_a_run_is_done_though_its_next_process_is_killed_too(name, mortals, ledger):
    shape = SHAPES[name]
    unhurt = see_through(shape.enqueue(), ledger)
    for pair in pairs(name):
        fatal = iter(pair)

        def do(uuid, fatal=fatal):
            number = next(fatal, None)
            return execute_now(uuid) if number is None else mortals.do(uuid, number)

        trace = see_through(shape.enqueue(), ledger, do)

        assert violations(trace, ledger.read()) == [], f"kill points {pair}"
        assert (trace.output, course(trace)) == (unhurt.output, course(unhurt)), pair


def at_each_point(shape, mortals, ledger, meet):
    """Yield runs of which ``meet`` has had a child do a part up to a kill point, each in turn."""
    for part in range(shape.parts):
        for point in count(1, EVERY):
            trace = shape.enqueue()
            for _ in range(part):
                mortals.do(trace.pk)
                decide(ledger)
            if meet(trace.pk, point):
                break
            yield trace, f"part {part}, kill point {point}"


def ended(uuid):
    """Go on with a run that nobody decides about; return its trace."""
    let_lapse(uuid)
    execute_now(uuid)
    return Trace.objects.get(pk=uuid)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
class TestACancel:
    def test_ends_a_run_wherever_its_process_was_killed(self, shape, mortals, ledger):
        for trace, where in at_each_point(shape, mortals, ledger, mortals.do):
            trace.cancel()

            trace = ended(trace.pk)

            assert trace.status in ("cancelled", "finished"), where
            assert violations(trace, ledger.read()) == [], where

    def test_ends_a_run_whatever_its_process_is_at(self, shape, mortals, ledger):
        for trace, where in at_each_point(shape, mortals, ledger, mortals.cancel):
            trace = ended(trace.pk)

            assert trace.status in ("cancelled", "finished"), where
            assert violations(trace, ledger.read()) == [], where
