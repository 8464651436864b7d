"""Approval: a tool call that waits for a person."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.exceptions import PermissionDenied
from django.db import models
from django.db.models import Q
from django.utils.module_loading import import_string
from django.utils.translation import gettext_lazy as _

from mlango.clock import Now
from mlango.core.memory import owner_key
from mlango.core.values import clean, dumps
from mlango.core.visible import canonical, visible
from mlango.core.wanted import USER, check
from mlango.exceptions import AlreadyDecided, Misused
from mlango.models.durable import DurableRun
from mlango.models.json import decoded
from mlango.models.owned import OwnedQuerySet
from mlango.models.trace import Trace

DECIDE_ANY = "mlango.decide_approval"


def new_uuid() -> str:
    """Return 32 random hex characters."""
    return uuid4().hex


class Operator:
    """Whoever runs the process, without an account: decides where no known person is needed.

    That is about runs of nobody, whose tools ask for no permission and no four eyes.
    """


class ApprovalQuerySet(OwnedQuerySet["Approval"]):
    """Approvals, and how one is decided once."""

    def open(self) -> ApprovalQuerySet:
        """Return those that still can be decided, by the database's clock."""
        in_time = Q(expires_at__isnull=True) | Q(expires_at__gt=Now())
        return self.filter(in_time, status=Approval.Status.PENDING)

    def open_in(self, trace: Trace) -> ApprovalQuerySet:
        """Return what a run, or one that works for it, waits for, in the order it was asked."""
        return self.open().filter(trace__in=trace.tree).order_by("created_at")

    def decidable_by(self, user: Any) -> ApprovalQuerySet:
        """Return those about which a user may decide, as ``may_decide()`` says of each."""
        key = owner_key(user)
        if not key or not getattr(user, "is_active", False):
            return self.none()
        own, sign_in = Q(owner_key=key), Q(kind=Approval.Kind.SIGN_IN)
        asked_for = self.exclude(permission="").order_by().values_list("permission", flat=True)
        held = [each for each in asked_for.distinct() if user.has_perm(each)]
        may_any = Q(permission="") if user.has_perm(DECIDE_ANY) else Q(pk__in=())
        others = Q(permission__in=held) | (Q(permission="") & own) | may_any
        return self.filter((sign_in & own) | (~sign_in & others & ~(Q(four_eyes=True) & own)))

    def expire(self) -> int:
        """Mark those whose time is over; return how many there were."""
        late = self.filter(status=Approval.Status.PENDING, expires_at__lte=Now())
        return late.update(status=Approval.Status.EXPIRED, decided_at=Now())


