"""What a tool returns, and how a model reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlango.core.values import INT64, clean, clean_json, encode, to_json, truncate

if TYPE_CHECKING:
    from mlango.core.tools import Tool

__all__ = ["ToolResult", "render"]

# The content parts that a model can read, and what each must hold.
PARTS = {"text": str, "image_url": dict, "file": dict}


@dataclass(frozen=True, slots=True)
class ToolResult:
    """A tool's answer, where a plain return value does not say enough.

    ``content`` is text, any other value, or a list of content parts such as
    ``{"type": "image_url", "image_url": {"url": "data:image/png;base64,…"}}`` and plain
    strings. ``details`` go to events and the trace and are never shown to the model.
    ``is_error`` tells the model that the call failed.
    """

    content: Any
    details: Any = None
    is_error: bool = False

    def __post_init__(self) -> None:
        if not self.has_parts():
            return
        for part in self.content:
            if not isinstance(part, str) and not _is_part(part):
                raise TypeError(
                    f"A content part is text or a dict whose 'type' is one of "
                    f"{', '.join(PARTS)} and that holds a value under that name, "
                    f"not {part!r:.80}."
                )

    def has_parts(self) -> bool:
        """Return whether the content is a list of content parts."""
        return isinstance(self.content, list) and any(
            isinstance(part, dict) and part.get("type") in PARTS for part in self.content
        )


def _is_part(part: Any) -> bool:
    kind = part.get("type") if isinstance(part, dict) else None
    return kind in PARTS and isinstance(part.get(kind), PARTS[kind])


def render(
    tool: Tool, value: Any, limit: int | None, notes: list[str] | None = None
) -> tuple[Any, bool, Any]:
    """Return what a model reads of a returned value: the content, is_error and the details.

    Text is passed on as it is, any other value as JSON by ``mlango.core.values`` (so None is
    ``null``), but without quotes where that is one string. Content longer than ``limit``
    characters is cut in the middle, or refused if the tool says ``on_overflow="error"``;
    images and files do not count. What a conversion lost is appended to ``notes``. A QuerySet
    is read here, so call this where the ORM may be used.
    """
    if type(value) is str:
        text = clean(value)
    elif type(value) is int and value in INT64:
        text = str(value)
    elif isinstance(value, ToolResult):
        return _rendered(tool, value, limit, notes)
    else:
        text = _text(value, notes)
    if limit is None or len(text) <= limit:  # nearly always, and so without a call
        return text, False, None
    return *_fitted(tool, text, limit, False), None


def _rendered(
    tool: Tool, value: ToolResult, limit: int | None, notes: list[str] | None
) -> tuple[Any, bool, Any]:
    details = None if value.details is None else to_json(value.details, notes)
    if not value.has_parts():
        text = _text(value.content, notes)
        return *_fitted(tool, text, limit, value.is_error), details
    return *_fitted_parts(tool, _parts(value.content), limit, value.is_error), details


def _text(value: Any, notes: list[str] | None) -> str:
    if type(value) is int and value in INT64:
        return str(value)
    converted = to_json(value, notes)
    return converted if type(converted) is str else encode(converted)


def _parts(content: list[Any]) -> list[dict[str, Any]]:
    return [
        {"type": "text", "text": clean(part)} if isinstance(part, str) else clean_json(part)
        for part in content
    ]


def _fitted(tool: Tool, text: str, limit: int | None, is_error: bool) -> tuple[str, bool]:
    if limit is None or len(text) <= limit:
        return text, is_error
    if tool.on_overflow == "error":
        return _too_long(tool, len(text), limit), True
    return truncate(text, limit), is_error


def _fitted_parts(
    tool: Tool, parts: list[dict[str, Any]], limit: int | None, is_error: bool
) -> tuple[Any, bool]:
    length = sum(len(part["text"]) for part in parts if part["type"] == "text")
    if limit is None or length <= limit:
        return parts, is_error
    if tool.on_overflow == "error":
        return _too_long(tool, length, limit), True
    left = limit
    for part in parts:
        if part["type"] == "text":
            part["text"] = truncate(part["text"], left)
            left = max(0, left - len(part["text"]))
    return parts, is_error


def _too_long(tool: Tool, length: int, limit: int) -> str:
    return (
        f"The result of {tool.name!r} has {length:,} characters, but at most {limit:,} are "
        f"allowed. Ask for less."
    )
