"""An answer as it arrives over HTTP: server-sent events, or one document."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pydantic_core import from_json

from mlango.agents.providers.assembler import Assembler
from mlango.agents.providers.failures import in_stream
from mlango.core.provider import Delta
from mlango.exceptions import MalformedResponse, ProviderError

MAX_BYTES = 64 * 1024 * 1024  # of one line, or of a document


class Answer:
    """Takes what the network brings, gives deltas. ``is_done`` once the server said so."""

    __slots__ = ("_document", "_length", "_pieces", "assembler", "is_done", "key", "provider")

    def __init__(self, provider: str, key: str) -> None:
        self.provider = provider
        self.key = key
        self.assembler = Assembler()
        self.is_done = False
        self._document: bool | None = None  # not known before the first byte
        self._pieces: list[bytes] = []
        self._length = 0

    def take(self, data: bytes) -> Iterator[Delta]:
        """Yield the deltas in what ``data`` completes."""
        if self._document is None and data.strip():
            self._document = data.lstrip()[:1] in b"{[<"
        if self._document:
            self._keep(data)
            return
        feed = self.assembler.feed
        for line in self._lines(data):
            if line[:5] != b"data:":
                continue
            text = line[5:].strip()
            if text == b"[DONE]":
                self.is_done = True
            elif text:
                try:
                    chunk = from_json(text)
                except ValueError:
                    chunk = None
                if chunk.__class__ is not dict or "choices" not in chunk or "error" in chunk:
                    chunk = self._checked(chunk, text)
                try:
                    yield from feed(chunk)
                except (AttributeError, TypeError, LookupError):
                    raise self._malformed("a chunk of another shape") from None

    def end(self) -> Iterator[Delta]:
        """Yield the deltas in what nothing completed."""
        if self._document:
            yield from self._whole()
        elif self._pieces:
            yield from self.take(b"\n")

    def _lines(self, data: bytes) -> list[bytes]:
        """Return the lines that ``data`` completes; keep the piece of one at the end."""
        if b"\n" not in data:
            self._keep(data)
            return []
        if self._pieces:
            data = b"".join((*self._pieces, data))
            self._pieces, self._length = [], 0
        *lines, rest = data.split(b"\n")
        if rest:
            self._keep(rest)
        return lines

    def _keep(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._length += len(piece)
        if self._length > MAX_BYTES:
            raise self._malformed(f"more than {MAX_BYTES} bytes in one piece")

    def _checked(self, value: Any, text: bytes) -> dict[str, Any]:
        chunk = value if isinstance(value, dict) else self._parsed(text)
        self._check(chunk)
        return chunk

    def _whole(self) -> Iterator[Delta]:
        document = self._parsed(b"".join(self._pieces))
        self._check(document)
        yield from self.assembler.feed_whole(document)

    def _parsed(self, text: bytes) -> dict[str, Any]:
        try:
            # Takes what a stricter parser refuses, such as half of a surrogate pair.
            value = json.loads(text.decode())
        except (ValueError, RecursionError):
            what = (
                "an HTML page; check its base_url" if text.lstrip()[:1] == b"<" else "broken JSON"
            )
            raise self._malformed(what) from None
        if isinstance(value, list) and value and isinstance(value[0], dict):
            value = value[0]  # Gemini wraps an error in a list
        if not isinstance(value, dict):
            raise self._malformed("JSON that is no object")
        return value

    def _check(self, chunk: dict[str, Any]) -> None:
        if chunk.get("error") or "error" in (chunk.get("type"), chunk.get("object")):
            raise in_stream(self.provider, chunk, self.assembler.text, self.key)

    def _malformed(self, what: str) -> ProviderError:
        return MalformedResponse(
            f"The provider {self.provider!r} sent {what}.",
            provider=self.provider,
            text=self.assembler.text,
        )
