"""Span: one thing that a run did."""

from __future__ import annotations

from collections.abc import Iterator

from django.db import models
from django.utils.translation import gettext_lazy as _

from mlango.core.run import ToolOutcome
from mlango.core.usage import Usage
from mlango.models.json import decoded
from mlango.models.rows import RowQuerySet


class SpanQuerySet(RowQuerySet["Span"]):
    """Spans."""


class SpanManager(models.Manager["Span"]):
    """Lets the spans of a trace be read as they are: ``for span in trace.spans``."""

    def __iter__(self) -> Iterator[Span]:
        return iter(self.all())


class Span(models.Model):
    """A model call, a tool call, or what someone said to the agent on the way.

    ``output`` is what the conversation gained by it; a run's messages are rebuilt from it.
    ``cost`` is in US dollars, None where a price is unknown.
    """

    class Kind(models.TextChoices):
        LLM = "llm", _("model call")
        TOOL = "tool", _("tool call")
        AGENT = "agent", _("agent")
        GUARDRAIL = "guardrail", _("guardrail")
        APPROVAL = "approval", _("approval")
        MEMORY = "memory", _("memory")
        RETRIEVAL = "retrieval", _("retrieval")

    # The unique constraint serves as the index. A check by the database would come at the
    # end of the caller's transaction and break that.
    trace = models.ForeignKey(
        "mlango.Trace",
        models.CASCADE,
        related_name="spans",
        db_constraint=False,
        db_index=False,
    )
    ordering = models.PositiveIntegerField()
    parent_ordering = models.PositiveIntegerField(null=True)
    step = models.PositiveIntegerField(_("step"))
    kind = models.CharField(_("kind"), max_length=10, choices=Kind)
    name = models.CharField(_("name"), max_length=200, blank=True)
    tool_call_id = models.TextField(blank=True, default="")
    input_json = models.TextField(blank=True, default="")
    output_json = models.TextField(blank=True, default="")
    error = models.TextField(_("error"), blank=True, default="")
    error_type = models.CharField(max_length=100, blank=True, default="")
    input_tokens = models.BigIntegerField(default=0)
    output_tokens = models.BigIntegerField(default=0)
    cache_read_tokens = models.BigIntegerField(default=0)
    cache_write_tokens = models.BigIntegerField(default=0)
    reasoning_tokens = models.BigIntegerField(default=0)
    estimated = models.BooleanField(default=False)
    cost = models.DecimalField(max_digits=20, decimal_places=10, null=True)
    started_at = models.DateTimeField(_("started"))
    ended_at = models.DateTimeField(_("ended"))
    attributes_json = models.TextField(blank=True, default="")

    input = decoded("input_json")
    output = decoded("output_json")
    attributes = decoded("attributes_json", empty={})

    objects = SpanManager.from_queryset(SpanQuerySet)()

    class Meta:
        verbose_name = _("span")
        verbose_name_plural = _("spans")
        base_manager_name = "objects"
        ordering = ("trace_id", "ordering")
        constraints = [
            models.UniqueConstraint(fields=["trace", "ordering"], name="mlango_span_unique")
        ]

    def __str__(self) -> str:
        return f"{self.ordering} {self.kind} {self.name}"

    @property
    def parent(self) -> Span | None:
        """The span that this one belongs to, such as the model call that asked for a tool."""
        if self.parent_ordering is None:
            return None
        return self.trace.spans.filter(ordering=self.parent_ordering).first()

    @property
    def duration_s(self) -> float:
        return (self.ended_at - self.started_at).total_seconds()

    @property
    def outcome(self) -> ToolOutcome:
        """What a tool call came to."""
        return ToolOutcome(
            self.tool_call_id,
            self.name,
            self.output,
            bool(self.error_type),
            self.error_type,
            self.duration_s,
            self.attributes.get("details"),
        )

    @property
    def usage(self) -> Usage | None:
        """The tokens of a model call; None for anything else."""
        if self.kind != self.Kind.LLM:
            return None
        return Usage(
            self.input_tokens,
            self.output_tokens,
            self.cache_read_tokens,
            self.cache_write_tokens,
            self.reasoning_tokens,
            self.estimated,
        )
