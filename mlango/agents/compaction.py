"""Compaction: a conversation that grows too long for the model is read in a shorter form.

Nothing is deleted: the run's messages and the rows stay, only what the model reads is shorter,
and no tool call is parted from its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from time import monotonic, time
from typing import TYPE_CHECKING, Any

from mlango.agents.hooks import BeforeModel
from mlango.agents.prices import context_window
from mlango.agents.summaries import Summary, summary_of
from mlango.core.controls import Control, Halt
from mlango.core.events import Compacted
from mlango.core.journal import MEMORY, Entry
from mlango.core.messages import size, text_of
from mlango.core.numbers import is_count, is_positive
from mlango.core.signature import place_of
from mlango.core.wanted import Wanted, check_made, one_of
from mlango.exceptions import ContextLengthExceeded, Misconfigured

if TYPE_CHECKING:
    from mlango.core.provider import Completion, Message
    from mlango.core.run import Run
    from mlango.exceptions import ProviderError

PRUNE, SUMMARISE = STRATEGIES = ("prune", "summarise")
WINDOW = 128_000  # tokens, of a model that the table does not know
KEEP = 40_000  # tokens, and at most this part of the window:
KEPT_PART = 0.4
TOKENS_PER_CHAR = 0.25  # until the model has told
HEADING = "[Conversation summary]"


_TOKENS = Wanted(is_count, "a whole number of tokens above 0").or_none()
WANTED = {
    "threshold": Wanted(lambda value: is_positive(value) and value <= 1, "above 0 and at most 1"),
    "strategy": one_of(*STRATEGIES),
    "summarizer": Wanted(
        lambda value: isinstance(value, str) or callable(value), "a model or a function"
    ).or_none(),
    "window": _TOKENS,
    "keep": _TOKENS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """When and how a conversation is shortened for the model.

    It begins at ``threshold`` of the model's context ``window`` (in tokens; by default that of
    the table of models) or of MAX_MESSAGE_HISTORY_CHARS. ``prune`` leaves out old results of
    tools; ``summarise`` has a model write down what was said before, and prunes where that
    fails. What a model still refuses as too long is shortened once more and asked again.
    ``summarizer`` is a model or a function of ``(messages, ctx)`` that returns text; by
    default the agent's own model. About ``keep`` tokens stay as they are.
    """

    threshold: float = 0.9
    strategy: str = PRUNE
    summarizer: Any = None
    window: int | None = None
    keep: int | None = None

    def __post_init__(self) -> None:
        check_made(self, WANTED)

    def describe(self) -> dict[str, Any]:
        """Return what is set; part of an agent's fingerprint."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        if callable(self.summarizer):
            values["summarizer"] = place_of(self.summarizer)
        return values


def compaction_of(owner: str, given: Any) -> Compaction:
    """Return the Compaction that ``Meta.compaction`` means; raise Misconfigured."""
    if given is True:
        return Compaction()
    if isinstance(given, Compaction):
        return given
    raise Misconfigured(
        f"{owner}.Meta.compaction must be True, False or Compaction(...), not {given!r}."
    )


