"""The pages of sessions."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from mlango.admin.readonly import ReadOnlyAdmin
from mlango.admin.values import NOTHING
from mlango.models import Session


@admin.register(Session)
class SessionAdmin(ReadOnlyAdmin):
    """Shows whose conversations there are, and leads to their runs."""

    list_display = ("key", "agent", "shown_owner", "created_at", "updated_at")
    search_fields = ("key__startswith",)
    search_help_text = _("The beginning of a session's id.")
    fields = readonly_fields = (
        "key",
        "agent",
        "shown_owner",
        "title",
        "created_at",
        "updated_at",
        "runs",
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        # Not a join: the users may live in another database.
        return super().get_queryset(request).prefetch_related("owner")

    @admin.display(description=_("owner"))
    def shown_owner(self, session: Session) -> str:
        return str(session.owner or session.owner_key or NOTHING)

    @admin.display(description=_("runs"))
    def runs(self, session: Session) -> str:
        query = f"?session__id__exact={session.pk}"
        return self.link("mlango_trace_changelist", _("traces"), query=query)
