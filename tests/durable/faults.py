"""What a process does while its connections to the database break."""

import asyncio


def work():
    """Do what is due, as a worker does."""
    from mlango.agents.worker import Worker

    asyncio.run(Worker().work(until_idle=True))


def ask(label, said):
    """Run an agent, as a request does that waits for it."""
    from mlango.runtime.registry import registry

    run = registry.get(label)().run(said)
    assert (run.status, run.output) == ("finished", "Done."), (run.status, run.error)
