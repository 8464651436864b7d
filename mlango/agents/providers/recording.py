"""Providers that record what another one said, and play it back without it."""

from __future__ import annotations

import logging
import os
from collections import defaultdict, deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

from mlango.agents.providers.cassette import (
    HEAD,
    Cassette,
    Recording,
    error_of,
    written_completion,
    written_piece,
)
from mlango.agents.providers.fingerprint import Conversation, canonical, difference
from mlango.agents.providers.registry import get_provider
from mlango.agents.providers.secrets import Scrubber
from mlango.agents.providers.turns import words
from mlango.core.messages import text_of
from mlango.core.provider import Completion, Delta, Message, Provider, ToolCallDelta
from mlango.core.values import clean_json, to_json
from mlango.exceptions import CassetteError, Misconfigured, ProviderError, did_you_mean

if TYPE_CHECKING:
    from mlango.core.run import Run

logger = logging.getLogger("mlango.providers")

MODES = ("new", "append", "overwrite")


@dataclass(frozen=True, slots=True)
class Asked:
    """A request without its secrets; its messages up to ``known`` were in the one before."""

    key: str
    position: int
    head: dict[str, Any]
    messages: list[Message]
    known: int

    @property
    def said(self) -> str:
        """What people say in the conversation."""
        return said_in(self.messages)


class Listener:
    """Reads the requests of one conversation, each message once."""

    def __init__(self) -> None:
        self._scrubber = Scrubber()
        self._conversation = Conversation()
        self._messages: list[Message] = []
        self._tools: tuple[Any, Any, str] = (None, None, canonical(None))

    def hear(
        self,
        *,
        model: str = "",
        messages: list[Message],
        system: str = "",
        tools: list[dict[str, Any]] | None = None,
        **options: Any,
    ) -> Asked:
        if not self._conversation.is_continued_by(messages):
            self._conversation, self._messages = Conversation(), []
        known = len(self._messages)
        for message in messages[known:]:
            written = self._scrubber.data(message)
            self._messages.append(written)
            self._conversation.add(message, written)
        if tools is not self._tools[0]:
            written_tools = self._scrubber.data(tools)
            self._tools = (tools, written_tools, canonical(written_tools))
        system, options = self._scrubber.text(system), self._scrubber.data(options)
        rest = canonical([model, system, options])
        return Asked(
            key=self._conversation.key(f"{rest}{self._tools[2]}"),
            position=self._conversation.position,
            head={
                "model": model,
                "system": system,
                "tools": self._tools[1],
                "options": to_json(options),
            },
            messages=self._messages[:],
            known=known,
        )


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
        if self.cassette.path.exists():
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


class ReplayProvider(Provider):
    """Answers from a cassette; no model is asked.

    A request gets the recording of the same request, each recording once. Without one,
    ``strict`` raises CassetteError with the first difference; otherwise the closest recording
    of the same agent and step is used, with a warning in the log. Its name is that of the
    provider that was recorded.
    """

    offline = True
    is_free = False  # a replayed run tells what the recorded one cost

    def __init__(self, path: str | os.PathLike[str], strict: bool = False) -> None:
        self.cassette = Cassette(path).read()
        self.strict = strict
        self.name = self.cassette.provider or "replay"
        self._left = dict.fromkeys(self.cassette.recordings)
        self._by_key: dict[str, deque[Recording]] = defaultdict(deque)
        self._calls = 0
        for recording in self.cassette.recordings:
            self._by_key[recording.key].append(recording)
        self._player = Player(self, "")

    def for_run(self, run: Run) -> Provider:
        return Player(self, run.label)

    async def astream(self, **request: Any) -> AsyncGenerator[Delta]:
        async for delta in self._player.astream(**request):
            yield delta

    @property
    def unused(self) -> list[Recording]:
        """The recordings that were not played, in the order of the file."""
        return list(self._left)

    def assert_all_used(self) -> None:
        """Raise AssertionError unless every recording was played."""
        if not self._left:
            return
        lines = ", ".join(f"line {each.line} ({_shown(each)})" for each in self._left)
        raise AssertionError(
            f"{len(self._left)} of {len(self.cassette.recordings)} recordings in "
            f"{str(self.cassette.path)!r} were not used: {lines}."
        )

    def take(self, asked: Asked, agent: str) -> Recording:
        """Return the recording for a request and mark it as used."""
        self._calls += 1
        if same := self._by_key[asked.key]:
            recording = same[0]
        elif self.strict or (closest := self._closest(asked, agent)) is None:
            raise self._unmatched(asked)
        else:
            recording = closest
            logger.warning(
                "Call %d was not recorded in %r: line %d is used, though %s.",
                self._calls,
                str(self.cassette.path),
                recording.line,
                _difference(recording, asked),
            )
        self._by_key[recording.key].remove(recording)
        del self._left[recording]
        return recording

    def _closest(self, asked: Asked, agent: str) -> Recording | None:
        """Return the recording of the same agent and step whose words are most alike."""
        candidates = [
            each
            for each in self._left
            if each.position == asked.position and _may_be(each.agent, agent)
        ]
        return max(candidates, key=lambda each: _likeness(each, asked), default=None)

    def _unmatched(self, asked: Asked) -> CassetteError:
        what = f"Call {self._calls} was not recorded in {str(self.cassette.path)!r}"
        times = sum(each.key == asked.key for each in self.cassette.recordings)
        if times:
            return CassetteError(f"{what} so often: it was recorded and played {times} times.")
        if not self._left:
            count = len(self.cassette.recordings)
            return CassetteError(f"{what}: all {count} recordings have been played.")
        closest = max(
            self._left,
            key=lambda each: (each.position == asked.position, _likeness(each, asked)),
        )
        return CassetteError(
            f"{what}. Compared with line {closest.line}, {_difference(closest, asked)}. "
            f"Delete the file and record it anew if that is right."
        )


class Player(Provider):
    """Plays for one run."""

    offline = True
    is_free = False

    def __init__(self, replay: ReplayProvider, agent: str) -> None:
        self.replay = replay
        self.agent = agent
        self.name = replay.name
        self._listener = Listener()

    async def astream(self, **request: Any) -> AsyncGenerator[Delta]:
        recording = self.replay.take(self._listener.hear(**request), self.agent)
        for piece in recording.pieces:
            yield piece
        if recording.error is not None:
            raise error_of(recording.error.describe())  # each time a new one
        if recording.completion is not None:
            yield recording.completion


def _may_be(recorded: str, agent: str) -> bool:
    return recorded == agent or not (recorded and agent)


def said_in(messages: list[Message]) -> str:
    """Return what people say in a conversation."""
    return "\n".join(
        text_of(message.get("content")) for message in messages if message["role"] == "user"
    )


def _likeness(recording: Recording, asked: Asked) -> float:
    return SequenceMatcher(None, said_in(recording.messages), asked.said, autojunk=False).ratio()


def _difference(recording: Recording, asked: Asked) -> str:
    one = {**recording.request, "messages": _ordered(recording.messages)}
    other = {**asked.head, "messages": _ordered(asked.messages)}
    return difference(one, other) or "nothing that can be shown differs"


def _ordered(messages: list[Message]) -> list[Message]:
    conversation = Conversation()
    return [conversation.with_ids(message) for message in messages]


def _shown(recording: Recording) -> str:
    last = text_of(recording.messages[-1].get("content")) if recording.messages else ""
    return f"{recording.agent or 'no agent'}, {last[:60]!r}"
