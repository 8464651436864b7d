"""The pages of approvals: what waits for a person first, and deciding about it.

To look and to decide are two permissions. Nothing is run here: a run may take minutes, and
goes on where ``manage.py approvals resume`` is called.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db.models import Case, Prefetch, Q, QuerySet, When
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.decorators import method_decorator
from django.utils.html import format_html
from django.utils.text import Truncator
from django.utils.translation import gettext as translated
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST

from mlango.admin.readonly import ReadOnlyAdmin
from mlango.admin.traces import PAYLOAD, AgentFilter
from mlango.admin.values import NOTHING, block
from mlango.clock import Now
from mlango.core.visible import canonical, visible
from mlango.exceptions import AlreadyDecided
from mlango.models import Approval, Trace

MAX_IN_LIST = 100  # characters
IS_OPEN = Q(status="pending") & (Q(expires_at__isnull=True) | Q(expires_at__gt=Now()))
DONE = {
    "approve": _("Approved"),
    "reject": _("Rejected"),
    "answer": _("Answered"),
    "signed_in": _("Signed in"),
    "happened": _("It happened"),
    "did_not_happen": _("It did not happen"),
    "run_again": _("To be run again"),
}
# What can be said of each kind beside "reject"; of the others, "approve".
FITTING: dict[str, tuple[str, ...]] = {
    Approval.Kind.QUESTION: ("answer",),
    Approval.Kind.SIGN_IN: ("signed_in",),
    Approval.Kind.UNKNOWN: ("happened", "did_not_happen", "run_again"),
}


@admin.register(Approval)
class ApprovalAdmin(ReadOnlyAdmin):
    """Shows what waits for whom, and has those decide who may."""

    ordering = (Case(When(IS_OPEN, then=0), default=1), "-created_at")
    list_display = (
        "__str__",
        "kind",
        "shown_subject",
        "shown_status",
        "requester",
        "created_at",
        "expires_at",
        "decider",
    )
    list_filter = ("status", "kind", AgentFilter)
    search_fields = ("uuid__startswith", "tool__startswith")
    search_help_text = _("The beginning of an approval's id, or of a tool's name.")
    readonly_fields = (
        "shown_status",
        "requester",
        "shown_trace",
        "shown_tool",
        "shown_arguments",
        "shown_edits",
        "decider",
        "shown_note",
    )
    fieldsets = (
        (
            None,
            {
                "fields": (
                    ("agent", "kind", "shown_status"),
                    ("requester", "shown_trace"),
                    ("permission", "four_eyes"),
                    ("created_at", "expires_at"),
                    ("decider", "choice", "decided_at"),
                )
            },
        ),
        (
            _("What is asked"),
            {"fields": ("shown_tool", "shown_arguments", "shown_edits", "shown_note")},
        ),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        # Not a join: the users may live in another database.
        traces = Prefetch("trace", Trace.objects.defer(*PAYLOAD))
        rows = super().get_queryset(request)
        return rows.prefetch_related(traces, "trace__user", "decided_by")

    def get_urls(self) -> list[URLPattern]:
        page = path(
            "<path:object_id>/decide/",
            self.admin_site.admin_view(self.decide),
            name="mlango_approval_decide",
        )
        return [page, *super().get_urls()]

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        approval = context["original"]
        context["is_open"] = is_open(approval)
        context["may_decide"] = approval.may_decide(request.user)
        context["is_question"] = approval.kind == Approval.Kind.QUESTION
        context["is_sign_in"] = approval.kind == Approval.Kind.SIGN_IN
        context["is_unknown"] = approval.kind == Approval.Kind.UNKNOWN
        context["decide_url"] = self._address("decide", approval)
        return super().render_change_form(request, context, *args, **kwargs)

    # -- deciding ---------------------------------------------------------------------------

    @method_decorator(require_POST)
    def decide(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Decide as a button says; the permission is that of this moment."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        approval: Any = self.get_object(request, unquote(object_id))
        if approval is None:
            raise Http404
        if not approval.may_decide(request.user):
            raise PermissionDenied
        if problem := self._problem(request, approval):
            self.message_user(request, problem, messages.ERROR)
        return HttpResponseRedirect(self._address("change", approval))

    def _problem(self, request: HttpRequest, approval: Approval) -> str:
        """Decide, and return why that cannot be, or an empty string."""
        decision, note = request.POST.get("decision", ""), request.POST.get("note", "").strip()
        if problem := unfit(approval, decision, note, request.POST.get("arguments_hash", "")):
            return problem
        try:
            approval.decide(decision, by=request.user, note=note)
        except AlreadyDecided:
            return translated("This is %(status)s already. Nothing was changed.") % {
                "status": approval.get_status_display()
            }
        self.log_change(request, approval, f"{decision}: {note}" if note else decision)
        self.message_user(request, _told(decision), messages.SUCCESS)
        return ""

    def _address(self, page: str, approval: Approval) -> str:
        name = f"admin:mlango_approval_{page}"
        return reverse(name, args=(approval.pk,), current_app=self.admin_site.name)

    # -- what is shown ----------------------------------------------------------------------

    @admin.display(description=_("status"), ordering="status")
    def shown_status(self, approval: Approval) -> str:
        is_late = approval.status == Approval.Status.PENDING and not is_open(approval)
        status = Approval.Status.EXPIRED if is_late else Approval.Status(approval.status)
        return format_html('<span class="mlango-status {}">{}</span>', status, status.label)

    @admin.display(description=_("asked by"))
    def requester(self, approval: Approval) -> str:
        trace = getattr(approval, "trace", None)  # it may be gone
        return str((trace and trace.user) or approval.owner_key or NOTHING)

    @admin.display(description=_("trace"))
    def shown_trace(self, approval: Approval) -> str:
        return self.link("mlango_trace_change", approval.trace_id[:8], approval.trace_id)

    @admin.display(description=_("decided by"))
    def decider(self, approval: Approval) -> str:
        return str(approval.decided_by or NOTHING)

    @admin.display(description=_("asks"))
    def shown_subject(self, approval: Approval) -> str:
        return Truncator(approval.subject).chars(MAX_IN_LIST)

    @admin.display(description=_("tool"))
    def shown_tool(self, approval: Approval) -> str:
        return visible(approval.tool)

    @admin.display(description=_("arguments"))
    def shown_arguments(self, approval: Approval) -> str:
        arguments = approval.arguments
        if approval.kind == Approval.Kind.QUESTION:
            return block("\n".join(map(visible, (arguments["question"], *_options(arguments)))))
        if approval.kind == Approval.Kind.SIGN_IN:  # the url is for the run's user alone
            arguments = {"label": arguments["label"]}
        return block(lines_of(arguments))

    @admin.display(description=_("edited"))
    def shown_edits(self, approval: Approval) -> str:
        return block(lines_of(approval.edited or {}))

    @admin.display(description=_("note"))
    def shown_note(self, approval: Approval) -> str:
        return block("\n".join(map(visible, approval.note.splitlines())))


def _options(question: dict[str, Any]) -> Iterator[str]:
    """Yield the answers that a question lets choose from."""
    for number, option in enumerate(question["options"] or (), start=1):
        yield f"{number}. {option}"


def is_open(approval: Approval) -> bool:
    """Return whether it can still be decided, by the clock of this machine."""
    in_time = approval.expires_at is None or approval.expires_at > timezone.now()
    return approval.status == Approval.Status.PENDING and in_time


def lines_of(arguments: dict[str, Any]) -> str:
    """Return arguments in full, one a line, so that nothing in them deceives."""
    pairs = sorted(arguments.items())
    return "\n".join(f"{visible(name)} = {canonical(value)}" for name, value in pairs)


def unfit(approval: Approval, decision: str, note: str, seen: str) -> str:
    """Return why a decision cannot be taken as it was sent, or an empty string.

    ``seen`` is the hash of the arguments that the page showed.
    """
    if decision not in (*FITTING.get(approval.kind, ("approve",)), "reject"):
        return translated("That cannot be decided here. Nothing was changed.")
    if seen != approval.arguments_hash:
        return translated("The page showed another call. Nothing was changed.")
    if decision == "reject" and not note:
        return translated("Say why. The agent is told.")
    if decision == "answer" and not note:
        return translated("Write an answer.")
    return ""


def _told(decision: str) -> str:
    return translated(
        "%(done)s. The run goes on with the next “manage.py approvals resume”, "
        "once all that it waits for is decided."
    ) % {"done": DONE[decision]}
