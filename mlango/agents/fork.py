"""Beginning a new run where another one was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

from django.db import transaction
from django.utils import timezone

from mlango.agents.resume import recorded
from mlango.exceptions import Misused
from mlango.models import DurableRun, Span, Trace
from mlango.runtime import database

if TYPE_CHECKING:
    from mlango.agents.agent import Agent

NOTHING_USED = {
    "input_tokens": 0,
    "output_tokens": 0,
    "cache_read_tokens": 0,
    "cache_write_tokens": 0,
    "reasoning_tokens": 0,
    "estimated": False,
    "cost": 0,
}


def forked(agent: Agent, trace: Any, from_step: int, options: dict[str, Any]) -> Trace:
    """Return a new trace that is as another one was before a step; asks the database.

    Its spans are copies that used nothing. It can go on like any run that has stopped.
    """
    found = recorded(agent, trace, options, also=("finished",)).trace
    last = max((span.step for span in found.spans.all()), default=0)
    if type(from_step) is not int or not 1 <= from_step <= last + 1:
        raise Misused(f"from_step must be a step from 1 to {last + 1}, not {from_step!r}.")
    spans = [span for span in found.spans.all() if span.step < from_step]
    durable = getattr(found, "durable", None)
    alias = database.alias()
    with transaction.atomic(using=alias):
        copy = _copy(found, from_step, spans)
        copy.save(using=alias, force_insert=True)
        for span in spans:
            span.pk, span.trace_id = None, copy.pk
            for name, value in NOTHING_USED.items():
                setattr(span, name, value)
        Span.objects.using(alias).bulk_create(spans)
        if durable is not None:
            DurableRun.objects.using(alias).create(
                pk=copy.pk,
                agent=durable.agent,
                owner_key=durable.owner_key,
                request_json=durable.request_json,
                queue=durable.queue,
            )
    return copy


def _copy(found: Trace, from_step: int, spans: list[Span]) -> Trace:
    copy = Trace.objects.get(pk=found.pk)
    copy.pk = uuid4().hex
    copy.status, copy.stop_reason = Trace.Status.STOPPED, "forked"
    copy.error = copy.output = ""
    copy.parent = None
    copy.metadata = {**found.metadata, "forked_from": found.pk, "from_step": from_step}
    copy.fingerprint = found.fingerprint
    copy.steps = from_step - 1
    copy.span_count = len(spans)
    copy.error_count = sum(bool(span.error_type) for span in spans)
    copy.started_at = copy.ended_at = timezone.now()
    for name, value in NOTHING_USED.items():
        setattr(copy, name, value)
    return copy
