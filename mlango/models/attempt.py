"""Attempt: a model or tool call of a durable run that was begun."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from mlango.models.json import decoded
from mlango.models.rows import RowQuerySet


class AttemptQuerySet(RowQuerySet["Attempt"]):
    """Attempts."""


class Attempt(models.Model):
    """What is written before a durable run acts. The span says how it ended.

    A tool call with an attempt and without a span was cut off: it may have had its effect.
    ``token`` tells which process made the attempt. ``result`` is set by the transaction of
    a tool that is atomic, together with what the tool wrote.
    """

    trace = models.ForeignKey(
        "mlango.Trace",
        models.CASCADE,
        related_name="attempts",
        db_constraint=False,
        db_index=False,
    )
    ordering = models.PositiveIntegerField()
    token = models.PositiveIntegerField()
    kind = models.CharField(_("kind"), max_length=10)
    name = models.CharField(_("name"), max_length=200, blank=True)
    effect = models.CharField(max_length=15, blank=True, default="")
    tool_call_id = models.TextField(blank=True, default="")
    arguments_hash = models.CharField(max_length=64, blank=True, default="")
    idempotency_key = models.CharField(max_length=64, blank=True, default="")
    started_at = models.DateTimeField(_("started"))
    result_json = models.TextField(blank=True, default="")

    # what the model is to read, whether it is an error, and its details
    result = decoded("result_json")

    objects = AttemptQuerySet.as_manager()

    class Meta:
        verbose_name = _("attempt")
        verbose_name_plural = _("attempts")
        base_manager_name = "objects"
        ordering = ("trace_id", "pk")
        indexes = [models.Index(fields=["trace", "ordering"], name="mlango_attempt_trace")]

    def __str__(self) -> str:
        return f"{self.ordering} {self.kind} {self.name}"
