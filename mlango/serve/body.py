"""What a request holds: its body, within its limit, and the fields in it."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.http.request import UnreadablePostError

from mlango.conf import settings
from mlango.core.threads import in_thread
from mlango.core.values import parse_json
from mlango.exceptions import did_you_mean
from mlango.serve.problems import Problem
from mlango.serve.uploads import FILES, IMAGES, Upload, in_form, in_json, taken

CSRF_FIELD = "csrfmiddlewaretoken"

JSON_TYPE = "application/json"
FORM_TYPE = "multipart/form-data"
TEXTS = ("message", "session_id")
FLAGS = ("buffered",)
FIELDS = (*TEXTS, *FLAGS, FILES, IMAGES)
WORDS = {"true": True, "false": False}  # how a form says it
# Items in arrays and objects: each takes memory, however few bytes it is.
MAX_ITEMS = 10_000
# What a body of more bytes takes is too long for an event loop to stand still.
LARGE = 64 * 1024


async def asked(request: HttpRequest) -> dict[str, Any]:
    """Return the fields of the body; raise a Problem if one is wrong."""
    if request.content_type == JSON_TYPE and 0 < declared_length(request) <= LARGE:
        return fields_of(request)
    fields: dict[str, Any] = await in_thread(fields_of, request)
    return fields


def fields_of(request: HttpRequest) -> dict[str, Any]:
    """Return the fields of the body, JSON or a form; raise a Problem if one is wrong."""
    if request.content_type == FORM_TYPE:
        return checked(form_of(request))
    return checked(parsed(body_of(request)))


def checked(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that a run is asked for with; raise a Problem if one is wrong."""
    for name, value in fields.items():
        check_field(name, value)
    if not fields.get("message", "").strip():
        raise Problem(400, "The field 'message' must hold the text to answer.")
    uploads = [file for name in (FILES, IMAGES) for file in _uploads(name, fields.get(name, []))]
    given = {name: fields[name] for name in (*TEXTS, *FLAGS) if name in fields}
    return given | taken(uploads)


def _uploads(name: str, value: Any) -> list[Upload]:
    return value if value and isinstance(value[0], Upload) else in_json(name, value)


def check_field(name: str, value: Any) -> None:
    """Raise a Problem for a field that is unknown or of another type."""
    if name not in FIELDS:
        hint = did_you_mean(name, FIELDS)
        known = ", ".join(FIELDS)
        raise Problem(400, f"There is no field {name!r:.100}.{hint} Fields are: {known}.")
    if name in TEXTS and not isinstance(value, str):
        raise Problem(400, f"The field {name!r} must be a string.")
    if name in FLAGS and not isinstance(value, bool):
        raise Problem(400, f"The field {name!r} must be true or false.")


def form_of(request: HttpRequest) -> dict[str, Any]:
    """Return the fields of a form."""
    check_length(request)
    fields: dict[str, Any] = {}
    for name, values in request.POST.lists():
        if name == CSRF_FIELD:
            continue
        if len(values) > 1 or name in (FILES, IMAGES):
            raise Problem(400, f"The field {name!r:.100} must be one text, or a file.")
        fields[name] = WORDS.get(values[0], values[0]) if name in FLAGS else values[0]
    for name, files in request.FILES.lists():
        if name in fields or name in (*TEXTS, *FLAGS):
            raise Problem(400, f"The field {name!r:.100} must be a text.")
        fields[name] = in_form(name, files)
    return fields


def parsed(body: bytes) -> dict[str, Any]:
    """Return the JSON object that a body holds."""
    check_items(body)
    try:
        value = parse_json(body)
    except ValueError as error:
        raise Problem(400, f"The body cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise Problem(400, "The body must be a JSON object.")
    return value


def check_items(body: bytes) -> None:
    """Raise a Problem for more items than anyone needs, before they are made."""
    chars = settings.MAX_INPUT_CHARS
    # A comma that parts no items stands in a text, which is no longer than that.
    if chars is not None and body.count(b",") > MAX_ITEMS + chars:
        raise Problem(400, f"The body has more than {MAX_ITEMS} items.")


def body_of(request: HttpRequest) -> bytes:
    """Return the body; raise a Problem if it is too large, whatever its header says."""
    check_length(request)
    limit = settings.MAX_HTTP_BODY_BYTES
    try:
        # Not request.body: DATA_UPLOAD_MAX_MEMORY_SIZE is meant for forms.
        body = request.read() if limit is None else request.read(limit + 1)
    except UnreadablePostError as error:
        raise Problem(400, "The body could not be read to its end.") from error
    if limit is not None and len(body) > limit:
        raise too_large(limit)
    return body


def check_length(request: HttpRequest) -> None:
    """Raise a Problem for a body that is too large by its header."""
    limit = settings.MAX_HTTP_BODY_BYTES
    if limit is not None and declared_length(request) > limit:
        raise too_large(limit)


def declared_length(request: HttpRequest) -> int:
    """Return what Content-Length says; 0 if that is no number."""
    try:
        return int(request.META.get("CONTENT_LENGTH") or 0)
    except ValueError:
        return 0


def too_large(limit: int) -> Problem:
    """Return the Problem of a body with more than ``limit`` bytes."""
    return Problem(413, f"The body has more than {limit} bytes (MAX_HTTP_BODY_BYTES).")
