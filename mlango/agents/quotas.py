"""The control that keeps the runs that are counted together to their quotas."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, timedelta
from decimal import Decimal
from time import monotonic
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.conf import settings as django_settings
from django.utils import timezone
from django.utils.module_loading import import_string

from mlango.conf import settings
from mlango.core.context import Context
from mlango.core.controls import Control, Halt
from mlango.core.events import BudgetExceeded
from mlango.core.limits import REASON, Budget, refuse_unpriced
from mlango.core.memory import owner_key
from mlango.core.messages import size
from mlango.core.quota import Quota, amount_of, units_of
from mlango.core.threads import in_thread
from mlango.core.usage import Usage
from mlango.exceptions import Misconfigured

if TYPE_CHECKING:
    from mlango.core.calls import Job
    from mlango.core.provider import Provider
    from mlango.core.run import Run
    from mlango.models.quota import Exhausted, QuotaReservation, Share

CHARS_PER_TOKEN = 4
MAX_TOKENS = 4096  # of an answer, where a run does not say
# A reservation lapses when the run that made it cannot be alive any more.
MARGIN = timedelta(minutes=1)
WITHOUT_TIMEOUT = timedelta(days=1)


Counted = tuple[Quota, str]  # a quota, and whose spending it counts


class Reserving(Control):
    """Reserves what each model call may use before it is made, and settles what it has used.

    ``inherited`` are the quotas of the runs that this one works for.
    """

    def __init__(self, quotas: Iterable[Quota], inherited: Iterable[Counted] = ()) -> None:
        if not apps.is_installed("mlango"):
            raise Misconfigured("Meta.quotas needs 'mlango' in INSTALLED_APPS.")
        self.counted = list(inherited)
        self._quotas = tuple(quotas)
        self._held: list[QuotaReservation] = []
        self._usage = Usage()
        self._cost: Decimal | None = None

    async def ready(self, run: Run) -> list[Counted]:
        """Return the quotas with whose spending each counts, as known from now on."""
        quotas, self._quotas = self._quotas, ()
        for quota in quotas:
            counted = (quota, await _subject(run, quota))
            if counted not in self.counted:
                self.counted.append(counted)
        return self.counted

    def pass_over(self, usage: Usage, cost: Decimal | None) -> None:
        """Leave to others what the run has counted for them and they have settled."""
        self._usage = self._usage + usage
        self._cost = None if cost is None or self._cost is None else self._cost + cost

    async def begin(self, run: Run) -> None:
        await self.ready(run)
        if any(quota.usd and not quota.allow_unpriced for quota, _ in self.counted):
            refuse_unpriced(run)

    async def before_model(self, run: Run) -> None:
        # Rows can be imported only once the apps are loaded.
        from mlango.models.quota import Exhausted

        await self._settle(run)
        self._usage, self._cost = run.usage, run.cost
        shares = self._shares(run)
        if not shares:
            return
        try:
            await self._reserve(run, shares)
        except Exhausted as exhausted:
            self._trip(run, exhausted)

    async def _reserve(self, run: Run, shares: list[Share]) -> None:
        """Reserve shares. One who is cancelled meanwhile holds them too, and gives them back."""
        from mlango.models.quota import QuotaUsage
        from mlango.runtime.database import write

        reserve = write(run, QuotaUsage.objects.reserve, shares, _longest(run))
        reserving = asyncio.ensure_future(reserve)
        try:
            self._held = await asyncio.shield(reserving)
        except asyncio.CancelledError:
            with suppress(Exception):
                self._held = await reserving
            raise

    async def before_call(self, run: Run, job: Job, arguments: dict[str, Any]) -> dict[str, Any]:
        await self._settle(run)
        return arguments

    async def end(self, run: Run) -> None:
        await self._settle(run)

    async def _settle(self, run: Run) -> None:
        if not self._held:
            return
        from mlango.models.quota import QuotaUsage
        from mlango.runtime.database import write

        used = {"usd": self._used_cost(run), "tokens": _since(run, self._usage).total_tokens}
        held, self._held = self._held, []
        spent = [(each, units_of(each.counter.unit, used[each.counter.unit])) for each in held]
        await write(run, QuotaUsage.objects.settle, spent)

    def _used_cost(self, run: Run) -> Decimal:
        if run.cost is not None and self._cost is not None:
            return run.cost - self._cost
        return _price(run, _since(run, self._usage))

    def _shares(self, run: Run) -> list[Share]:
        """Return what to reserve: of each counter once, by the lowest of its quotas."""
        from mlango.models.quota import Share

        usage, now = _expected(run), timezone.now()
        expected = {"usd": _highest_price(run, usage), "tokens": usage.total_tokens}
        limits: dict[tuple[str, str, str, str], int] = {}
        for quota, subject in self.counted:
            key = (quota.per, subject, quota.unit, quota.every)
            limit = units_of(quota.unit, quota.max)
            limits[key] = min(limit, limits.get(key, limit))
        return [
            Share(*key, period_start(key[3], now), units, limit)
            for key, limit in limits.items()
            if (units := units_of(key[2], expected[key[2]]))
        ]

    def _trip(self, run: Run, exhausted: Exhausted) -> None:
        share = exhausted.share
        taken, limit, more = (
            amount_of(share.unit, units) for units in (exhausted.taken, share.limit, share.units)
        )
        budget = Budget(share.unit, taken, limit, share.per)
        run.budget = run.budget or budget
        run.note(BudgetExceeded, budget.limit, budget.value, budget.max, budget.scope)
        text = f"Stopped: {budget} in this {share.every}, and the next call may use {more}."
        raise Halt(REASON, text)


def reserving(run: Run, quotas: Iterable[Quota]) -> list[Control]:
    """Return the control of a run's quotas, if there are any.

    What a sub-agent spends is counted by the quotas of its lead too, and what is spent after
    a handoff by those of the agents before.
    """
    lead = run.lead.controls.all if run.lead is not None else ()
    inherited = [
        counted
        for control in (*run.controls.all, *lead)
        if isinstance(control, Reserving)
        for counted in control.counted
    ]
    return [Reserving(quotas, inherited)] if quotas or inherited else []


async def _subject(run: Run, quota: Quota) -> str:
    """Return what tells those apart whom a quota counts apart."""
    if quota.per == "user":
        return owner_key(run.user)
    if quota.per == "agent":
        return str(run.agent._meta.label)
    return str(await in_thread(_tenant, run)) if quota.per == "tenant" else ""


def _tenant(run: Run) -> Any:
    if not settings.TENANT:
        raise Misconfigured(
            "A quota per tenant needs MLANGO['TENANT'], the path of a function that takes the "
            "Context and returns the tenant's key."
        )
    return import_string(settings.TENANT)(Context(run))


def period_start(every: str, now: datetime) -> datetime:
    """Return when the hour, day, week or month of ``now`` began, by the clocks of the site."""
    if django_settings.USE_TZ:
        now = timezone.localtime(now, timezone.get_default_timezone())
    hour = now.replace(minute=0, second=0, microsecond=0)
    day = hour.replace(hour=0, fold=0)
    return {
        "hour": hour,
        "day": day,
        "week": day - timedelta(days=day.weekday()),
        "month": day.replace(day=1),
    }[every]


def _longest(run: Run) -> timedelta:
    """Return how long the next call may take at most."""
    left = min(run.deadline - monotonic(), WITHOUT_TIMEOUT.total_seconds())
    return timedelta(seconds=left) + MARGIN


def _expected(run: Run) -> Usage:
    """Return what the next call may use: what it reads, at a guess, and the longest answer."""
    chars = run.chars if run.view is None else sum(map(size, run.view))
    chars += len(run.system) + len(run.toolbox.schemas.encoded if run.toolbox.schemas else b"")
    longest = run.request_options.get("max_tokens", MAX_TOKENS)
    return Usage(chars // CHARS_PER_TOKEN + 1, longest, estimated=True)


def _since(run: Run, before: Usage) -> Usage:
    """Return what the run has used since then."""
    now = run.usage
    return Usage(
        now.input_tokens - before.input_tokens,
        now.output_tokens - before.output_tokens,
        now.cache_read_tokens - before.cache_read_tokens,
        now.cache_write_tokens - before.cache_write_tokens,
    )


def _price(run: Run, usage: Usage) -> Decimal:
    """Return what a usage costs; 0 where that is not known."""
    return _price_of(run, run.provider, run.model, usage)


def _highest_price(run: Run, usage: Usage) -> Decimal:
    """Return what a usage costs with the dearest model that may be asked."""
    models = ((run.provider, run.model), *run.fallbacks)
    return max(_price_of(run, provider, model, usage) for provider, model in models)


def _price_of(run: Run, provider: Provider, model: str, usage: Usage) -> Decimal:
    if provider.is_free or run.price is None:
        return Decimal(0)
    return run.price(provider.name, model, usage) or Decimal(0)
