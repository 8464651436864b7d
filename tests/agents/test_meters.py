"""What two hundred runs leave behind in their process, and on the database: nothing."""

import asyncio
import gc
import os
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path
from time import monotonic
from types import CoroutineType

import pytest
from django.contrib.auth.models import Group
from django.db import connection

from mlango.agents import Agent, tool
from mlango.agents.providers import ScriptedProvider, ToolCall
from mlango.exceptions import RunError
from mlango.runtime.sync import portal
from mlango.runtime.writer import writer

SCRIPT = [[ToolCall("a", "count"), ToolCall("b", "count_async")], "done"]
FILES = Path("/proc/self/fd")


@tool
def count() -> int:
    """Count the groups."""
    return Group.objects.count()


@tool
async def count_async() -> int:
    """Count the groups."""
    return await Group.objects.acount()


class Counting(Agent):
    class Meta:
        app_label = "meters"
        tools = [count, count_async]


def ends(script=SCRIPT):
    Counting().run("go", provider=ScriptedProvider(list(script)))


def fails():
    with suppress(RunError):
        ends([[ToolCall("a", "count")], RuntimeError("out")])


def is_left():
    with Counting().stream("go", provider=ScriptedProvider(list(SCRIPT))) as stream:
        next(iter(stream))


def is_stopped():
    with Counting().stream("go", provider=ScriptedProvider(list(SCRIPT))) as stream:
        for _ in stream:
            stream.abort()


def is_awaited():
    asyncio.run(Counting().arun("go", provider=ScriptedProvider(list(SCRIPT))))


def is_cancelled():
    async def main():
        run = Counting().arun("go", provider=ScriptedProvider(list(SCRIPT)))
        task = asyncio.create_task(run)
        await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    asyncio.run(main())


def readings():
    """Return how many there are of what a run may leave behind."""
    loop = portal.loop()  # as it and this thread's connection stay
    connection.ensure_connection()
    writer.close()
    gc.collect()
    ours = Counter(type(each).__qualname__ for each in gc.get_objects() if _is_ours(type(each)))
    return {
        "threads": threading.active_count(),
        "files": len(open_files()),
        "tasks": len(asyncio.all_tasks(loop)),
        **ours,
    }


def open_files():
    """Return what is open but SQLite's files, which it closes when no connection locks them."""
    files = []
    for each in FILES.glob("*"):
        with suppress(OSError):
            files.append(os.readlink(each))
    return [name for name in files if ".sqlite3" not in name]


def _is_ours(kind):
    return str(kind.__module__).startswith(("mlango.", "_asyncio")) or kind is CoroutineType


def idle_transactions():
    """Return how many other connections wait within a transaction."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND pid <> pg_backend_pid() AND state LIKE 'idle in transaction%'"
        )
        return cursor.fetchone()[0]


def left_behind(before):
    """Return what there is more of than before, and how many; what ends is waited for."""
    deadline = monotonic() + 10
    while True:
        more = {name: n for name, n in readings().items() if n > before.get(name, 0)}
        if connection.vendor == "postgresql" and (idle := idle_transactions()):
            more["idle transactions"] = idle
        if not more or monotonic() > deadline:
            return more


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("run", [ends, fails, is_left, is_stopped, is_awaited, is_cancelled])
def test_two_hundred_runs_leave_nothing_behind(run):
    for _ in range(20):
        run()
    before = readings()

    for _ in range(200):
        run()

    assert left_behind(before) == {}