class Approval(models.Model):
    """A tool call that a person must allow, bound to its run, its call and its arguments.

    It is decided once, by someone who may, and what was decided serves one call. Each method
    raises PermissionDenied if ``by`` may not decide, and AlreadyDecided if it is too late.
    """

    class Status(models.TextChoices):
        PENDING = "pending", _("pending")
        APPROVED = "approved", _("approved")
        REJECTED = "rejected", _("rejected")
        EXPIRED = "expired", _("expired")
        USED = "used", _("used")

    class Kind(models.TextChoices):
        TOOL = "tool", _("tool call")
        QUESTION = "question", _("question")
        UNKNOWN = "unknown", _("unknown call")
        CHANGE = "change", _("changed agent")
        SIGN_IN = "sign_in", _("sign-in")

    class Choice(models.TextChoices):
        """What somebody says of a call that a crash cut off."""

        HAPPENED = "happened", _("it happened")
        DID_NOT = "did_not", _("it did not happen")
        AGAIN = "again", _("run it again")

    uuid = models.CharField(primary_key=True, max_length=32, default=new_uuid)
    # As with spans, the run's rows may not be there yet, or live in another transaction.
    trace = models.ForeignKey(
        "mlango.Trace", models.CASCADE, related_name="approvals", db_constraint=False
    )
    tool_call_id = models.TextField()
    kind = models.CharField(_("kind"), max_length=10, choices=Kind, default=Kind.TOOL)
    agent = models.CharField(_("agent"), max_length=200)
    tool = models.CharField(_("tool"), max_length=64)
    arguments_json = models.TextField(blank=True, default="")
    arguments_hash = models.CharField(max_length=64)
    edited_json = models.TextField(blank=True, default="")
    permission = models.CharField(_("permission"), max_length=255, blank=True, default="")
    four_eyes = models.BooleanField(_("four eyes"), default=False)
    owner_key = models.CharField(max_length=255, blank=True, default="", editable=False)
    status = models.CharField(_("status"), max_length=10, choices=Status, default=Status.PENDING)
    decided_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        models.SET_NULL,
        verbose_name=_("decided by"),
        null=True,
        blank=True,
        db_constraint=False,
        related_name="+",
    )
    note = models.TextField(_("note"), blank=True, default="")
    choice = models.CharField(max_length=10, blank=True, default="", choices=Choice)
    # Of the tool as it was when this was asked, so that a later change can be seen.
    tool_digest = models.CharField(max_length=64, blank=True, default="", editable=False)
    created_at = models.DateTimeField(_("created"), auto_now_add=True)
    expires_at = models.DateTimeField(_("expires"), null=True, blank=True)
    decided_at = models.DateTimeField(_("decided"), null=True, blank=True)

    arguments = decoded("arguments_json", empty={})
    edited = decoded("edited_json")

    objects = ApprovalQuerySet.as_manager()

    class Meta:
        verbose_name = _("approval")
        verbose_name_plural = _("approvals")
        base_manager_name = "objects"
        ordering = ("-created_at",)
        indexes = [
            models.Index(fields=["status", "-created_at"], name="mlango_approval_status"),
            models.Index(fields=["status", "expires_at"], name="mlango_approval_expires"),
        ]
        permissions = [("decide_approval", "Can decide any approval")]

    def __str__(self) -> str:
        return f"{self.agent} {self.tool} {self.uuid[:8]}"

    @property
    def subject(self) -> str:
        """What is asked about, in one line in which nothing deceives; of a sign-in, no URL."""
        arguments = self.arguments
        if self.kind == self.Kind.QUESTION:
            return visible(" / ".join([arguments["question"], *(arguments["options"] or ())]))
        if self.kind == self.Kind.SIGN_IN:
            return visible(arguments["label"])
        return f"{visible(self.tool)} {canonical(arguments)}" if self.tool else ""

    # -- deciding ---------------------------------------------------------------------------

    def may_decide(self, user: Any) -> bool:
        """Return whether ``user`` may decide this."""
        if isinstance(user, Operator):
            return not (self.owner_key or self.permission or self.four_eyes)
        if user is None or not getattr(user, "is_active", False):
            return False
        is_owner = bool(self.owner_key) and owner_key(user) == self.owner_key
        if self.kind == self.Kind.SIGN_IN:
            return is_owner
        if self.four_eyes and is_owner:
            return False
        if self.permission:
            return bool(user.has_perm(self.permission))
        return is_owner or bool(user.has_perm(DECIDE_ANY))

    def who_may(self) -> str:
        """Return who may decide this, as the end of a sentence."""
        if self.kind == self.Kind.SIGN_IN:
            return "the run's user" if self.owner_key else "whoever runs the process"
        needed = f"somebody with the permission {self.permission or DECIDE_ANY!r}"
        if self.four_eyes:
            return f"{needed} who is not the run's user"
        is_owners = self.owner_key and not self.permission
        return f"the run's user or {needed}" if is_owners else needed

    def decide(
        self,
        decision: str,
        *,
        by: Any,
        note: str = "",
        arguments: dict[str, Any] | None = None,
    ) -> None:
        """Decide by the name of one of the methods below, as a form or a request has it.

        ``note`` is the reason of a rejection and the text of an answer too; ``arguments`` are
        those that are edited. Raises Misused for what cannot be decided about an approval.
        """
        if decision == "edit":
            self.edit(arguments, by=by, note=note)
        elif arguments:
            raise Misused(f"The decision {decision!r:.100} takes no arguments. Use 'edit'.")
        elif decision == "reject":
            self.reject(by=by, reason=note)
        elif decision == "answer":
            self.answer(note, by=by)
        elif decision in WITH_NOTE:
            getattr(self, decision)(by=by, note=note)
        else:
            raise Misused(f"An approval is not decided by {decision!r:.100}.")

    def approve(self, *, by: Any, note: str = "") -> None:
        """Let the call run as it was shown."""
        self._expect(self.Kind.TOOL, self.Kind.CHANGE)
        self._decide(by, status=self.Status.APPROVED, note=note)

    def reject(self, *, by: Any, reason: str = "") -> None:
        """Refuse the call; the model is told the reason."""
        self._decide(by, status=self.Status.REJECTED, note=reason)

    def edit(
        self, changes: dict[str, Any] | None = None, /, *, by: Any, note: str = "", **more: Any
    ) -> None:
        """Let the call run with these arguments in place of those of the same names.

        Those that a keyword cannot name, such as ``note``, stand in ``changes``. Raises Misused
        where nothing would change, and for arguments that the tool does not take.
        """
        self._expect(self.Kind.TOOL)
        self._permit(by)
        if not isinstance(changes, dict | None):
            raise Misused(f"edit() takes a dict of arguments or keywords, not {changes!r:.100}.")
        edited = dumps(self.edited_by({**(changes or {}), **more}))
        if edited == dumps(self.arguments):
            raise Misused(
                f"edit() would change nothing. Name an argument and its new value, or use "
                f"approve(). Arguments are: {', '.join(self.arguments) or 'none'}."
            )
        self._decide(by, status=self.Status.APPROVED, note=note, edited_json=edited)

    def edited_by(self, changes: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments with these changes; raise Misused where they cannot be so."""
        # What a tool takes is known floors above, and so it is found by name.
        edited: dict[str, Any] = import_string("mlango.agents.edits.edited")(self, changes)
        return edited

    def answer(self, text: str, *, by: Any) -> None:
        """Answer a question. Raises Misused for an empty answer."""
        self._expect(self.Kind.QUESTION)
        if isinstance(text, str) and not text.strip():
            raise Misused("The answer is empty. Write one, or reject the question.")
        self._decide(by, status=self.Status.APPROVED, note=text)

    def signed_in(self, *, by: Any, note: str = "") -> None:
        """Say that the run's user has signed in; the call is then made again."""
        self._expect(self.Kind.SIGN_IN)
        self._decide(by, status=self.Status.APPROVED, note=note)

    def happened(self, *, by: Any, note: str = "") -> None:
        """Say that a call which a crash cut off had its effect; the model reads the note."""
        self._say(self.Choice.HAPPENED, by, note)

    def did_not_happen(self, *, by: Any, note: str = "") -> None:
        """Say that a call which a crash cut off had no effect; it is not made again."""
        self._say(self.Choice.DID_NOT, by, note)

    def run_again(self, *, by: Any, note: str = "") -> None:
        """Have a call which a crash cut off be made once more."""
        self._say(self.Choice.AGAIN, by, note)

    def _say(self, choice: str, by: Any, note: str) -> None:
        self._expect(self.Kind.UNKNOWN)
        self._decide(by, status=self.Status.APPROVED, note=note, choice=choice)

    def _expect(self, *kinds: str) -> None:
        """Raise Misused unless it is of these kinds: an answer must never let a call run."""
        if self.kind not in kinds:
            raise Misused(f"{self.uuid[:8]} is {WHAT_IT_IS[self.kind]}.")

    def _permit(self, by: Any) -> None:
        """Raise PermissionDenied, or AlreadyDecided as far as this object knows."""
        if isinstance(by, str | int):  # nobody's name or key: the row is asked what it may
            check("{}", {"by": by}, {"by": USER}, Misused)
        if not self.may_decide(by):
            raise PermissionDenied(
                f"You may not decide the approval {self.uuid[:8]}. It takes {self.who_may()}."
            )
        if self.status != self.Status.PENDING:
            raise self._too_late()

    def _too_late(self) -> AlreadyDecided:
        return AlreadyDecided(f"The approval {self.uuid[:8]} is {self.status} already.")

    def _decide(self, by: Any, *, note: str, **values: Any) -> None:
        self._permit(by)
        if not isinstance(note, str):
            raise Misused(f"What is said with a decision must be text, not {note!r:.100}.")
        # An operator has no account, and neither has a program with a token of its own.
        user = by if isinstance(by, get_user_model()) else None
        rows = type(self)._default_manager.using(self._state.db)
        mine = rows.filter(pk=self.pk)
        values |= {"decided_by": user, "decided_at": Now(), "note": clean(note)}
        decided = mine.open().update(**values)
        if not decided:
            mine.expire()
        self.refresh_from_db()
        if decided:
            self.wake()
        else:
            raise self._too_late()

    def wake(self) -> None:
        """Have a durable run go on that waits for nothing more."""
        rows = type(self)._default_manager.using(self._state.db)
        trace = Trace.objects.using(self._state.db).filter(pk=self.trace_id).first()
        if trace is not None and not rows.open_in(trace.root).exists():
            DurableRun.objects.using(self._state.db).wake(trace.root.pk)

    def use(self) -> bool:
        """Take what was approved, once; return whether it was there to take."""
        rows = type(self)._default_manager.using(self._state.db)
        approved = rows.filter(pk=self.pk, status=self.Status.APPROVED)
        return approved.update(status=self.Status.USED) > 0

    def describe(self) -> dict[str, Any]:
        """Return what someone who decides needs to see, JSON-safe."""
        return {
            "approval": self.uuid,
            "trace": self.trace_id,
            "kind": self.kind,
            "agent": self.agent,
            "tool": self.tool,
            "tool_call_id": self.tool_call_id,
            "arguments": self.arguments,
            "status": self.status,
            "note": self.note,
            "expires_at": self.expires_at.isoformat() if self.expires_at else None,
        }


# Decisions that take a note and nothing else.
WITH_NOTE = ("approve", "signed_in", "happened", "did_not_happen", "run_again")

WHAT_IT_IS: dict[str, str] = {
    Approval.Kind.TOOL: "a call of a tool. Use approve(), edit() or reject()",
    Approval.Kind.QUESTION: "a question. Use answer() or reject()",
    Approval.Kind.UNKNOWN: (
        "a call that a crash cut off. Use happened(), did_not_happen(), run_again() or reject()"
    ),
    Approval.Kind.SIGN_IN: "a sign-in. Use signed_in() or reject()",
    Approval.Kind.CHANGE: "about an agent that has changed. Use approve() or reject()",
}
