"""What a client says over a socket: JSON objects, each with a ``type``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mlango.core.log import Cursor
from mlango.core.values import dumps, parse_json
from mlango.exceptions import did_you_mean
from mlango.serve.approvals import DECISIONS
from mlango.serve.problems import Problem

# The fields of a frame beside ``type`` and ``ref``, and their types. What begins a run and
# what decides about one is checked as the endpoints check it, so their fields stand there.
FIELDS: dict[str, dict[str, type]] = {
    "steer": {"message": str, "now": bool},
    "follow_up": {"message": str},
    "follow": {"run": str, "after": str},
    "abort": {},
    "cancel": {},
    "ping": {},
}
NEEDED = {"steer": ("message",), "follow_up": ("message",), "follow": ("run",)}
TYPES = ("send", *DECISIONS, *FIELDS)
WORDS = {str: "a string", bool: "true or false"}


@dataclass(frozen=True, slots=True)
class Frame:
    """A checked frame. ``ref`` is the client's own name for it, which answers repeat."""

    type: str
    fields: dict[str, Any]
    ref: str = ""


class WrongFrame(Problem):
    """A frame that is refused; ``ref`` as far as it could be read."""

    def __init__(self, detail: str, ref: str = "") -> None:
        super().__init__(400, detail)
        self.ref = ref


def frame_of(text: str | None) -> Frame:
    """Return what a client said; raise WrongFrame for what is not a frame."""
    fields = parsed(text)
    ref = fields.pop("ref", "")
    if not isinstance(ref, str) or len(ref) > 200:
        raise WrongFrame("The field 'ref' must be a string of at most 200 characters.")
    kind = fields.pop("type", None)
    if not isinstance(kind, str) or kind not in TYPES:
        raise WrongFrame(wrong_type(kind), ref)
    if kind in FIELDS:
        check_fields(kind, fields, ref)
    return Frame(kind, fields, ref)


def parsed(text: str | None) -> dict[str, Any]:
    """Return the JSON object that a frame holds."""
    if text is None:
        raise WrongFrame("The frame must be text that holds JSON, not binary data.")
    try:
        value = parse_json(text)
    except ValueError as error:
        raise WrongFrame(f"The frame cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise WrongFrame("The frame must be a JSON object.")
    return value


def wrong_type(kind: Any) -> str:
    """Return what is wrong with a frame's type."""
    known = ", ".join(TYPES)
    if kind is None:
        return f"The field 'type' is missing. Types are: {known}."
    hint = did_you_mean(kind, TYPES) if isinstance(kind, str) else ""
    return f"There is no type {kind!r:.100}.{hint} Types are: {known}."


def check_fields(kind: str, fields: dict[str, Any], ref: str) -> None:
    """Raise WrongFrame for a field that is unknown, missing or of another type."""
    known = FIELDS[kind]
    for name, value in fields.items():
        if name not in known:
            hint, listed = did_you_mean(name, known), ", ".join(known) or "none"
            raise WrongFrame(
                f"{kind!r} has no field {name!r:.100}.{hint} Fields are: {listed}.", ref
            )
        if type(value) is not known[name]:
            raise WrongFrame(f"The field {name!r} must be {WORDS[known[name]]}.", ref)
    for name in NEEDED.get(kind, ()):
        if not str(fields.get(name, "")).strip():
            raise WrongFrame(f"{kind!r} needs the field {name!r}, with some text in it.", ref)


def event_frame(cursor: Cursor, data: str) -> str:
    """Return the frame of an event: its JSON text, and first its id."""
    return f'{{"id": "{cursor}", {data[1:]}'


def said(kind: str, ref: str = "", **fields: Any) -> str:
    """Return a frame of the server that is no event."""
    head = {"type": kind, "ref": ref} if ref else {"type": kind}
    return dumps(head | fields)


def refusal(problem: Problem, ref: str = "") -> str:
    """Return the frame that tells what is wrong."""
    return said("error", ref or getattr(problem, "ref", ""), **problem.document())
