"""What follows a model call that failed: the same model again, then another one."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from mlango.core.events import FellBack, Retrying
from mlango.core.numbers import is_number_from
from mlango.core.tools import REPEATABLE
from mlango.core.values import clean
from mlango.core.wanted import Wanted, check_made
from mlango.exceptions import (
    AuthenticationFailed,
    ContextLengthExceeded,
    InvalidRequest,
    ProviderError,
)

if TYPE_CHECKING:
    from mlango.core.run import Run, ToolOutcome

NOT_FOUND = 404
NOT_RUN = ("unknown", "validation", "skipped", "cut")  # calls whose tool was never called


_SECONDS = Wanted(lambda value: is_number_from(value, 0), "a number of seconds from 0")
_TIMES = Wanted(lambda value: is_number_from(value, 0, (int,)), "a whole number from 0")
WANTED = {
    "max_retries": _TIMES.or_none("None for the setting"),
    **dict.fromkeys(
        ("base_delay", "max_delay", "max_elapsed"), _SECONDS.or_none("None for the setting")
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How a failed model call is tried again. None leaves it to the settings; in seconds.

    A wait is what the provider asks for, or drawn at random up to ``base_delay``, which
    doubles; at most ``max_delay``. All waits of a run take at most ``max_elapsed``.
    """

    max_retries: int | None = None
    base_delay: float | None = None
    max_delay: float | None = None
    max_elapsed: float | None = None

    def __post_init__(self) -> None:
        check_made(self, WANTED)

    def describe(self) -> dict[str, Any]:
        """Return what is set."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


class Attempts:
    """The attempts at one model call, which begins with the run's own model."""

    def __init__(self, run: Run) -> None:
        self.delay = 0.0  # seconds to wait before the next attempt
        self._run = run
        self._own = run.provider, run.model
        self._others = deque(run.fallbacks)
        self._failed = 0  # attempts with the present model

    def next(self, error: ProviderError) -> Retrying | FellBack:
        """Return the event of a further attempt; raise the error where there is none."""
        self._failed += 1
        delay = self._retry_delay(error)
        if delay is not None:
            return self._again(error, delay)
        if self._others and self._may_fall_back(error):
            return self._fall_back(error)
        self.close()
        raise error

    def close(self) -> None:
        """Go back to the run's own model."""
        self._run.provider, self._run.model = self._own

    def _retry_delay(self, error: ProviderError) -> float | None:
        """Return how many seconds to wait for the same model; None to give it up."""
        run, bounds = self._run, self._run.bounds
        if run.released or not error.retryable or self._failed > bounds.max_retries:
            return None
        delay = error.retry_after
        if delay is None:
            delay = random.uniform(0, bounds.retry_base_delay * 2 ** (self._failed - 1))
        delay = min(delay, bounds.retry_max_delay)
        budget = bounds.retry_max_elapsed
        return None if budget is not None and run.slept + delay > budget else delay

    def _again(self, error: ProviderError, delay: float) -> Retrying:
        run = self._run
        self.delay = delay
        run.slept += delay
        return run.emit(Retrying, self._failed, run.bounds.max_retries, delay, *_told(error))

    def _may_fall_back(self, error: ProviderError) -> bool:
        if self._run.released or not is_of_the_model(error):
            return False
        if _has_effect(self._run):
            error.add_note("No other model was asked: a tool of this run has had an effect.")
            return False
        return True

    def _fall_back(self, error: ProviderError) -> FellBack:
        run = self._run
        before = _full_name(run)
        run.provider, run.model = self._others.popleft()
        self._failed, self.delay = 0, 0.0
        return run.emit(FellBack, before, _full_name(run), *_told(error))


def _told(error: ProviderError) -> tuple[str, str]:
    return clean(str(error)), type(error).__name__


def _full_name(run: Run) -> str:
    return f"{run.provider.name}/{run.model}"


def is_of_the_model(error: ProviderError) -> bool:
    """Return whether another model may answer where this one failed."""
    if isinstance(error, InvalidRequest):
        return error.status == NOT_FOUND
    kinds = (AuthenticationFailed, ContextLengthExceeded)
    return error.retryable or error.status == 402 or isinstance(error, kinds)


def _has_effect(run: Run) -> bool:
    """Return whether a tool may have done what must not be done twice.

    Another model may read the conversation differently and call it again.
    """
    return any(_is_effect(run, outcome) for outcome in run.tool_results)


def _is_effect(run: Run, outcome: ToolOutcome) -> bool:
    tool = run.toolbox.get(outcome.name)
    is_repeatable = tool is not None and tool.effect in REPEATABLE
    return outcome.error_type not in NOT_RUN and not is_repeatable
