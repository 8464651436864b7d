"""Have workers do durable runs while they are killed and stopped at random, and check it all.

    MLANGO_TEST_DATABASE=postgres python benchmarks/soak.py --open 20 --seconds 120 --seed 7

Ends with 1 if anything is wrong with a run; the same seed does the same to the workers, though
not at the same moments of their runs. For each kill point in turn, there is
``MLANGO_TEST_KILL_EVERY=1 pytest tests/durable/test_crashes.py``.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

LEASE = 3  # seconds
WORKER = """
import django
django.setup()
import tests.durable.crashing
from django.core.management import call_command
call_command("agentworker")
"""


class Nemesis:
    """Workers, and what happens to them."""

    def __init__(self, count, chance, environment):
        self.chance = chance
        self.environment = environment
        self.workers = [self._start() for _ in range(count)]
        self.asleep = {}
        self.done = dict.fromkeys(("killed", "stopped", "told to end"), 0)

    def _start(self):
        command = [sys.executable, "-c", WORKER]
        return subprocess.Popen(command, env=self.environment, stdout=subprocess.DEVNULL)

    def strike(self):
        """Do something to one of the workers, and wake those that slept past their lease."""
        self.wake(before=time.monotonic())
        place = self.chance.randrange(len(self.workers))
        worker = self.workers[place]
        if worker in self.asleep:
            return
        what = self.chance.choices([*self.done], weights=(6, 2, 2))[0]
        self.done[what] += 1
        if what == "stopped":
            worker.send_signal(signal.SIGSTOP)
            self.asleep[worker] = time.monotonic() + 2 * LEASE
        else:
            worker.send_signal(signal.SIGKILL if what == "killed" else signal.SIGTERM)
            worker.wait()
            self.workers[place] = self._start()

    def wake(self, before=float("inf")):
        for worker in [each for each, until in self.asleep.items() if until <= before]:
            worker.send_signal(signal.SIGCONT)
            del self.asleep[worker]

    def end(self):
        self.wake()
        for worker in self.workers:
            worker.kill()
            worker.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--open", type=int, default=20, help="how many runs go on at a time")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=60, help="how long workers are hurt")
    parser.add_argument("--seed", type=int, default=random.randrange(10_000))
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    import django

    django.setup()
    from django.db import connection

    name = connection.creation.create_test_db(verbosity=0)
    try:
        return soak(given, name)
    finally:
        connection.creation.destroy_test_db(name, verbosity=0)


def soak(given, database):
    from tests.durable.shapes import Ledger

    with tempfile.TemporaryDirectory() as folder:
        os.environ["SITE_LEDGER"] = str(Path(folder) / "ledger")
        ledger, chance = Ledger(os.environ["SITE_LEDGER"]), random.Random(given.seed)
        nemesis = Nemesis(given.workers, chance, environment(database))
        try:
            traces = seen_through(given, ledger, chance, nemesis)
        finally:
            nemesis.end()
        print(f"{len(traces)} runs; workers were {nemesis.done}")
        return judged(traces, ledger.read())


def seen_through(given, ledger, chance, nemesis):
    """Have workers do runs, and hurt them, for so long; return the runs when all have ended."""
    from mlango.models import Trace
    from tests.durable.shapes import SHAPES, decide

    traces, begun = [], time.monotonic()
    while (passed := time.monotonic() - begun) < given.seconds + 30 * LEASE:
        left = Trace.objects.filter(parent=None).exclude(status__in=Trace.ENDED).count()
        if passed < given.seconds:
            names = chance.choices([*SHAPES], k=max(0, given.open - left))
            traces += [SHAPES[name].enqueue() for name in names]
            nemesis.strike()
        elif not left:
            break
        else:
            nemesis.wake()
        decide(ledger)
        time.sleep(chance.uniform(0.3, 1.5))
    return traces


def environment(database):
    return os.environ | {
        "DJANGO_SETTINGS_MODULE": "tests.durable.site",
        "SITE_DATABASE": str(database),
        "MLANGO_LEASE_SECONDS": str(LEASE),
    }


def judged(traces, effects):
    """Print what is wrong; return the exit code."""
    from tests.durable.checker import violations

    wrong = 0
    for trace in traces:
        for each in violations(trace, effects):
            wrong += 1
            print(f"{trace.pk} {each}")
    print(f"{wrong} violations")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
