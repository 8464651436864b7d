"""Compares pieces of work by their CPU time, taking turns in one process.

CPU time of the whole process, the writer's thread among it, holds up on a busy machine; taking
turns gives every piece the same share of what else goes on. Read the ratios.
"""

import gc
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

import django  # noqa: E402

django.setup()

Work = Callable[[], Awaitable[None]]


async def compare(works: dict[str, Work], *, per: int, rounds: int = 15, repeats: int = 5) -> None:
    """Print the CPU time of each piece of work, and its ratio to the first.

    A piece does ``per`` units; the time is that of a unit, in microseconds.
    """
    times: dict[str, list[float]] = {name: [] for name in works}
    for work in works.values():
        await work()
    for _ in range(rounds):
        for name, work in works.items():
            start = time.process_time()
            for _ in range(repeats):
                await work()
            times[name].append((time.process_time() - start) / repeats / per * 1e6)
    show(times)


def show(times: dict[str, list[float]]) -> None:
    """Print medians; a ratio is the median of the rounds' ratios to the first."""
    floor = next(iter(times.values()))
    for name, own in times.items():
        ratio = statistics.median(a / b for a, b in zip(own, floor, strict=True))
        print(f"  {name:32} {statistics.median(own):10.1f} us {ratio:7.2f} x")


def vendor() -> str:
    """Return which database it is, and how long connections live."""
    from django.db import connection

    return f"{connection.vendor}, CONN_MAX_AGE={connection.settings_dict['CONN_MAX_AGE']}"


@contextmanager
def database() -> Iterator[None]:
    """Make a database of this process's own, and drop it at the end."""
    from django.db import connection, connections

    from mlango.runtime.writer import writer

    name = connection.settings_dict["NAME"]
    connection.creation.create_test_db(verbosity=0, autoclobber=True, serialize=False)
    try:
        yield
    finally:
        writer.close()
        connections.close_all()
        gc.collect()  # connections of threads that have ended
        time.sleep(0.5)  # PostgreSQL ends a session a moment after its client
        connection.creation.destroy_test_db(name, verbosity=0)


@contextmanager
def server() -> Iterator[str]:
    """Run the model server in a process of its own; yield its base URL."""
    program = [sys.executable, str(ROOT / "benchmarks" / "server.py")]
    with Popen(program, stdout=PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}/v1"
        finally:
            process.terminate()
