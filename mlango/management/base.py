"""The base of mlango's commands that people read the output of."""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError

from mlango.management.endings import INTERRUPTED, USAGE
from mlango.management.terminal import Screen, wants_colors


class TerminalCommand(BaseCommand):
    """Gives a command two Screens, and an exit code for what it returns.

    A reader who leaves early, such as ``head``, is no error, and Ctrl-C needs no traceback.
    """

    requires_system_checks: list[str] = []

    out: Screen
    err: Screen

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.stderr.style_func = None  # Django would colour it, whatever NO_COLOR says

    def handle(self, *args: Any, **options: Any) -> None:
        self.out, self.err = (
            Screen(each, colored=wants_colors(each, options))
            for each in (self.stdout, self.stderr)
        )
        try:
            code = self.perform(options)
        except BrokenPipeError:
            code = 0  # every line is flushed, so nothing is left to be written at the exit
        except KeyboardInterrupt:
            code = INTERRUPTED
        if code:
            sys.exit(code)

    def perform(self, options: dict[str, Any]) -> int:
        """Do the command's work and return the exit code."""
        raise NotImplementedError


def count(text: str) -> int:
    """Return an argument that must be a positive number."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"must be a positive number, not {text!r}")
    return int(text)


def user_named(name: str) -> Any:
    """Return the user who logs in with a name."""
    users = get_user_model()
    try:
        return users._default_manager.get_by_natural_key(name)
    except users.DoesNotExist:
        raise CommandError(f"There is no user {name!r}.", returncode=USAGE) from None
