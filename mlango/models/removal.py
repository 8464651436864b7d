"""Deleting rows on purpose: runs that are old, and all that belongs to an owner.

Rows go in batches, each in a transaction of its own, so that nobody waits long for them and
what was deleted stays deleted when the rest is stopped.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from django.apps import apps
from django.db import router, transaction
from django.db.models import Model

from mlango.models.approval import Approval
from mlango.models.quota import QuotaUsage
from mlango.models.trace import Trace, TraceQuerySet

BATCH = 500  # runs, with their sub-agents; SQLite takes not many more values at once


def old_runs(before: datetime, agent: str = "") -> TraceQuerySet:
    """Return the runs that ended before then; ``agent`` is a label.

    A run that goes on, or that somebody has to decide about, is none of them. Sub-agents are
    not among them either: they go with the run that they worked for.
    """
    runs = Trace.objects.filter(parent=None, status__in=Trace.ENDED, started_at__lt=before)
    runs = runs.exclude(ended_at__gte=before)
    return runs.filter(agent=agent) if agent else runs


def delete_runs(runs: TraceQuerySet) -> Iterator[int]:
    """Delete runs with all that belongs to them; yield after each batch how many it had."""
    last = ""
    while uuids := list(
        runs.filter(pk__gt=last).order_by("pk").values_list("pk", flat=True)[:BATCH]
    ):
        yield _delete(runs, uuids)
        last = uuids[-1]


def _delete(runs: TraceQuerySet, uuids: list[str]) -> int:
    """Delete those that are still among the runs: one may have been gone on with meanwhile."""
    alias = router.db_for_write(Trace)
    traces = Trace.objects.using(alias)
    with transaction.atomic(using=alias):
        still = runs.using(alias).filter(pk__in=uuids).select_for_update()
        family = found = list(still.values_list("pk", flat=True))
        while family:
            children = list(traces.filter(parent__in=family).values_list("pk", flat=True))
            traces.filter(pk__in=family).delete()
            family = children
    return len(found)


def delete_owned(owner: str) -> dict[str, int]:
    """Delete every row of an owner, a user's key; return how many of each kind.

    Runs that go on stay, with what is theirs. What he decided about the runs of others stays,
    without his name and his words.
    """
    deleted = {"trace": sum(delete_runs(_at_rest(owner)))}
    for model in _owned_models():
        rows = model._default_manager.filter(owner_key=owner)
        if any(field.name == "trace" for field in model._meta.fields):
            rows = rows.exclude(trace__in=Trace.objects.filter(owner_key=owner))
        count, _ = rows.delete()
        deleted[model._meta.model_name or ""] = count
    QuotaUsage.objects.filter(per="user", subject=owner).delete()
    Approval.objects.filter(decided_by__pk=owner).update(decided_by=None, note="")
    return deleted


def _at_rest(owner: str) -> TraceQuerySet:
    """Return an owner's runs of which none goes on; sub-agents go with theirs."""
    at_rest = (*Trace.ENDED, Trace.Status.WAITING)
    return Trace.objects.filter(owner_key=owner, parent=None, status__in=at_rest)


def _owned_models() -> list[type[Model]]:
    """Return the models whose rows have an owner, but for traces, which come first."""
    models = apps.get_app_config("mlango").get_models()
    return [
        model
        for model in models
        if model is not Trace and any(field.name == "owner_key" for field in model._meta.fields)
    ]
