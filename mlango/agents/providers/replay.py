"""A provider that plays a cassette, without the provider that was recorded."""

from __future__ import annotations

import logging
import os
from collections import defaultdict, deque
from collections.abc import AsyncGenerator
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

from mlango.agents.providers.cassette import Cassette, Recording, error_of
from mlango.agents.providers.fingerprint import Conversation, difference
from mlango.agents.providers.requests import Asked, Listener, said_in
from mlango.core.messages import text_of
from mlango.core.provider import Delta, Message, Provider
from mlango.exceptions import CassetteError

if TYPE_CHECKING:
    from mlango.core.run import Run

logger = logging.getLogger("mlango.providers")

COMPARED = 2_000  # characters of a conversation that are compared to find the closest


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


def _likeness(recording: Recording, asked: Asked) -> float:
    # Comparing takes quadratic time.
    one, other = (said_in(each.messages)[:COMPARED] for each in (recording, asked))
    return SequenceMatcher(None, one, other, autojunk=False).ratio()


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
