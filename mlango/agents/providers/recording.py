"""A provider that writes down what another one says."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from mlango.agents.providers.cassette import HEAD, Cassette, written_completion, written_piece
from mlango.agents.providers.registry import get_provider
from mlango.agents.providers.requests import Asked, Listener
from mlango.agents.providers.scrubbing import Scrubber
from mlango.agents.providers.turns import words
from mlango.core.provider import Completion, Delta, Provider, ToolCallDelta
from mlango.core.values import clean_json
from mlango.exceptions import CassetteError, Misconfigured, ProviderError, did_you_mean

if TYPE_CHECKING:
    from mlango.core.run import Run

MODES = ("new", "append", "overwrite")


class RecordingProvider(Provider):
    """Passes requests on to ``inner`` and writes down what it says, errors too.

    ``inner`` is a provider or an alias. ``mode`` tells what becomes of a cassette that is
    already there: ``new`` refuses it, ``append`` adds to it, ``overwrite`` replaces it once
    there is a new call to write. Each call is in the file before its answer is acted on.
    Known secrets are left out.
    """

    def __init__(
        self, inner: Provider | str, path: str | os.PathLike[str], mode: str = "new"
    ) -> None:
        if mode not in MODES:
            raise Misconfigured(
                f"There is no mode {mode!r}.{did_you_mean(mode, MODES)} "
                f"Modes are: {', '.join(MODES)}."
            )
        self.inner = get_provider(inner)
        self.cassette = Cassette(path)
        if os.path.exists(self.cassette.path):  # unlike Path.exists(), it never raises
            if mode == "new":
                raise CassetteError(
                    f"The cassette {str(self.cassette.path)!r} is already there. Delete it, or "
                    f"pass mode='overwrite' or mode='append'."
                )
            if mode == "append":
                self.cassette.read()
        self.cassette.provider = self.cassette.provider or self.inner.name
        self.name = self.inner.name
        self.offline = self.inner.offline
        self.needs_model = self.inner.needs_model
        self._recorder = Recorder(self.inner, self.cassette, "")

    def for_run(self, run: Run) -> Provider:
        return Recorder(self.inner.for_run(run), self.cassette, run.label)

    async def astream(self, **request: Any) -> AsyncGenerator[Delta]:
        async with aclosing(self._recorder.astream(**request)) as stream:
            async for delta in stream:
                yield delta

    async def aclose(self) -> None:
        await self.inner.aclose()


class Recorder(Provider):
    """Records one run."""

    def __init__(self, inner: Provider, cassette: Cassette, agent: str) -> None:
        self.inner = inner
        self.cassette = cassette
        self.agent = agent
        self.name = inner.name
        self.offline = inner.offline
        self.needs_model = inner.needs_model
        self._scrubber = Scrubber()
        self._listener = Listener()
        self._last: Asked | None = None
        self._line = 0

    async def astream(self, **request: Any) -> AsyncGenerator[Delta]:
        asked = self._listener.hear(**request)
        pieces: list[Delta] = []
        completion = None
        try:
            async with aclosing(self.inner.astream(**request)) as stream:
                async for delta in stream:
                    if isinstance(delta, Completion):
                        completion = delta
                        break
                    pieces.append(delta)
                    yield delta
        except ProviderError as error:
            self._write(asked, pieces, {"error": error.describe()})
            raise
        if completion is not None:
            self._write(asked, pieces, {"response": written_completion(completion, pieces)})
            yield completion

    def _write(self, asked: Asked, pieces: list[Delta], outcome: dict[str, Any]) -> None:
        last = self._last if asked.known else None
        entry = {
            "agent": self.agent,
            "position": asked.position,
            "key": asked.key,
            "after": self._line if last else None,
            "messages": asked.messages[asked.known :] if last else asked.messages,
            "request": {
                name: asked.head[name]
                for name in HEAD
                if last is None or asked.head[name] != last.head[name]
            },
            "pieces": self._scrubbed(pieces),
            **self._scrubber.data(clean_json(outcome)),
        }
        self._line, self._last = self.cassette.append(entry), asked

    def _scrubbed(self, pieces: list[Delta]) -> list[Any]:
        """Return the pieces as written, cut anew where a secret lay across a cut."""
        text = "".join(piece for piece in pieces if isinstance(piece, str))
        arguments = "".join(p.arguments for p in pieces if isinstance(p, ToolCallDelta))
        written = [written_piece(piece) for piece in pieces]
        if self._scrubber.text(text) != text:
            others = [piece for piece in written if not isinstance(piece, str)]
            written = [*words(self._scrubber.text(text)), *others]
        if self._scrubber.text(arguments) != arguments:
            written = [piece for piece in written if not _is_call(piece)]
        scrubbed: list[Any] = self._scrubber.data(clean_json(written))
        return scrubbed


def _is_call(written: Any) -> bool:
    return isinstance(written, dict) and "arguments" in written
