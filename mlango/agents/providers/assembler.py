"""From the chunks of a stream to one answer, in the shape of OpenAI's chat completions.

Servers differ from that shape in many small ways; what is known of them is handled here, on
plain dicts, for every provider whose stream has this shape.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from mlango.agents.providers.metering import read_usage
from mlango.core.provider import Completion, Delta, ReasoningDelta, ToolCall, ToolCallDelta
from mlango.core.usage import Usage
from mlango.core.values import dumps
from mlango.exceptions import EmptyResponse, MalformedResponse, ProviderError

Chunk = dict[str, Any]

# "" leaves it to the tool calls whether the turn is over.
STOP_REASONS = {
    "stop": "",
    "end_turn": "",
    "stop_sequence": "",
    "tool_calls": "",
    "tool_use": "",
    "function_call": "",
    "length": Completion.MAX_TOKENS,
    "max_tokens": Completion.MAX_TOKENS,
    "max_output_tokens": Completion.MAX_TOKENS,
    "model_context_window_exceeded": Completion.MAX_TOKENS,
    "content_filter": Completion.CONTENT_FILTER,
    "content_filtered": Completion.CONTENT_FILTER,
    "safety": Completion.CONTENT_FILTER,
    "refusal": Completion.REFUSAL,
    "pause_turn": Completion.PAUSE_TURN,
}
# Where nothing else is in a delta, nothing else is looked for.
PLAIN = frozenset(("role", "content", "tool_calls"))
# What a model's turn holds beside text and calls, to be sent back as it came.
BLOCKS = ("reasoning_details", "thinking_blocks")
FIELDS = ("provider_specific_fields", "extra_content")
BLOCK_TEXTS = ("thinking", "text", "summary")


class Call:
    """A tool call that is still arriving."""

    __slots__ = ("extras", "id", "name", "pieces", "position")

    def __init__(self, position: int) -> None:
        self.position = position
        self.id = ""
        self.name = ""
        self.pieces: list[str] = []
        self.extras: dict[str, Any] = {}

    def is_whole(self) -> bool:
        try:
            return isinstance(json.loads("".join(self.pieces)), dict)
        except ValueError:
            return False

    def is_followed_by(self, call_id: str, name: str, arguments: str) -> bool:
        """Return whether a piece that came at this call's place begins another call."""
        if call_id and self.id:
            return call_id != self.id
        if not name or not self.name:
            return False
        # Some servers repeat the name in every piece.
        return name != self.name or bool(arguments and self.is_whole())