class Compacting(Control):
    """Shortens what the model of one run reads."""

    def __init__(self, compaction: Compaction) -> None:
        self.compaction = compaction
        self.max_chars: int | None = None
        self.tokens_per_char = TOKENS_PER_CHAR
        self.pruned: set[int] = set()  # indexes of messages
        self.covered = 0  # how many messages the summary stands for
        self.summary = ""
        self.windows: dict[str, int] = {}  # of models that refused more, in tokens
        self.mended = 0  # the step whose call was mended

    async def begin(self, run: Run) -> None:
        # Not the whole conversation may be too long from now on, but what is sent of it.
        self.max_chars = run.bounds.max_history_chars
        run.bounds = replace(run.bounds, max_history_chars=None)

    async def before_model(self, run: Run) -> None:
        view = self._view(run)
        if self._is_long(run, view):
            view = await self._shortened(run, view)
        if self.max_chars is not None and _chars(view) > self.max_chars:
            raise Halt(
                "history_limit",
                f"Stopped: the conversation has {_chars(view)} characters, more than "
                f"{self.max_chars} (MAX_MESSAGE_HISTORY_CHARS), and cannot be shortened.",
            )
        if self.pruned or self.covered:
            run.view = view

    async def mend(self, run: Run, error: ProviderError) -> bool:
        """Shorten what was too long for the model, once in a step."""
        if not isinstance(error, ContextLengthExceeded) or self.mended == run.step:
            return False
        self.mended, view = run.step, self._view(run)
        self.windows[run.model] = max(1, min(self._window(run), self._tokens(run, view)))
        shorter = await self._shortened(run, view)
        if _chars(shorter) >= _chars(view):
            return False
        run.view = shorter
        for control in run.controls.all:
            if isinstance(control, BeforeModel):
                await control.before_model(run)
        return True

    async def after_model(self, run: Run, completion: Completion) -> Completion:
        read = completion.usage.input_tokens
        if read and not completion.usage.estimated:
            sent = run.messages if run.view is None else run.view
            self.tokens_per_char = read / max(1, _chars(sent) + _overhead(run))
        return completion

    # -- how long it is ---------------------------------------------------------------------

    def _window(self, run: Run) -> int:
        known = self.windows.get(run.model) or self.compaction.window
        return known or context_window(run.provider.name, run.model) or WINDOW

    def _tokens(self, run: Run, view: Sequence[Message]) -> int:
        return int((_chars(view) + _overhead(run)) * self.tokens_per_char)

    def _is_long(self, run: Run, view: Sequence[Message]) -> bool:
        threshold = self.compaction.threshold
        if self.max_chars is not None and _chars(view) > threshold * self.max_chars:
            return True
        return self._tokens(run, view) > threshold * self._window(run)

    def _keep(self, run: Run) -> float:
        """Return how many characters stay as they are."""
        room = KEPT_PART * self._window(run) / self.tokens_per_char
        if self.max_chars is not None:
            room = min(room, KEPT_PART * self.max_chars)
        return min(room, (self.compaction.keep or KEEP) / self.tokens_per_char)

    # -- making it shorter ------------------------------------------------------------------

    async def _shortened(self, run: Run, view: list[Message]) -> list[Message]:
        before, started_at, clock = self._tokens(run, view), time(), monotonic()
        since = self.covered
        written = Summary()
        end = self._cut(run) if self.compaction.strategy == SUMMARISE else 0
        if end > since:
            told = [self._summary_message()] if self.covered else []
            covered = [*told, *run.messages[since:end]]
            written = await summary_of(run, self.compaction.summarizer, covered)
        if written.text:
            self.covered, self.summary = end, written.text
        pruned = [] if written.text else self._prune(run)
        shorter = self._view(run)
        if written.text or written.error or pruned:
            strategy = SUMMARISE if written.text else PRUNE
            after = self._tokens(run, shorter)
            run.note(Compacted, strategy, before, after, self.covered, pruned, written.error)
            entry = Entry(
                MEMORY,
                "compaction",
                run.next_ordering(),
                run.step,
                started_at,
                monotonic() - clock,
            )
            entry.input = {"strategy": strategy, "covers": [0, self.covered], "pruned": pruned}
            entry.output = written.text or None
            entry.error, entry.error_type = written.error, written.error_type
            entry.usage, entry.cost = written.usage, written.cost
            run.journal.write(entry)
        return shorter

    def _prune(self, run: Run) -> list[str]:
        """Leave out the results before the newest; return the ids of their calls."""
        room, pruned = self._keep(run), []
        latest = _latest(run.messages)
        for index in range(len(run.messages) - 1, self.covered - 1, -1):
            message = run.messages[index]
            if message["role"] != "tool" or index in self.pruned:
                continue
            room -= size(message)
            if room < 0 and index < latest and size(message) > len(_marker("", message)):
                self.pruned.add(index)
                pruned.append(message["tool_call_id"])
        return pruned[::-1]

    def _cut(self, run: Run) -> int:
        """Return where what stays begins: never at a result, and never after the latest turn."""
        room, cut = self._keep(run), _latest(run.messages)
        for index in range(len(run.messages) - 1, self.covered, -1):
            room -= size(run.messages[index])
            if room < 0:
                break
            if index < cut and run.messages[index]["role"] != "tool":
                cut = index
        return cut

    # -- what is left -----------------------------------------------------------------------

    def _view(self, run: Run) -> list[Message]:
        """Return the conversation as the model reads it by now."""
        names: dict[str, str] = {}
        view = self._head(run)
        for index in range(self.covered, len(run.messages)):
            message = run.messages[index]
            for call in message.get("tool_calls") or ():
                names[call["id"]] = call["function"]["name"]
            if index in self.pruned:
                name = names.get(message["tool_call_id"], "")
                message = {**message, "content": _marker(name, message)}
            view.append(message)
        return view

    def _head(self, run: Run) -> list[Message]:
        """Return the summary, and the request that is being worked on if it is covered."""
        if not self.covered:
            return []
        head = [self._summary_message()]
        if any(message["role"] == "user" for message in run.messages[self.covered :]):
            return head
        asked = [m for m in run.messages[: self.covered] if m["role"] == "user"]
        return [*head, *asked[-1:]]

    def _summary_message(self) -> Message:
        return {"role": "user", "content": f"{HEADING}\n{self.summary}"}


def _chars(messages: Sequence[Message]) -> int:
    return sum(map(size, messages))


def _overhead(run: Run) -> int:
    """Return the characters that every request has beside the conversation."""
    schemas = run.toolbox.schemas
    return len(run.system) + (len(schemas.encoded) if schemas else 0)


def _latest(messages: Sequence[Message]) -> int:
    """Return where the latest turn begins: the last answer with its calls, or what was asked."""
    for index in range(len(messages) - 1, -1, -1):
        if messages[index]["role"] in ("assistant", "user"):
            return index
    return 0


def _marker(name: str, message: Message) -> str:
    return f"[pruned: {name} result, {len(text_of(message['content']))} chars]"
