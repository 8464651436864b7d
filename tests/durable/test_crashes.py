"""Runs whose processes are killed at every kill point, and what must hold all the same."""

import os
from itertools import count

import pytest

from tests.durable.checker import violations
from tests.durable.shapes import SHAPES, course, decide, see_through

# All of them take minutes: benchmarks/soak.py goes through them.
EVERY = int(os.environ.get("MLANGO_TEST_KILL_EVERY", "7"))

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("name", SHAPES)
def test_a_run_is_done_wherever_its_process_is_killed(name, mortals, ledger):
    shape = SHAPES[name]
    unhurt = see_through(shape.enqueue(), ledger)
    for part in range(shape.parts):
        for number in count(1, EVERY):
            trace = shape.enqueue()
            for _ in range(part):
                mortals.do(trace.pk)
                decide(ledger)
            lived = mortals.do(trace.pk, number)

            trace = see_through(trace, ledger)

            where = f"part {part}, kill point {number}"
            assert violations(trace, ledger.read()) == [], where
            assert (trace.output, course(trace)) == (unhurt.output, course(unhurt)), where
            if lived:
                break
