"""``manage.py traces prune`` and ``erase``: deleting on purpose."""

from __future__ import annotations

import re
from argparse import ArgumentParser, ArgumentTypeError
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError
from django.utils import timezone

from mlango.agents.erasing import erase
from mlango.conf import settings
from mlango.exceptions import Misused
from mlango.management.base import user_named
from mlango.management.endings import USAGE
from mlango.management.printing import counted
from mlango.management.terminal import Screen
from mlango.models import Trace
from mlango.models.quota import QuotaReservation, QuotaUsage
from mlango.models.removal import delete_runs, old_runs

UNITS = {"h": "hours", "d": "days", "w": "weeks"}


def age(text: str) -> timedelta:
    """Return an argument such as ``12h``, ``30d`` or ``8w``."""
    found = re.fullmatch(r"(\d{1,5})([hdw])", text)
    if not found or not int(found[1]):
        raise ArgumentTypeError(f"must be an age such as 12h, 30d or 8w, not {text!r}")
    return timedelta(**{UNITS[found[2]]: int(found[1])})


def add_arguments(actions: Any) -> None:
    """Add the two actions to the command."""
    pruning: ArgumentParser = actions.add_parser("prune", help="delete old runs, in batches")
    pruning.add_argument(
        "--older-than",
        type=age,
        metavar="AGE",
        help='such as 12h, 30d or 8w; MLANGO["RETENTION"] days if not given',
    )
    pruning.add_argument("--agent", default="", metavar="LABEL", help="only those of this agent")
    pruning.add_argument("--dry-run", action="store_true", help="only say how many there are")
    erasing: ArgumentParser = actions.add_parser(
        "erase", help="delete all that is known of a user"
    )
    who = erasing.add_mutually_exclusive_group(required=True)
    who.add_argument("--user", metavar="NAME", help="the name that the user logs in with")
    who.add_argument("--key", metavar="KEY", help="the primary key of one who is gone already")


def prune(err: Screen, options: dict[str, Any]) -> None:
    """Delete what is older than asked for, or than the setting says."""
    older_than = options["older_than"]
    if older_than is None:
        if settings.RETENTION is None:
            raise CommandError(
                'Say how old with --older-than 30d, or set MLANGO["RETENTION"] to days.',
                returncode=USAGE,
            )
        older_than = timedelta(days=settings.RETENTION)
    before = timezone.now() - older_than
    Trace.objects.mark_lost()  # else they are kept for ever
    runs = old_runs(before, options["agent"])
    if options["dry_run"]:
        err.line(f"{counted(runs.count(), 'run')} would be deleted.")
        return
    deleted = 0
    for count in delete_runs(runs):
        deleted += count
        err.line(f"{counted(deleted, 'run')} deleted …")
    err.line(f"{counted(deleted, 'run')} deleted." if deleted else "No run is that old.")
    if not options["agent"]:
        QuotaReservation.objects.release_lapsed()
        if counters := QuotaUsage.objects.delete_before(before):
            err.line(f"{counted(counters, 'quota counter')} deleted.")


def erase_user(err: Screen, options: dict[str, Any]) -> None:
    """Delete what is known of the user."""
    user = user_named(options["user"]) if options["user"] else options["key"]
    try:
        deleted = erase(user)
    except Misused as error:
        raise CommandError(str(error)) from error
    told = ", ".join(counted(count, kind) for kind, count in deleted.items())
    err.line(f"Deleted: {told}.")
