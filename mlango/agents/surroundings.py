"""The language and the time zone of whoever started a run, which it keeps in any process."""

from __future__ import annotations

import contextvars
from contextlib import suppress
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from django.utils import timezone, translation

from mlango.core.threads import settle

if TYPE_CHECKING:
    from mlango.core.run import Run


def current() -> dict[str, str]:
    """Return what is active here, as JSON data; empty where it has no name."""
    context = contextvars.copy_context()
    settle(context)  # which may be a caller's, from another thread
    return context.run(_current)


def _current() -> dict[str, str]:
    zone = timezone.get_current_timezone()
    return {"language": translation.get_language() or "", "time_zone": getattr(zone, "key", "")}


def surround(run: Run) -> None:
    """Have the run's context be as where it was started, or note how that is."""
    if run.surroundings is None:
        run.surroundings = run.context.run(current)
    else:
        run.context.run(_activate, run.surroundings)


def _activate(surroundings: dict[str, str]) -> None:
    language = surroundings["language"]
    translation.activate(language) if language else translation.deactivate_all()
    # A time zone that this system does not know, or that has no name, is left as it is here.
    with suppress(ValueError, LookupError):
        timezone.activate(ZoneInfo(surroundings["time_zone"]))
