"""Runs that 1, 2 and 4 worker processes do in a second, and what a run costs them.

    MLANGO_TEST_DATABASE=postgres python benchmarks/throughput.py

Each worker is ``manage.py agentworker`` on one database. Where the model answers at once,
nothing is waited for but processors, locks and commits; where it takes its time, a worker is
busy with the ten runs that it does at a time. A rate is taken from the first act to the last
end, so that no process's start counts.
"""

import asyncio
import functools
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter

import ratios
from django.core.management import call_command
from django.db import connection

from mlango.agents import Agent, execution, tool
from mlango.agents.providers import Completion, Provider, ToolCall
from mlango.models import Attempt, Trace
from mlango.models.durable import DurableRunQuerySet
from mlango.runtime import durable, outgoing, rows
from mlango.runtime.leases import Lease

STEPS = 5
WORKERS = (1, 2, 4)
# Of so many runs: a worker does ten at a time.
PACES = {"at once": (200, 0.0), "in 0.5 s": (80, 0.5)}
PACE = float(os.environ.get("PACE", 0))


class Adding(Provider):
    """Adds a number for each step, then answers."""

    name = "adding"
    offline = True
    is_free = True

    async def astream(self, *, messages, **options):
        await asyncio.sleep(PACE)
        yield self.answer(messages)

    def answer(self, messages):
        step = sum(message["role"] == "assistant" for message in messages)
        if step == STEPS:
            return Completion(text="done")
        call = ToolCall(f"call_{step}", "add", {"a": step, "b": 1})
        return Completion(tool_calls=[call], stop_reason=Completion.TOOL_USE)


@tool(effect="read")
async def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


class Adder(Agent):
    class Meta:
        app_label = "throughput"
        provider = Adding()
        model = "adding/one"
        tools = [add]
        durable = True


# -- in a worker ---------------------------------------------------------------------------------


class Meter:
    """Sums up the CPU time of functions, without that of those which are measured inside."""

    def __init__(self):
        self.seconds = Counter()
        self._inside = threading.local()

    def watch(self, part, owner, name):
        """Count the time of a function as that of a part."""
        function = getattr(owner, name)

        @functools.wraps(function)
        def watched(*args, **kwargs):
            outer, self._inside.seconds = getattr(self._inside, "seconds", 0.0), 0.0
            began = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                took = time.thread_time() - began
                self.seconds[part] += took - self._inside.seconds
                self._inside.seconds = outer + took

        setattr(owner, name, watched)


def work():
    """Do what is due, and tell what it took, as JSON."""
    meter = Meter()
    meter.watch("claims", DurableRunQuerySet, "claim_due")
    meter.watch("claims", execution, "_found")
    meter.watch("journal", Lease, "_fenced")
    meter.watch("journal", durable, "span_values")
    meter.watch("events", rows.INSERT_EVENT, "execute")
    meter.watch("events", outgoing, "event_values")
    meter.watch("model", Adding, "answer")
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.process_time()
    call_command("agentworker", "--once")
    print(json.dumps({"all": time.process_time() - began, **meter.seconds}), flush=True)


# -- in the process that compares ----------------------------------------------------------------


def worker(seconds):
    environment = os.environ | {
        "DJANGO_SETTINGS_MODULE": "tests.durable.site",
        "SITE_DATABASE": str(connection.settings_dict["NAME"]),
        "PACE": str(seconds),
    }
    return subprocess.Popen(
        [sys.executable, __file__, "work"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def compare(runs, seconds):
    """Have ever more workers do the same, and print how they compare with the first."""
    first = None
    for count in WORKERS:
        rate, cost = measured(runs, [worker(seconds) for _ in range(count)])
        first = first or rate
        told = ", ".join(f"{name} {cost[name] * 1e3:.1f}" for name in sorted(cost))
        print(f"    {count} {rate:8.1f} runs/s {rate / first:6.2f} x   CPU ms a run: {told}")


def measured(runs, workers):
    """Return how many runs workers do in a second, and the CPU time of one by its parts."""
    try:
        for each in workers:
            each.stdout.readline()
        traces = [Adder().enqueue("Add.").pk for _ in range(runs)]
        for each in workers:
            each.stdin.write("go\n")
            each.stdin.flush()
        told = [json.loads(each.communicate()[0]) for each in workers]
    finally:
        for each in workers:
            each.kill()
            each.wait()
    cost = sum(map(Counter, told), Counter())
    cost["rest"] = 2 * cost["all"] - cost.total()
    return runs / took(traces), {part: seconds / runs for part, seconds in cost.items()}


def took(traces):
    """Return the seconds from the first act of these runs to the last end."""
    done = Trace.objects.filter(pk__in=traces, status=Trace.Status.FINISHED)
    assert done.count() == len(traces), f"{done.count()} of {len(traces)} runs were done."
    began = Attempt.objects.filter(trace__in=traces).earliest("started_at").started_at
    return (done.latest("ended_at").ended_at - began).total_seconds()


if __name__ == "__main__":
    if sys.argv[1:] == ["work"]:
        work()
    else:
        with ratios.database():
            print(f"workers that do runs of {STEPS} steps by {ratios.vendor()}")
            for pace, (runs, seconds) in PACES.items():
                print(f"  the model answers {pace}")
                compare(runs, seconds)
