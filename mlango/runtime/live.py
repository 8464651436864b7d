"""The runs that go on in this process, which can be steered and stopped here."""

from __future__ import annotations

from weakref import WeakValueDictionary

from mlango.core.run import Run

_runs: WeakValueDictionary[str, Run] = WeakValueDictionary()


def register(run: Run) -> None:
    """Have a run found here until it ends."""
    _runs[run.uuid] = run


def running(uuid: str) -> Run | None:
    """Return the run if it goes on in this process."""
    run = _runs.get(uuid)
    return run if run is not None and run.status == "running" else None
