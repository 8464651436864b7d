"""What waits for a person: how it is found, shown and decided in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from django.core.exceptions import PermissionDenied
from django.core.management.base import CommandError
from django.db.models import QuerySet

from mlango.core.run import AgentRun
from mlango.core.values import parse_json
from mlango.core.visible import canonical, visible
from mlango.exceptions import AlreadyDecided, Misused
from mlango.management.endings import DENIED, USAGE
from mlango.management.terminal import Screen, one_line
from mlango.models import Approval
from mlango.models.naming import MIN_PREFIX, one_named

QUESTION = Approval.Kind.QUESTION
SIGN_IN = Approval.Kind.SIGN_IN
SIGNED_IN = "signed-in"
# What became of a call that a crash cut off.
CUT_OFF: dict[str, Callable[..., None]] = {
    "happened": Approval.happened,
    "did-not-happen": Approval.did_not_happen,
    "run-again": Approval.run_again,
}
SAID = {
    "answer": "Answered by",
    SIGNED_IN: "Signed in, says",
    "happened": "It happened, says",
    "did-not-happen": "It did not happen, says",
    "run-again": "To be run again, says",
}
# What can be said of each kind beside "reject".
FITTING: dict[str, tuple[str, ...]] = {
    Approval.Kind.TOOL: ("approve", "edit"),
    Approval.Kind.CHANGE: ("approve",),
    QUESTION: ("answer",),
    SIGN_IN: (SIGNED_IN,),
    Approval.Kind.UNKNOWN: tuple(CUT_OFF),
}


def find(ref: str) -> Approval:
    """Return the approval whose id begins so."""
    try:
        return one_named(Approval.objects.all(), ref, lambda approval: approval.tool)
    except LookupError as error:
        raise CommandError(str(error)) from None


# -- shown ------------------------------------------------------------------------------------


def headline(approval: Approval) -> str:
    """Return one line about an approval."""
    return (
        f"{approval.uuid[:8]}  {approval.created_at:%Y-%m-%d %H:%M:%S}  {approval.status:<8}  "
        f"{approval.agent}  {approval.get_kind_display()}  {one_line(approval.subject)}"
    )


def asked(approval: Approval, changes: dict[str, Any] | None = None) -> Iterator[str]:
    """Yield what somebody who decides must read, in full; with the changes that he made."""
    arguments = approval.arguments
    if approval.kind == QUESTION:
        yield f"{approval.agent} asks: {visible(arguments['question'])}"
        for number, option in enumerate(arguments["options"] or (), start=1):
            yield f"  {number}. {visible(option)}"
        return
    if approval.kind == SIGN_IN:
        yield f"{approval.agent} asks to sign in at {visible(arguments['label'])}:"
        yield f"  {visible(arguments['url'])}"
        return
    yield _what_is_asked(approval)
    for name, value in sorted((arguments | (changes or {})).items()):
        changed = name in (changes or {})
        was = f"  (was {canonical(arguments.get(name))})" if changed else ""
        yield f"  {visible(name)} = {canonical(value)}{was}"


def _what_is_asked(approval: Approval) -> str:
    tool = visible(approval.tool)
    if approval.kind == Approval.Kind.UNKNOWN:
        return f"A crash cut off this call of {tool} by {approval.agent}. Did it have its effect?"
    if approval.kind == Approval.Kind.CHANGE:
        return f"{approval.agent} has changed since this run began. Is it to go on?"
    return f"{approval.agent} asks to call {tool}:"


def lines_of(approval: Approval) -> Iterator[str]:
    """Yield all that there is about an approval."""
    yield f"approval {approval.uuid}"
    yield from asked(approval, _edits(approval))
    for name, value in _facts(approval):
        if value:
            yield f"{name + ':':<11} {visible(str(value))}"


def _edits(approval: Approval) -> dict[str, Any]:
    old = approval.arguments
    return {k: v for k, v in (approval.edited or {}).items() if k not in old or old[k] != v}


def _facts(approval: Approval) -> Iterator[tuple[str, Any]]:
    yield "kind", approval.get_kind_display()
    yield "status", approval.status
    yield "trace", approval.trace_id
    yield "asked", f"{approval.created_at:%Y-%m-%d %H:%M:%S}"
    if approval.expires_at:
        yield "expires", f"{approval.expires_at:%Y-%m-%d %H:%M:%S}"
    if approval.decided_at:
        yield "decided", f"{approval.decided_at:%Y-%m-%d %H:%M:%S}"
    yield "decision", approval.get_choice_display()
    yield "by", approval.decided_by
    yield "note", approval.note


def described(approval: Approval) -> dict[str, Any]:
    """Return all that there is about an approval, JSON-safe."""
    return approval.describe() | {
        "edited": approval.edited,
        "permission": approval.permission,
        "four_eyes": approval.four_eyes,
        "created_at": approval.created_at.isoformat(),
        "decided_at": approval.decided_at.isoformat() if approval.decided_at else None,
        "decided_by": str(approval.decided_by) if approval.decided_by else None,
    }


def awaited_by(run: AgentRun) -> QuerySet[Approval]:
    """Return what a run waits for, in the order in which it was asked."""
    pks = [each["approval"] for each in run.approvals]
    return Approval.objects.open().filter(pk__in=pks).order_by("created_at")


def tell_what_waits(approvals: Iterable[Approval], err: Screen) -> None:
    """Tell what a run waits for, and with which commands it is decided."""
    for approval in approvals:
        err.line(f"The run waits: {approval.uuid[:MIN_PREFIX]} must be decided.")
        for line in (*asked(approval), *how_to_decide(approval)):
            err.line(line)


def how_to_decide(approval: Approval) -> Iterator[str]:
    """Yield the commands that decide about an approval."""
    ref = approval.uuid[:MIN_PREFIX]
    if approval.kind == QUESTION:
        yield f"  manage.py approvals answer {ref} --user NAME TEXT"
    elif approval.kind == SIGN_IN:
        yield f"  manage.py approvals {SIGNED_IN} {ref} --user NAME"
    elif approval.kind == Approval.Kind.UNKNOWN:
        for action in CUT_OFF:
            yield f"  manage.py approvals {action} {ref} --user NAME"
    else:
        yield f"  manage.py approvals approve {ref} --user NAME"
    yield f"  manage.py approvals reject {ref} --user NAME --reason TEXT"
    yield f"It takes {approval.who_may()}."


# -- decided ----------------------------------------------------------------------------------


def decide(approval: Approval, action: str, by: Any, given: dict[str, Any]) -> None:
    """Decide as an action of the command says. Raise CommandError if that cannot be."""
    if action not in (*FITTING.get(approval.kind, ()), "reject"):
        raise CommandError(_other_kind(approval), returncode=USAGE)
    try:
        if action == "approve":
            approval.approve(by=by, note=given["note"])
        elif action == "reject":
            approval.reject(by=by, reason=given["reason"])
        elif action == "edit":
            approval.edit(changes_of(given["changes"]), by=by, note=given["note"])
        elif action == SIGNED_IN:
            approval.signed_in(by=by, note=given["note"])
        elif action in CUT_OFF:
            CUT_OFF[action](approval, by=by, note=given["note"])
        else:
            approval.answer(chosen(approval, " ".join(given["text"])), by=by)
    except PermissionDenied as error:
        raise CommandError(str(error), returncode=DENIED) from error
    except AlreadyDecided as error:
        raise CommandError(f"{error} Nothing was changed.") from error
    except Misused as error:
        raise CommandError(str(error), returncode=USAGE) from error


WHAT_IT_IS: dict[str, str] = {
    Approval.Kind.TOOL: "a call of a tool. Use approve, edit or reject",
    Approval.Kind.CHANGE: "about an agent that has changed. Use approve or reject",
    QUESTION: "a question. Use answer, or reject",
    SIGN_IN: f"a sign-in. Use {SIGNED_IN}, or reject",
    Approval.Kind.UNKNOWN: f"a call that a crash cut off. Use {', '.join(CUT_OFF)}, or reject",
}


def told(approval: Approval, action: str, by: Any) -> str:
    """Return what was decided, and by whom, as a sentence."""
    return f"{SAID.get(action, f'{approval.status.capitalize()} by')} {by}."


def _other_kind(approval: Approval) -> str:
    return f"{approval.uuid[:8]} is {WHAT_IT_IS[approval.kind]}."


def changes_of(written: Iterable[str]) -> dict[str, Any]:
    """Return the arguments that are written as ``name=value``, with values in JSON."""
    return dict(_change(each) for each in written)


def _change(written: str) -> tuple[str, Any]:
    name, has_value, value = written.partition("=")
    name = name.strip()
    if not has_value:
        raise CommandError(f"{written!r} is not name=value, such as amount=5.", returncode=USAGE)
    try:
        return name, parse_json(value)
    except ValueError:
        raise CommandError(
            f"The value of {name} is not JSON: {value}. Text stands in double quotes, "
            f"which a shell keeps in single ones: '{name}=\"text\"'.",
            returncode=USAGE,
        ) from None


def chosen(approval: Approval, text: str) -> str:
    """Return the answer to a question; the number of an option means that option."""
    options: list[str] = approval.arguments["options"] or []
    if text in options or not text.isdecimal():
        return text
    return dict(enumerate(options, start=1)).get(int(text), text)
