"""What is asked of a model for a run beside its conversation: by a judge, or for a summary."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace

from mlango.agents.prices import warm
from mlango.agents.providers.routing import Asked
from mlango.agents.quotas import Reserving
from mlango.agents.team import limits_above
from mlango.core.controls import Control, Controls, Halt
from mlango.core.events import BudgetExceeded
from mlango.core.limits import CALLS, REASON, STEPS, Limiting
from mlango.core.loop import iterate
from mlango.core.messages import user_messages
from mlango.core.run import FINISHED, Run
from mlango.core.tools import Toolbox
from mlango.core.values import dumps


class Spending(Control):
    """Has an aside spend of the limits and quotas of the run that it is for."""

    def __init__(self, run: Run) -> None:
        self.run = run

    async def begin(self, aside: Run) -> None:
        own = [each for each in self.run.controls.all if isinstance(each, Limiting)]
        for limiting in own:
            await limiting.ready(self.run)
        for limiting in (*own, *limits_above(self.run)):
            limiting.refuse_unpriced(aside)
            limiting.check(STEPS, CALLS)


async def aside(run: Run, text: str, *, asked: list[Asked], system: str, max_tokens: int) -> Run:
    """Ask the first of ``asked``, or where it fails the next, within the bounds of a run.

    Return the run that did, whose usage ``run`` has counted. Raise what made it fail, and
    Halt where the limits or quotas of ``run`` do not let it be asked.
    """
    if not all(provider.is_free for provider, _ in asked):
        warm()
    (provider, model), *others = asked
    asking = Run(
        label=run.label,
        provider=provider,
        model=model,
        fallbacks=tuple(others),
        said=user_messages(dumps(text)),
        toolbox=Toolbox(),
        bounds=replace(run.bounds, max_steps=1, run_timeout=None, max_history_chars=None),
        system=system,
        request_options={"max_tokens": max_tokens},
        price=run.price,
        context=run.context,
    )
    asking.deadline = run.deadline
    quotas = [each for each in run.controls.all if isinstance(each, Reserving)]
    reserving = [Reserving((), await each.ready(run)) for each in quotas]
    asking.controls = Controls([Spending(run), *reserving])
    try:
        async with aclosing(iterate(asking)) as events:
            async for _ in events:
                pass
    finally:
        run.count(asking.usage, asking.cost)
        for each in quotas:  # what the aside has settled itself
            each.pass_over(asking.usage, asking.cost)
    _refuse(run, asking)
    return asking


def _refuse(run: Run, asking: Run) -> None:
    """Raise what kept an aside from its answer."""
    if asking.stop_reason == REASON:
        if run.budget is None and (budget := asking.budget):
            run.budget = budget
            run.note(BudgetExceeded, budget.limit, budget.value, budget.max, budget.scope)
        error = asking.exception
        raise Halt(REASON, asking.error, error=error if isinstance(error, Exception) else None)
    if asking.status != FINISHED:
        raise asking.exception or RuntimeError(asking.stop_reason)
