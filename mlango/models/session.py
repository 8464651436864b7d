"""Session: one conversation of a user with an agent, over many runs."""

from __future__ import annotations

from datetime import timedelta

from django.conf import settings
from django.db import models
from django.db.models import Case, Q, Value, When
from django.utils.translation import gettext_lazy as _

from mlango.clock import Now
from mlango.models.owned import OwnedQuerySet


class SessionQuerySet(OwnedQuerySet["Session"]):
    """Sessions, and the turn that one run at a time has in each.

    The turn ends by the database's clock, so hosts may disagree about the time.
    """

    def take_turn(self, run: str, seconds: float) -> bool:
        """Give the turn of the one session in this set to a run, if no other run has it."""
        free = Q(turn__in=("", run)) | Q(turn_until__isnull=True) | Q(turn_until__lt=Now())
        until = Now() + timedelta(seconds=seconds)
        return self.filter(free).update(turn=run, turn_until=until, updated_at=Now()) > 0

    def renew_turn(self, run: str, seconds: float) -> bool:
        """Lengthen a run's turn; return whether it still had it."""
        until = Now() + timedelta(seconds=seconds)
        return self.filter(turn=run).update(turn_until=until) > 0

    def release_turn(self, run: str, title: str = "") -> None:
        """End a run's turn, if it still has it; name a session that has no title yet."""
        named = Case(When(title="", then=Value(title)), default="title")
        self.filter(turn=run).update(turn="", turn_until=None, title=named)


class Session(models.Model):
    """A conversation. Its messages are those of its traces.

    Two users, or two agents, may use the same ``key`` and do not meet. ``turn`` is the uuid
    of the run that may speak until ``turn_until``; what was said up to ``forgotten_at`` is
    not recalled any more.
    """

    agent = models.CharField(_("agent"), max_length=200)
    # The users may live in another database, so nothing here asks the database for them.
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        models.SET_NULL,
        verbose_name=_("owner"),
        null=True,
        blank=True,
        db_constraint=False,
        related_name="+",
    )
    owner_key = models.CharField(max_length=255, blank=True, default="", editable=False)
    key = models.CharField(_("key"), max_length=128)
    title = models.CharField(_("title"), max_length=200, blank=True, default="")
    turn = models.CharField(max_length=32, blank=True, default="", editable=False)
    turn_until = models.DateTimeField(null=True, blank=True, editable=False)
    forgotten_at = models.DateTimeField(null=True, blank=True, editable=False)
    created_at = models.DateTimeField(_("created"), auto_now_add=True)
    updated_at = models.DateTimeField(_("updated"), auto_now=True)

    objects = SessionQuerySet.as_manager()

    class Meta:
        verbose_name = _("session")
        verbose_name_plural = _("sessions")
        base_manager_name = "objects"
        ordering = ("-updated_at",)
        constraints = [
            models.UniqueConstraint(
                fields=["agent", "owner_key", "key"], name="mlango_session_unique"
            )
        ]
        indexes = [
            models.Index(fields=["owner_key", "-updated_at"], name="mlango_session_owner"),
            models.Index(fields=["-updated_at"], name="mlango_session_updated"),
        ]

    def __str__(self) -> str:
        return f"{self.agent} {self.key}"
