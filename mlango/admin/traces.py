"""The pages of traces: a list without content, and a trace with its spans."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import ChangeList
from django.contrib.auth import get_user_model
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _

from mlango.admin.readonly import ReadOnlyAdmin
from mlango.admin.spans import list_spans
from mlango.admin.values import NOTHING, block, cut, dollars, readable, seconds
from mlango.models import Approval, Trace
from mlango.runtime.registry import registry

PAYLOAD = ("input", "output", "error", "opening_json", "metadata_json")


class AgentFilter(admin.SimpleListFilter):
    """Offers the site's agents, for which the table need not be read, and the one asked for."""

    title = _("agent")
    parameter_name = "agent"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        labels = {agent._meta.label for agent in registry.all()}
        return [(label, label) for label in sorted({*labels, self.value()} - {None})]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(agent=self.value()) if self.value() else queryset


class TraceList(ChangeList):
    """Leaves the content of the runs in the database; it may be large, and is not shown."""

    def get_queryset(self, *args: Any, **kwargs: Any) -> QuerySet[Any]:
        return super().get_queryset(*args, **kwargs).defer(*PAYLOAD)


@admin.register(Trace)
class TraceAdmin(ReadOnlyAdmin):
    """Shows who ran what, how it ended and what it used."""

    list_display = (
        "__str__",
        "shown_status",
        "shown_user",
        "shown_session",
        "tokens",
        "shown_cost",
        "duration",
        "started_at",
    )
    list_filter = ("status", AgentFilter)
    search_fields = ("uuid", "user")
    search_help_text = _("The beginning of a trace's id, or the name that a user logs in with.")
    readonly_fields = (
        "agent",
        "shown_status",
        "stop_reason",
        "shown_user",
        "shown_session",
        "shown_parent",
        "provider",
        "model",
        "steps",
        "tokens",
        "shown_cost",
        "duration",
        "started_at",
        "ended_at",
        "whole_id",
        "shown_input",
        "shown_output",
        "shown_error",
        "opening",
        "metadata",
    )
    fieldsets = (
        (
            None,
            {
                "fields": (
                    ("agent", "shown_status", "stop_reason"),
                    ("shown_user", "shown_session", "shown_parent"),
                    ("provider", "model", "steps"),
                    ("tokens", "shown_cost", "duration"),
                    ("started_at", "ended_at", "whole_id"),
                )
            },
        ),
        (_("Content"), {"fields": ("shown_input", "shown_output", "shown_error")}),
        (_("More"), {"fields": ("opening", "metadata"), "classes": ["collapse"]}),
    )

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return TraceList

    def changelist_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        Trace.objects.mark_lost()  # else they are said to be running for ever
        return super().changelist_view(request, *args, **kwargs)

    def change_view(self, request: HttpRequest, object_id: str, *args: Any, **kwargs: Any) -> Any:
        Trace.objects.filter(pk=unquote(object_id)).mark_lost()
        return super().change_view(request, object_id, *args, **kwargs)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        # Not a join: the users may live in another database.
        return super().get_queryset(request).prefetch_related("user")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        if term := search_term.strip():
            prefix = term.replace("-", "").lower()
            queryset = queryset.filter(Q(uuid__startswith=prefix or term) | _belongs_to(term))
        return queryset, False

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        trace = context["original"]
        context["spans"] = list_spans(trace)
        context["waits_for"] = waited_for(trace)
        context["may_view_approvals"] = request.user.has_perm("mlango.view_approval")
        return super().render_change_form(request, context, *args, **kwargs)

    @admin.display(description=_("id"))
    def whole_id(self, trace: Trace) -> str:
        return trace.uuid

    @admin.display(description=_("status"), ordering="status")
    def shown_status(self, trace: Trace) -> str:
        return format_html(
            '<span class="mlango-status {}">{}</span>', trace.status, trace.get_status_display()
        )

    @admin.display(description=_("user"))
    def shown_user(self, trace: Trace) -> str:
        return str(trace.user or trace.owner_key or NOTHING)

    @admin.display(description=_("session"))
    def shown_session(self, trace: Trace) -> str:
        if trace.session_id is None:
            return trace.session_key or NOTHING
        return self.link("mlango_session_change", trace.session_key, trace.session_id)

    @admin.display(description=_("parent"))
    def shown_parent(self, trace: Trace) -> str:
        if trace.parent_id is None:
            return NOTHING
        return self.link("mlango_trace_change", trace.parent_id[:8], trace.parent_id)

    @admin.display(description=_("tokens"))
    def tokens(self, trace: Trace) -> str:
        return f"{trace.usage.total_tokens:,}"

    @admin.display(description=_("cost"), ordering="cost")
    def shown_cost(self, trace: Trace) -> str:
        return dollars(trace.cost)

    @admin.display(description=_("duration"))
    def duration(self, trace: Trace) -> str:
        return seconds(trace.duration_s)

    @admin.display(description=_("input"))
    def shown_input(self, trace: Trace) -> str:
        return block(cut(trace.input))

    @admin.display(description=_("output"))
    def shown_output(self, trace: Trace) -> str:
        return block(cut(trace.output))

    @admin.display(description=_("error"))
    def shown_error(self, trace: Trace) -> str:
        return block(cut(trace.error))

    @admin.display(description=_("began with"))
    def opening(self, trace: Trace) -> str:
        return block(readable(trace.opening_json))

    @admin.display(description=_("metadata"))
    def metadata(self, trace: Trace) -> str:
        return block(readable(trace.metadata_json))


def waited_for(trace: Trace) -> list[Approval]:
    """Return what a run waits for, which may be asked by one that works for it."""
    is_waiting = trace.status == Trace.Status.WAITING
    return list(Approval.objects.open_in(trace)) if is_waiting else []


def _belongs_to(name: str) -> Q:
    """Return the condition that a trace is of the user who logs in with a name."""
    users = get_user_model()._default_manager
    found = users.filter(**{get_user_model().USERNAME_FIELD: name}).first()
    return Q(pk__in=()) if found is None else Q(user=found.pk)
