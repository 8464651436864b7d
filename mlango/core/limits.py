"""What a run, or a session, may use at most; and the control that sees to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from decimal import Decimal
from time import monotonic
from typing import TYPE_CHECKING, Any

from mlango.core.controls import Control, Halt
from mlango.core.events import BudgetExceeded
from mlango.core.numbers import is_positive, plain
from mlango.core.threads import in_thread
from mlango.core.usage import NO_USAGE, Usage
from mlango.core.wanted import COUNT, FLAG, SECONDS, Wanted, check_made, one_of
from mlango.exceptions import Misconfigured, OverBudget

if TYPE_CHECKING:
    from mlango.core.calls import Job
    from mlango.core.run import Run

RUN, SESSION = "run", "session"
REASON = "budget_exceeded"
STEPS, CALLS = "max_steps", "max_tool_calls"
ON_EXCEEDED = ("stop", "raise")
NOT_MADE = ("unknown", "validation", "skipped", "cut", "cancelled")  # or not to their end
NONE = "None for no limit"
WANTED = {
    **dict.fromkeys(
        ("max_tokens", "max_input_tokens", "max_output_tokens", STEPS, CALLS), COUNT.or_none(NONE)
    ),
    "max_cost_usd": Wanted(is_positive, "a number of US dollars above 0").or_none(NONE),
    "max_duration": SECONDS.or_none(NONE),
    "on_exceeded": one_of(*ON_EXCEEDED),
    "allow_unpriced": FLAG,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What may be used at most; None for no limit.

    Tokens are counted as the provider counts them, ``max_cost_usd`` is in US dollars,
    ``max_duration`` in seconds of one run. With a limit on the cost, a model of unknown
    price is refused unless ``allow_unpriced``. At a limit the run stops with what it has
    done, or with ``on_exceeded="raise"`` fails with OverBudget. Sub-agents spend from the
    same tokens, dollars and time; their steps and calls are their own.
    """

    max_tokens: int | None = None
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None
    max_cost_usd: Decimal | float | int | None = None
    max_duration: float | None = None
    max_steps: int | None = None
    max_tool_calls: int | None = None
    on_exceeded: str = "stop"
    allow_unpriced: bool = False

    def __post_init__(self) -> None:
        check_made(self, WANTED)

    def describe(self) -> dict[str, Any]:
        """Return the limits that are set."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(slots=True)
class Spent:
    """What has been used so far."""

    usage: Usage = NO_USAGE
    cost: Decimal | None = Decimal(0)
    steps: int = 0
    tool_calls: int = 0

    def __add__(self, other: Spent) -> Spent:
        unknown = self.cost is None or other.cost is None
        return Spent(
            self.usage + other.usage,
            None if unknown else self.cost + other.cost,  # type: ignore[operator]
            self.steps + other.steps,
            self.tool_calls + other.tool_calls,
        )

    def over(self, limits: Limits) -> Iterator[tuple[str, Any, Any]]:
        """Yield each limit that is reached: its name, what was used, and the limit."""
        used = {
            "max_tokens": self.usage.total_tokens,
            "max_input_tokens": self.usage.input_tokens,
            "max_output_tokens": self.usage.output_tokens,
            "max_cost_usd": self.cost,
            STEPS: self.steps,
            CALLS: self.tool_calls,
        }
        for name, value in used.items():
            limit = getattr(limits, name)
            if limit is not None and value is not None and value >= limit:
                yield name, value, limit


@dataclass(frozen=True, slots=True)
class Budget:
    """Which limit ended a run: its name, what was used, the limit, and of what."""

    limit: str
    value: Any
    max: Any
    scope: str

    def describe(self) -> dict[str, Any]:
        return {
            "limit": self.limit,
            "value": _figures(self.value),
            "max": _figures(self.max),
            "scope": self.scope,
        }

    def __str__(self) -> str:
        value, limit = _figures(self.value), _figures(self.max)
        return f"{self.scope} limit {self.limit} reached: {value} of {limit}"


def _figures(value: Any) -> Any:
    return plain(value) if isinstance(value, Decimal) else value


class Limiting(Control):
    """Keeps a run to its limits, and a session's runs together to theirs.

    ``earlier`` returns what the session's earlier runs have used; it may block.
    """

    def __init__(
        self,
        limits: Limits | None,
        session_limits: Limits | None = None,
        earlier: Callable[[], Spent] = Spent,
    ) -> None:
        self.limits = limits or Limits()
        self.session_limits = session_limits
        self._earlier = earlier
        self._before = Spent()
        self._run: Run | None = None
        self._calls = 0

    async def begin(self, run: Run) -> None:
        await self.ready(run)
        self._calls = sum(each.error_type not in NOT_MADE for each in run.tool_results)
        if self.limits.max_duration is not None:
            at = monotonic() + self.limits.max_duration
            if at < run.deadline:
                run.deadline = at
                run.time_budget = Budget(
                    "max_duration", self.limits.max_duration, self.limits.max_duration, RUN
                )
        self.refuse_unpriced(run)

    async def ready(self, run: Run) -> None:
        """Begin to count; also for what is asked of a model before the run begins."""
        if self._run is None:
            if self.session_limits is not None:
                self._before = await in_thread(self._earlier)
            self._run = run

    async def before_model(self, run: Run) -> None:
        # The calls that are allowed may all be made; only one more is too many.
        self.check(CALLS)

    async def before_call(self, run: Run, job: Job, arguments: dict[str, Any]) -> dict[str, Any]:
        self.check(STEPS)
        self._calls += 1
        return arguments

    def check(self, *passed_over: str) -> None:
        """Halt whoever spends for the run if a limit is reached, but for those passed over."""
        run = self._run
        if run is None:
            return
        now = Spent(run.usage, run.cost, run.step, self._calls)
        both = ((now, self.limits, RUN), (self._before + now, self.session_limits, SESSION))
        for spent, limits, scope in both:
            if limits is None:
                continue
            for name, value, limit in spent.over(limits):
                if name not in passed_over:
                    self._trip(run, Budget(name, value, limit, scope), limits)

    def _trip(self, run: Run, budget: Budget, limits: Limits) -> None:
        if run.budget is None:
            run.budget = budget
            run.note(BudgetExceeded, budget.limit, budget.value, budget.max, budget.scope)
        text = f"Stopped: {budget}."
        error = OverBudget(text) if limits.on_exceeded == "raise" else None
        raise Halt(REASON, text, error=error)

    def refuse_unpriced(self, run: Run) -> None:
        """Raise Misconfigured if the model of this run, or of a sub-agent's, has no price."""
        wanted = [each for each in (self.limits, self.session_limits) if each]
        asks = any(each.max_cost_usd is not None and not each.allow_unpriced for each in wanted)
        if asks:
            refuse_unpriced(run)


def refuse_unpriced(run: Run) -> None:
    """Raise Misconfigured if nobody knows what one of the run's models costs."""
    for provider, model in ((run.provider, run.model), *run.fallbacks):
        if provider.is_free or run.price is None:
            continue
        if run.price(provider.name, model, Usage(1, 1)) is None:
            raise Misconfigured(
                f"The price of {provider.name}/{model} is unknown, so its cost cannot be "
                f"limited. Add it to MLANGO['PRICES'], or set allow_unpriced=True."
            )
