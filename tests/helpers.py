"""Runs for tests, without an agent."""

import asyncio
from contextlib import aclosing

from mlango.agents.providers import ScriptedProvider
from mlango.agents.streams import AsyncRunStream, RunStream
from mlango.core.memory import SessionKey
from mlango.core.run import Run
from mlango.core.tools import Toolbox
from mlango.runtime.journal import RowJournal
from mlango.runtime.sync import Call, close_own_thread, own_thread


class Priced(ScriptedProvider):
    """Is scripted, but not for free."""

    offline = False


def new_run(turns=("Hello.",), tools=(), said="hi", label="shop.Support", **fields):
    """Return a traced run of a scripted provider; ``turns`` may be a provider."""
    provider = turns if hasattr(turns, "astream") else Priced(turns)
    fields.setdefault("journal", RowJournal())
    return Run(
        label=label,
        provider=provider,
        model="scripted/one",
        said=[{"role": "user", "content": said}] if isinstance(said, str) else said,
        toolbox=Toolbox(list(tools)),
        **fields,
    )


def session_key(run, owner=""):
    return SessionKey(run.label, owner, run.session_id)


def stream(run):
    """Return the events of a run as plain code reads them."""
    call = Call("astream()")
    run.context = call.context.copy()
    return RunStream(AsyncRunStream(run), call)


def finish(run):
    """Run to the end as plain code does."""
    for _ in stream(run):
        pass
    return run


def astream(run):
    """Return the events of a run as async code reads them."""
    sensitive = own_thread(run.context)

    async def release(run):
        await close_own_thread(sensitive, wait=not run.stray)

    run.release = release
    return AsyncRunStream(run)


async def afinish(run):
    """Run to the end as async code does."""
    async with aclosing(astream(run)) as events:
        async for _ in events:
            pass
    return run


def afinish_all(*runs):
    """Run several side by side in a new event loop."""

    async def gather():
        await asyncio.gather(*map(afinish, runs))

    asyncio.run(gather())
    return runs
