"""CPU time per step of the loop against a bare loop over dicts, interleaved in one process.

    python benchmarks/loop.py            ratios, and Python calls per step
    python benchmarks/loop.py profile    where the time goes

A step is one model answer with one tool call. The bare loop is the least that a person
would write; figures are medians of CPU time, which hold up on a busy machine.
"""

import asyncio
import cProfile
import json
import os
import pstats
import statistics
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

import django

django.setup()

from mlango.agents import Agent, tool  # noqa: E402
from mlango.agents.providers import Completion, Provider, ToolCall, Usage  # noqa: E402

PROMPT = "Add the numbers one by one."
USED = Usage(10, 5)


class Script:
    """The model's position in a run of ``n`` tool calls."""

    def __init__(self, n):
        self.n, self.i = n, 0

    def next(self):
        self.i = self.i + 1 if self.i <= self.n else 1
        return None if self.i > self.n else self.i - 1


def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


async def add_async(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


def bare(n):
    script = Script(n)

    async def complete(messages):
        i = script.next()
        if i is None:
            return {"role": "assistant", "content": "done"}
        function = {"name": "add", "arguments": f'{{"a": {i}, "b": 1}}'}
        call = {"id": f"call_{i}", "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}

    async def run():
        messages = [{"role": "user", "content": PROMPT}]
        while True:
            message = await complete(messages)
            messages.append(message)
            calls = message.get("tool_calls")
            if not calls:
                return message["content"]
            for call in calls:
                result = add(**json.loads(call["function"]["arguments"]))
                content = json.dumps(result)
                answer = {"role": "tool", "tool_call_id": call["id"], "content": content}
                messages.append(answer)

    return run


class Scripted(Provider):
    """Answers from a Script, with no cost of its own."""

    name = "bench"
    offline = True

    def __init__(self, n):
        self.script = Script(n)

    async def acomplete(self, **request):
        i = self.script.next()
        if i is None:
            return Completion("done", usage=USED)
        call = ToolCall(f"call_{i}", "add", f'{{"a": {i}, "b": 1}}')
        return Completion(tool_calls=[call], usage=USED)


def mlango(n, tracing=False):
    class Adder(Agent):
        class Meta:
            model = "bench"
            system = "You add numbers."
            tools = [tool(name="add")(add_async)]
            max_steps = None

    Adder._meta = django_replace(Adder._meta, tracing=tracing)
    agent, provider = Adder(), Scripted(n)

    async def run():
        return str(await agent.arun(PROMPT, provider=provider))

    return run


def django_replace(meta, **values):
    from dataclasses import replace

    return replace(meta, **values)


async def cpu(run, n, seconds=0.15):
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        start = time.process_time()
        assert await run() == "done"
        times.append((time.process_time() - start) / n * 1e6)
    return statistics.median(times)


async def calls(run, n):
    count = 0

    def tick(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    await run()
    threading.setprofile(tick)
    sys.setprofile(tick)
    await run()
    sys.setprofile(None)
    return count / n


async def main():
    rounds = {"bare": [], "mlango": [], "mlango400": []}
    for _ in range(7):
        rounds["bare"].append(await cpu(bare(20), 20))
        rounds["mlango"].append(await cpu(mlango(20), 20))
        rounds["mlango400"].append(await cpu(mlango(400), 400))
    floor, ours, long = (statistics.median(times) for times in rounds.values())
    print(f"bare             {floor:8.1f} us a step")
    print(f"mlango, N=20     {ours:8.1f} us a step   {ours / floor:.2f} x bare")
    print(f"mlango, N=400    {long:8.1f} us a step   {long / ours:.2f} x N=20")
    print(f"calls a step     {await calls(mlango(20), 20):8.1f} at N=20")
    print(f"                 {await calls(mlango(400), 400):8.1f} at N=400")


async def profile():
    run = mlango(400)
    await run()
    profiler = cProfile.Profile()
    profiler.enable()
    for _ in range(5):
        await run()
    profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(35)


if __name__ == "__main__":
    asyncio.run(profile() if sys.argv[1:] == ["profile"] else main())
