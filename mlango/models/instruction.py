"""Instruction: what somebody tells a durable run that another process does."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from mlango.models.json import decoded
from mlango.models.rows import RowQuerySet

MAX_WAITING = 16  # that a run has not read yet


class InstructionQuerySet(RowQuerySet["Instruction"]):
    """Instructions."""


class Instruction(models.Model):
    """A message to a run. It is deleted in the transaction that has it in the conversation."""

    class Kind(models.TextChoices):
        STEER = "steer", _("steer")
        FOLLOW_UP = "follow_up", _("follow up")

    trace = models.ForeignKey(
        "mlango.Trace", models.CASCADE, related_name="instructions", db_constraint=False
    )
    kind = models.CharField(_("kind"), max_length=10, choices=Kind)
    now = models.BooleanField(default=False)
    said_json = models.TextField()
    at = models.DateTimeField(_("at"), auto_now_add=True)

    # messages
    said = decoded("said_json")

    objects = InstructionQuerySet.as_manager()

    class Meta:
        verbose_name = _("instruction")
        verbose_name_plural = _("instructions")
        base_manager_name = "objects"
        ordering = ("pk",)

    def __str__(self) -> str:
        return f"{self.kind} {self.trace_id[:8]}"
