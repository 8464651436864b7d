"""Files and images that come with a message, as content parts.

In JSON a file is a ``data:`` URL or ``{"name", "data", "type"}``, where ``data`` is base64 or
such a URL; in a form it is a file. Nothing is believed of it: its size is computed before it
is decoded, its type is what its bytes say, its name is reduced to one that is safe anywhere.
"""

from __future__ import annotations

import binascii
import mimetypes
import re
import unicodedata
from base64 import b64decode
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.core.files.uploadedfile import UploadedFile

from mlango.conf import settings
from mlango.core.messages import data_url, sniff
from mlango.serve.problems import Problem

FILES, IMAGES = "files", "images"
KEYS = ("name", "data", "type")
IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
MARKED_TYPES = (*IMAGE_TYPES, "application/pdf")  # told by their first bytes
TEXT_TYPES = (
    "text/plain",
    "text/csv",
    "text/markdown",
    "text/html",
    "text/xml",
    "text/tab-separated-values",
    "application/json",
    "application/xml",
    "application/yaml",
)
OFFICE = "application/vnd.openxmlformats-officedocument."
ARCHIVE_TYPES = (
    f"{OFFICE}wordprocessingml.document",
    f"{OFFICE}spreadsheetml.sheet",
    f"{OFFICE}presentationml.presentation",
)
FILE_TYPES = (*MARKED_TYPES, *TEXT_TYPES, *ARCHIVE_TYPES)

DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)?(?:;[\w-]+=[\w.-]+)*;base64,")
UNSAFE = re.compile(r"[^\w.-]+")
MAX_NAME = 100


@dataclass(frozen=True, slots=True)
class Upload:
    """A file that came, and is not read yet. ``type`` is what the client says it is."""

    field: str
    name: str
    type: str
    size: int
    read: Callable[[], bytes]


def taken(uploads: list[Upload]) -> dict[str, list[dict[str, Any]]]:
    """Return the files and images as options of a run; raise a Problem if one may not be."""
    check_sizes(uploads)
    options: dict[str, list[dict[str, Any]]] = {}
    for upload in uploads:
        options.setdefault(upload.field, []).append(part_of(upload))
    return options


def check_sizes(uploads: list[Upload]) -> None:
    """Raise a Problem if there are too many files or too many bytes."""
    sizes = [upload.size for upload in uploads]
    if settings.MAX_FILES is not None and len(sizes) > settings.MAX_FILES:
        raise Problem(
            400, f"The message has {len(sizes)} files, more than {settings.MAX_FILES} (MAX_FILES)."
        )
    for name, size in (
        ("MAX_FILE_BYTES", max(sizes, default=0)),
        ("MAX_REQUEST_BYTES", sum(sizes)),
    ):
        limit = getattr(settings, name)
        if limit is not None and size > limit:
            raise Problem(
                413, f"The message's files have {size} bytes, more than {limit} ({name})."
            )


def part_of(upload: Upload) -> dict[str, Any]:
    """Return the content part of a file; raise a Problem unless it is what it may be."""
    data = upload.read()
    kind = type_of(data, upload)
    allowed = IMAGE_TYPES if upload.field == IMAGES else FILE_TYPES
    if kind not in allowed:
        raise Problem(
            415, f"{upload.name!r} is {kind!r}. {upload.field} may be: {', '.join(allowed)}."
        )
    url = data_url(data, kind)
    if kind in IMAGE_TYPES:
        return {"type": "image_url", "image_url": {"url": url}}
    return {"type": "file", "file": {"filename": upload.name, "file_data": url}}


def type_of(data: bytes, upload: Upload) -> str:
    """Return the type that the bytes say; raise a Problem if the client says another."""
    declared = upload.type
    named = mimetypes.guess_type(upload.name)[0] or ""
    found = sniff(data)
    if not found:
        kinds, default = _unmarked(data)
        found = next((each for each in (declared, named) if each in kinds), default)
    # Of other types clients know little: a CSV file may be said to be a spreadsheet.
    if declared in MARKED_TYPES and declared != found:
        raise Problem(415, f"{upload.name!r} is said to be {declared!r:.100}, but is {found!r}.")
    return found


def _unmarked(data: bytes) -> tuple[tuple[str, ...], str]:
    """Return the types that bytes without a known beginning may be, and what they are at least."""
    if data.startswith(b"PK\x03\x04"):
        return ARCHIVE_TYPES, "application/zip"
    try:
        is_text = b"\0" not in data and data.decode() is not None
    except UnicodeDecodeError:
        is_text = False
    return (TEXT_TYPES, "text/plain") if is_text else ((), "application/octet-stream")


def safe_name(name: str) -> str:
    """Return the last part of a path, of letters, digits, dots, dashes and underscores only."""
    plain = unicodedata.normalize("NFKC", name).replace("\\", "/").rpartition("/")[2]
    safe = UNSAFE.sub("_", plain).lstrip("._-")
    stem, dot, ending = safe.rpartition(".")
    if len(safe) > MAX_NAME and dot and len(ending) < MAX_NAME // 2:
        safe = f"{stem[: MAX_NAME - len(ending) - 1]}.{ending}"
    return safe[:MAX_NAME] or "file"


# -- where they come from -----------------------------------------------------------------------


def in_json(field: str, value: Any) -> list[Upload]:
    """Return the files in a field of a JSON body."""
    if not isinstance(value, list):
        raise Problem(400, f"The field {field!r} must be a list of files.")
    return [_in_item(field, number, item) for number, item in enumerate(value)]


def _in_item(field: str, number: int, item: Any) -> Upload:
    place = f"{field}[{number}]"
    if isinstance(item, str) and DATA_URL.match(item):
        item = {"data": item}
    if not isinstance(item, dict) or not isinstance(item.get("data"), str):
        raise Problem(400, f"{place} must be a 'data:' URL, or an object with 'data' and 'name'.")
    for name, value in item.items():
        if name not in KEYS:
            raise Problem(400, f"{place} has no {name!r:.100}. A file has {', '.join(KEYS)}.")
        if not isinstance(value, str):
            raise Problem(400, f"{place}: {name!r} must be a string.")
    text, kind = _encoded(item["data"], item.get("type", ""))
    size = len(text) // 4 * 3 - text[-2:].count("=")
    name = safe_name(item.get("name", ""))
    return Upload(field, name, kind, size, lambda: _decoded(place, text))


def _encoded(data: str, kind: str) -> tuple[str, str]:
    """Return base64 text, without the beginning of a data URL, and what type that says."""
    beginning = DATA_URL.match(data)
    if beginning is None:
        return data, kind
    return data[beginning.end() :], kind or beginning[1] or ""


def _decoded(place: str, text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Problem(400, f"The data of {place} is not base64.") from None


def in_form(field: str, files: list[UploadedFile]) -> list[Upload]:
    """Return the files in a field of a form."""
    return [
        Upload(
            field, safe_name(file.name or ""), file.content_type or "", file.size or 0, file.read
        )
        for file in files
    ]
