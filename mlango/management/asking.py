"""Asking at the terminal about what a run waits for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from django.core.management.base import CommandError, OutputWrapper

from mlango.exceptions import AlreadyDecided, Misused
from mlango.management.decisions import (
    QUESTION,
    SIGN_IN,
    asked,
    changes_of,
    chosen,
    how_to_decide,
)
from mlango.management.keyboard import ask_line, forget_typed_ahead
from mlango.management.terminal import RED, Screen
from mlango.models import Approval
from mlango.models.approval import Operator

CHOICES = "[y]es  [e]dit  [n]o, and say why  [q] leave it waiting > "
WORDS = {"y": "yes", "n": "no", "e": "edit", "q": "quit"}
CUT_OFF = "[y]es, it happened  [n]o, it did not  [r]un it again  [q] leave it waiting > "
GO_ON = "[y]es  [n]o, and say why  [q] leave it waiting > "
SIGNED_IN = "[y]es, I have signed in  [n]o, and say why  [q] leave it waiting > "
ANSWER = "Your answer, or [q] to leave it waiting > "
REASON = "Why not? > "
CHANGE = "name=value > "
LEFT = "It is left waiting."


class Undecided(Exception):
    """An approval is left as it is; says why."""


class Asker:
    """Has whoever sits at the terminal decide, as ``user`` or without an account.

    An empty line decides nothing: it is asked again.
    """

    def __init__(self, user: Any, err: Screen, stderr: OutputWrapper) -> None:
        self._user = user
        self._err = err
        self._stderr = stderr

    def decide(self, approvals: Iterable[Approval]) -> bool:
        """Ask about one after the other, and return whether none was left undecided."""
        decided = [self._decide(approval) for approval in approvals]
        return all(decided)

    def _decide(self, approval: Approval) -> bool:
        self._show(approval, {})
        try:
            self._ask(approval, self._who())
        except AlreadyDecided as error:
            self._err.line(f"{error} Nothing was changed.", RED)
        except Undecided as why:
            self._err.line(str(why), RED)
            for line in how_to_decide(approval):
                self._err.line(line)
            return False
        return True

    def _who(self) -> Any:
        """Return who decides, with the permissions of this moment."""
        if self._user is None:
            return Operator()
        return type(self._user)._default_manager.filter(pk=self._user.pk).first()

    def _ask(self, approval: Approval, by: Any) -> None:
        if not approval.may_decide(by):
            raise Undecided("You may not decide this.")
        forget_typed_ahead()
        if approval.kind == QUESTION:
            return self._answer(approval, by)
        if approval.kind == SIGN_IN:
            return self._confirm(approval, SIGNED_IN, approval.signed_in, by)
        if approval.kind == Approval.Kind.CHANGE:
            return self._confirm(approval, GO_ON, approval.approve, by)
        if approval.kind == Approval.Kind.UNKNOWN:
            return self._cut_off(approval, by)
        changes: dict[str, Any] = {}
        while (choice := self._choice()) not in ("yes", "no"):
            if choice == "quit":
                raise Undecided(LEFT)
            if choice == "edit":
                changes = self._changes(approval, changes)
                self._show(approval, changes)
        if choice == "no":
            return approval.reject(by=by, reason=self._line(REASON))
        return approval.edit(changes, by=by) if changes else approval.approve(by=by)

    def _confirm(
        self, approval: Approval, prompt: str, confirmed: Callable[..., None], by: Any
    ) -> None:
        while (choice := self._choice(prompt)) not in ("yes", "no"):
            if choice == "quit":
                raise Undecided(LEFT)
        if choice == "no":
            return approval.reject(by=by, reason=self._line(REASON))
        return confirmed(by=by)

    def _cut_off(self, approval: Approval, by: Any) -> None:
        say = {
            "yes": approval.happened,
            "no": approval.did_not_happen,
            "r": approval.run_again,
            "run": approval.run_again,
        }
        while (choice := self._choice(CUT_OFF)) not in say:
            if choice == "quit":
                raise Undecided(LEFT)
        say[choice](by=by)

    def _choice(self, prompt: str = CHOICES) -> str:
        typed = self._line(prompt).lower()
        return WORDS.get(typed, typed)

    def _answer(self, approval: Approval, by: Any) -> None:
        text = self._line(ANSWER)
        if text == "q":
            raise Undecided(LEFT)
        approval.answer(chosen(approval, text), by=by)

    def _changes(self, approval: Approval, former: dict[str, Any]) -> dict[str, Any]:
        """Return the changes with one more, or the former ones if that cannot be."""
        try:
            changes = former | changes_of([self._line(CHANGE)])
            edited = approval.edited_by(changes)
        except (CommandError, Misused) as error:
            self._err.line(str(error), RED)
            return former
        return changes if edited != approval.arguments else {}

    def _show(self, approval: Approval, changes: dict[str, Any]) -> None:
        for line in asked(approval, changes):
            self._err.line(line)

    def _line(self, prompt: str) -> str:
        """Return what is typed next, which is not empty."""
        try:
            while not (line := ask_line(prompt, self._stderr).strip()):
                pass
        except (EOFError, KeyboardInterrupt):
            self._err.line("")
            raise Undecided(LEFT) from None
        return line
