"""Cassettes: files of recorded model calls, one JSON object a line.

The first line says what the file is and of which version. Every other line is one call:

============  =================================================================================
``agent``     label of the agent that asked; empty if that was not known
``position``  how often the model had answered in the conversation before
``key``       fingerprint of the request; see ``fingerprint``
``after``     line of the call that this one continues, or null
``messages``  the messages that came after those of that call
``request``   ``model``, ``system``, ``tools`` and ``options``, where they differ from that call
``pieces``    what was streamed: text, ``{"reasoning"}``, or a piece of a tool call
``response``  the Completion, less what is empty and a text that is the pieces joined
``error``     instead of a response: what ProviderError.describe() tells
============  =================================================================================
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from threading import Lock
from typing import Any

from mlango.core.provider import (
    Completion,
    Delta,
    Message,
    ReasoningDelta,
    ToolCall,
    ToolCallDelta,
)
from mlango.core.usage import Usage
from mlango.core.values import dumps
from mlango.exceptions import CassetteError, ProviderError, provider_error

VERSION = 1
HEAD = ("model", "system", "tools", "options")


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """One recorded call. ``messages`` are all that the model read."""

    line: int
    agent: str
    position: int
    key: str
    request: dict[str, Any]
    messages: list[Message]
    pieces: list[Delta]
    completion: Completion | None
    error: ProviderError | None


class Cassette:
    """The recordings in a file, oldest first. ``provider`` is whose answers they are."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.provider = ""
        self.recordings: list[Recording] = []
        self._lines = 0
        self._lock = Lock()

    # -- reading ------------------------------------------------------------------------------

    def read(self) -> Cassette:
        """Read the file. Raises CassetteError if it is missing or not as written."""
        try:
            lines = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            raise self._error(
                "is not there. Record it: provider=RecordingProvider(get_provider(…), path)"
            ) from None
        except OSError as error:
            raise self._error(f"cannot be read: {error.strerror}") from None
        if lines.pop():
            raise self._error(
                f"is cut off in line {len(lines) + 1}. Delete that line to go on without it"
            )
        if not lines:
            raise self._error("is empty. Delete it and record it anew")
        self._read_header(lines[0])
        for number, line in enumerate(lines[1:], 2):
            self.recordings.append(self._recording(number, self._object(number, line)))
        self._lines = len(lines)
        return self

    def _read_header(self, line: bytes) -> None:
        header = self._object(1, line)
        if "mlango_cassette" not in header:
            raise self._error("is no cassette: its first line does not say so")
        version = header["mlango_cassette"]
        if version != VERSION:
            raise self._error(
                f"has version {version!r}, but this mlango reads version {VERSION}. Record it anew"
            )
        self.provider = str(header.get("provider", ""))

    def _object(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            value = json.loads(line)
        except ValueError:
            raise self._error(f"has no JSON in line {number}") from None
        if not isinstance(value, dict):
            raise self._error(f"has no object in line {number}")
        return value

    def _recording(self, number: int, entry: dict[str, Any]) -> Recording:
        try:
            before = self.recordings[entry["after"] - 2] if entry["after"] else None
            error = error_of(entry["error"]) if "error" in entry else None
            pieces = [piece_of(piece) for piece in entry["pieces"]]
            return Recording(
                line=number,
                agent=entry["agent"],
                position=entry["position"],
                key=entry["key"],
                request=_continued(before, entry["request"]),
                messages=[*(before.messages if before else ()), *entry["messages"]],
                pieces=pieces,
                completion=None if error else completion_of(entry["response"], pieces),
                error=error,
            )
        except (KeyError, TypeError, IndexError, AttributeError) as problem:
            raise self._error(
                f"has no whole call in line {number} ({type(problem).__name__}: {problem})"
            ) from None

    def _error(self, what: str) -> CassetteError:
        return CassetteError(f"The cassette {str(self.path)!r} {what}.")

    # -- writing ------------------------------------------------------------------------------

    def append(self, entry: dict[str, Any]) -> int:
        """Add a call and return its line. Raises CassetteError; what was there is kept."""
        with self._lock:
            data = f"{dumps(entry)}\n"
            try:
                if self._lines:
                    _append(self.path, data.encode())
                else:
                    header = {"mlango_cassette": VERSION, "provider": self.provider}
                    self._begin(f"{dumps(header)}\n{data}".encode())
                    self._lines = 1
            except OSError as error:
                raise self._error(
                    f"cannot be written: {error.strerror}. What was recorded before is kept"
                ) from None
            self._lines += 1
            return self._lines

    def _begin(self, data: bytes) -> None:
        """Write a new file, in place of an older one only once it is whole."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = self.path.with_name(f"{self.path.name}.{os.getpid()}.new")
        try:
            draft.write_bytes(data)
            draft.replace(self.path)
        except OSError:
            draft.unlink(missing_ok=True)
            raise


def _append(path: Path, data: bytes) -> None:
    """Add to a file all of ``data`` or nothing."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        size = os.fstat(file).st_size
        try:
            while data:
                data = data[os.write(file, data) :]
        except OSError:
            with suppress(OSError):
                os.ftruncate(file, size)
            raise
    finally:
        os.close(file)


def _continued(before: Recording | None, request: dict[str, Any]) -> dict[str, Any]:
    whole = {**(before.request if before else {}), **request}
    return {name: whole[name] for name in HEAD}


# -- calls as JSON ----------------------------------------------------------------------------


def written_piece(delta: Delta) -> Any:
    """Return a delta as a cassette holds it."""
    if isinstance(delta, ReasoningDelta):
        return {"reasoning": delta.text}
    if isinstance(delta, ToolCallDelta):
        return {name: getattr(delta, name) for name in ("index", "id", "name", "arguments")}
    return delta


def piece_of(written: Any) -> Delta:
    """Return the delta that a cassette holds."""
    if isinstance(written, str):
        return written
    if "reasoning" in written:
        return ReasoningDelta(written["reasoning"])
    return ToolCallDelta(**written)


def written_completion(completion: Completion, pieces: list[Any]) -> dict[str, Any]:
    """Return a Completion less what is empty and a text that is the pieces joined."""
    given = {field.name: getattr(completion, field.name) for field in fields(completion)}
    written = {name: value for name, value in given.items() if value}
    if completion.text == _joined(pieces):
        written.pop("text", None)
    if completion.tool_calls:
        written["tool_calls"] = [
            {"id": call.id, "name": call.name, "arguments": call.arguments}
            for call in completion.tool_calls
        ]
    written["usage"] = _written_usage(completion.usage)
    return written


def completion_of(written: dict[str, Any], pieces: list[Delta]) -> Completion:
    """Return the Completion that a cassette holds."""
    calls = [ToolCall(**call) for call in written.get("tool_calls", ())]
    usage = Usage(**written.get("usage", {}))
    text = written.get("text", _joined(pieces))
    return Completion(**{**written, "text": text, "tool_calls": calls, "usage": usage})


def _joined(pieces: list[Any]) -> str:
    return "".join(piece for piece in pieces if isinstance(piece, str))


def _written_usage(usage: Usage) -> dict[str, Any]:
    counted = {field.name: getattr(usage, field.name) for field in fields(usage)}
    return {name: value for name, value in counted.items() if value}


def error_of(written: dict[str, Any]) -> ProviderError:
    """Return the error that ``ProviderError.describe()`` told of."""
    kind = provider_error(written["type"]) or ProviderError
    told = {name: value for name, value in written.items() if name not in ("type", "message")}
    return kind(written["message"], **told)