class Assembler:
    """Takes the chunks of one stream, gives its deltas, and at the end the Completion."""

    __slots__ = (
        "_at",
        "_named",
        "calls",
        "chunks",
        "finish",
        "images",
        "message",
        "model",
        "native_finish",
        "reasoning",
        "reasoning_field",
        "refusals",
        "texts",
        "usage",
    )

    def __init__(self) -> None:
        self.chunks = 0
        self.texts: list[str] = []
        self.reasoning: list[str] = []
        self.reasoning_field = ""
        self.refusals: list[str] = []
        self.calls: list[Call] = []
        self.images: list[dict[str, Any]] = []
        self.message: dict[str, Any] = {}
        self.finish = ""
        self.native_finish = ""
        self.usage: dict[str, Any] | None = None
        self.model = ""
        self._at: dict[Any, Call] = {}
        self._named: dict[tuple[Any, str], Call] = {}

    @property
    def text(self) -> str:
        return "".join(self.texts)

    # -- chunk by chunk -----------------------------------------------------------------------

    def feed(self, chunk: Chunk) -> Iterable[Delta]:
        """Take a chunk; return the deltas in it."""
        self.chunks += 1
        if not self.model:
            self.model = chunk.get("model") or ""
        usage = chunk.get("usage")
        if usage:
            self.usage = usage  # a later one counts all that an earlier one did
        choices = chunk.get("choices")
        if not choices:
            return ()
        choice = choices[0]
        if choice.get("finish_reason"):
            self.finish = choice["finish_reason"]
        delta = choice.get("delta") or choice.get("message")
        if not delta:
            return ()
        content = delta.get("content")
        if content.__class__ is str and len(delta) == 1:  # nearly every chunk
            if not content:
                return ()
            self.texts.append(content)
            return (content,)
        if PLAIN.issuperset(delta):
            return [*self._text(content), *map(self._call, delta.get("tool_calls") or ())]
        return [*self._thoughts(delta), *self._text(content), *self._rest(delta)]

    def feed_whole(self, document: Chunk) -> Iterable[Delta]:
        """Take an answer that was not streamed."""
        for choice in document.get("choices") or ():
            calls = (choice.get("message") or {}).get("tool_calls") or ()
            for index, call in enumerate(calls):
                call["index"] = index
        return self.feed(document)

    def _text(self, content: Any) -> Iterator[Delta]:
        if isinstance(content, str):
            if content:
                self.texts.append(content)
                yield content
            return
        for part in content or ():
            if part.get("type") == "thinking":
                yield from self._thought("reasoning_content", _text_of(part.get("thinking")))
            elif part.get("type") == "image_url":
                self.images.append(part)
            else:
                yield from self._text(_text_of(part))

    def _thoughts(self, delta: Chunk) -> Iterator[Delta]:
        for name in ("reasoning_content", "reasoning"):
            text = delta.get(name)
            if text and isinstance(text, str):
                yield from self._thought(name, text)
                return  # servers that send both repeat themselves

    def _thought(self, name: str, text: str) -> Iterator[Delta]:
        if text:
            self.reasoning_field = name
            self.reasoning.append(text)
            yield ReasoningDelta(text)

    def _rest(self, delta: Chunk) -> Iterator[Delta]:
        if delta.get("refusal"):
            self.refusals.append(delta["refusal"])
        if delta.get("stop_reason"):
            self.native_finish = delta["stop_reason"]
        self.images += delta.get("images") or ()
        for name in BLOCKS:
            for block in delta.get(name) or ():
                _add_block(self.message.setdefault(name, []), block)
        _add_fields(self.message, delta)
        for piece in delta.get("tool_calls") or ():
            yield self._call(piece)
        if delta.get("function_call"):  # as it was before there were tools
            yield self._call({"index": 0, "function": delta["function_call"]})

    def _call(self, piece: Chunk) -> Delta:
        function = piece.get("function") or {}
        arguments = function.get("arguments") or ""
        if not isinstance(arguments, str):
            arguments = dumps(arguments)
        call_id, name = piece.get("id") or "", function.get("name") or ""
        call = self._call_for(piece.get("index"), call_id, name, arguments)
        call.id, call.name = call.id or call_id, call.name or name
        if arguments:
            call.pieces.append(arguments)
        _add_fields(call.extras, piece)
        return ToolCallDelta(call.position, call.id, call.name, arguments)

    def _call_for(self, index: Any, call_id: str, name: str, arguments: str) -> Call:
        """Return the call that a piece belongs to, which may be a new one.

        ``index`` and ``call_id`` may both be missing, and servers are known that count every
        call as index 0.
        """
        call = self._named.get((index, call_id)) if call_id else None
        if call is None:
            last = self.calls[-1] if self.calls and index is None else None
            call = self._at.get(index, last)
            if call is None or call.is_followed_by(call_id, name, arguments):
                call = Call(len(self.calls))
                self.calls.append(call)
        self._at[index] = call
        if call_id:
            self._named[index, call_id] = call
        return call

    # -- at the end ---------------------------------------------------------------------------

    def completion(
        self, provider: str, model: str, estimated: Callable[[int], Usage]
    ) -> Completion:
        """Return the answer; raise ProviderError where the stream ended without one.

        ``model`` is the one that was asked; ``estimated`` guesses the usage from the number
        of characters that came.
        """
        if not self.finish:
            raise self._cut(provider)
        calls = [
            ToolCall(call.id, call.name or "unknown", "".join(call.pieces).strip() or "{}")
            for call in self.calls
            if call.name or call.pieces
        ]
        stop_reason = self._stop_reason(provider)
        if not (self.texts or calls or self.images or stop_reason):
            raise EmptyResponse(
                f"The provider {provider!r} sent neither text nor a tool call.",
                provider=provider,
            )
        return Completion(
            text=self.text,
            tool_calls=calls,
            stop_reason=stop_reason,
            usage=self._usage(estimated),
            raw_content=self._raw_content(model),
            model=self.model,
            refusal="".join(self.refusals),
            reasoning="".join(self.reasoning),
            images=self.images,
        )

    def _cut(self, provider: str) -> ProviderError:
        if not self.chunks:
            return EmptyResponse(
                f"The provider {provider!r} sent an empty stream.", provider=provider
            )
        return MalformedResponse(
            f"The stream of the provider {provider!r} ended before the answer did.",
            provider=provider,
            text=self.text,
        )

    def _stop_reason(self, provider: str) -> str:
        if self.refusals:
            return Completion.REFUSAL
        reason = str(self.native_finish or self.finish).lower()
        if "error" in reason:
            raise MalformedResponse(
                f"The provider {provider!r} broke off its answer with an error.",
                provider=provider,
                text=self.text,
            )
        return STOP_REASONS.get(reason, "")

    def _usage(self, estimated: Callable[[int], Usage]) -> Usage:
        usage = read_usage(self.usage) if self.usage else None
        if usage is not None and (usage.total_tokens or not (self.texts or self.calls)):
            return usage
        pieces = [*self.texts, *self.reasoning, *(p for call in self.calls for p in call.pieces)]
        return estimated(sum(map(len, pieces)))

    def _raw_content(self, model: str) -> Any:
        """Return what the provider wants to see again, for ``wire.turn``; None if nothing."""
        message = dict(self.message)
        if self.reasoning_field:
            message[self.reasoning_field] = "".join(self.reasoning)
        calls = [call.extras for call in self.calls if call.name or call.pieces]
        if not message and not any(calls):
            return None
        return {"model": model, "message": message, "tool_calls": calls}


def _text_of(value: Any) -> str:
    """Return the text in a content part, or in a list of parts."""
    if isinstance(value, list):
        return "".join(map(_text_of, value))
    if isinstance(value, dict):
        value = value.get("text")
    return value if isinstance(value, str) else ""


def _add_fields(kept: dict[str, Any], delta: Chunk) -> None:
    for name in FIELDS:
        if isinstance(delta.get(name), dict):
            fields = kept.setdefault(name, {})
            for key, value in delta[name].items():
                if isinstance(value, list) and isinstance(fields.get(key), list):
                    fields[key] = [*fields[key], *value]
                elif value is not None:
                    fields[key] = value


def _add_block(blocks: list[Any], piece: Any) -> None:
    """Add a piece of a block of thought to the block that it goes on, or begin a new one.

    A signature ends a block; one that is encrypted comes whole.
    """
    last = blocks[-1] if blocks else {}
    is_same = all(last.get(key) == piece.get(key) for key in ("type", "index"))
    if not last or not is_same or last.get("signature") or "data" in piece:
        blocks.append(dict(piece))
        return
    for key, value in piece.items():
        if key in BLOCK_TEXTS and isinstance(value, str):
            last[key] = (last.get(key) or "") + value
        elif value:
            last[key] = value
