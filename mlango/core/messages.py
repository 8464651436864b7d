"""Messages: plain dicts in the shape of OpenAI's chat API, oldest first.

A tool message of a failed call holds ``is_error``. An assistant message may hold
``raw_content`` (the turn as its provider wants it echoed) and ``provider`` (whose turn that
is); every provider encodes them for its own wire.
"""

from __future__ import annotations

import base64
import mimetypes
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from mlango.core.provider import Completion, Message, ToolCall
from mlango.core.values import clean, clean_json, dumps, parse_json
from mlango.exceptions import Misused

ROLES = ("user", "assistant", "tool", "system")
# What may be the name of a tool: of any other, models refuse the conversation from then on.
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def user_messages(
    message: Any, images: Iterable[Any] | None = None, files: Iterable[Any] | None = None
) -> list[Message]:
    """Return what the user says as messages; ``message`` is text, content parts or messages."""
    said = _said(message)
    parts = [image_part(image) for image in _several("images", images)]
    parts += [file_part(file) for file in _several("files", files)]
    if parts:
        last = said[-1]
        said[-1] = {**last, "content": [*content_parts(last["content"]), *parts]}
    return said


def _several(name: str, given: Any) -> Iterable[Any]:
    """Return what is given as a list; a path or bytes alone would be read letter by letter."""
    is_one = isinstance(given, str | bytes | bytearray | dict) or hasattr(given, "read")
    if given is not None and (is_one or not isinstance(given, Iterable)):
        raise Misused(f"{name} is a list, such as {name}=[…], not {type(given).__name__}.")
    return given or ()


def _said(message: Any) -> list[Message]:
    if isinstance(message, str):
        if not message.strip():
            raise Misused("The message is empty. Give the agent something to do.")
        return [{"role": "user", "content": clean(message)}]
    if not isinstance(message, list) or not message:
        raise Misused(
            f"A message is text, a list of content parts or a list of messages, "
            f"not {type(message).__name__}."
        )
    if all(isinstance(item, dict) and "role" in item for item in message):
        return received(message)
    _check_content("The message", message)
    return [{"role": "user", "content": clean_json(message)}]


def check_messages(messages: Any) -> None:
    """Raise Misused unless ``messages`` is a list of messages."""
    if not isinstance(messages, list):
        raise Misused(f"Messages are a list of dicts, not {type(messages).__name__}.")
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            raise Misused(
                f"Message {index} must be a dict whose 'role' is one of {', '.join(ROLES)}."
            )
        _check_content(f"The content of message {index}", message.get("content"))


def _check_content(what: str, content: Any) -> None:
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, list):
        raise Misused(f"{what} is text or a list of content parts, not {type(content).__name__}.")
    for part in content:
        _checked_part(part)


def _checked_part(part: Any) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, str) and (kind != "text" or isinstance(part.get("text"), str)):
        return dict(part)
    raise Misused(
        f"A content part is a dict with a 'type', such as {{'type': 'text', 'text': …}}, "
        f"not {part!r:.80}."
    )


def content_parts(content: Any) -> list[dict[str, Any]]:
    """Return a message's content as a list of parts."""
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if content else []


def text_of(content: Any) -> str:
    """Return the text in a message's content, without images and files."""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content or () if part.get("type") == "text")


def image_part(image: Any) -> dict[str, Any]:
    """Return a content part for an image: a URL, a path, bytes or a ready part."""
    if isinstance(image, dict):
        return _checked_part(image)
    if isinstance(image, str) and image.startswith(("http://", "https://", "data:")):
        return {"type": "image_url", "image_url": {"url": image}}
    data, name = _read(image)
    mime = sniff(data) or mimetypes.guess_type(name)[0] or ""
    if not mime.startswith("image/"):
        raise Misused(f"{name or 'The image'!r} is not a PNG, JPEG, GIF or WebP image.")
    return {"type": "image_url", "image_url": {"url": data_url(data, mime)}}


def file_part(file: Any) -> dict[str, Any]:
    """Return a content part for a file: a path, bytes, an open file or a ready part."""
    if isinstance(file, dict):
        return _checked_part(file)
    data, name = _read(file)
    mime = sniff(data) or mimetypes.guess_type(name)[0] or "application/octet-stream"
    if mime.startswith("image/"):
        return {"type": "image_url", "image_url": {"url": data_url(data, mime)}}
    return {
        "type": "file",
        "file": {"filename": name or "file", "file_data": data_url(data, mime)},
    }


def _read(source: Any) -> tuple[bytes, str]:
    if isinstance(source, bytes | bytearray):
        return bytes(source), ""
    if isinstance(source, str | Path):
        path = Path(source)
        try:
            return path.read_bytes(), path.name
        except OSError as error:
            raise Misused(f"Cannot read the file {str(path)!r}: {error.strerror}.") from error
    if hasattr(source, "read"):
        data = source.read()
        if isinstance(data, bytes):
            return data, Path(str(getattr(source, "name", "") or "")).name
    raise Misused(
        f"An image or file is a path, bytes, an open binary file or a content part, "
        f"not {type(source).__name__}."
    )


def data_url(data: bytes, mime: str) -> str:
    """Return bytes as a ``data:`` URL."""
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"


def sniff(data: bytes) -> str:
    """Return the media type that the first bytes tell, or an empty string."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return "application/pdf" if data.startswith(b"%PDF-") else ""


def assistant_message(completion: Completion, provider: str = "") -> Message:
    """Return the assistant turn of ``completion``; its arguments are JSON objects."""
    text = completion.text
    message: Message = {"role": "assistant", "content": clean(text) if text != "" else ""}
    if completion.images:
        message["content"] = [*content_parts(message["content"]), *completion.images]
    if completion.tool_calls:
        message["tool_calls"] = [_call(call) for call in completion.tool_calls]
    if completion.raw_content is not None:
        message["raw_content"] = clean_json(completion.raw_content)
        message["provider"] = provider
    return message


def _call(call: ToolCall) -> dict[str, Any]:
    call_id, name, text = call.id, call.name, call.arguments
    if not isinstance(text, str):
        text = dumps(text) if isinstance(text, dict) else "{}"
    # Mostly all is clean, which one look tells.
    if not (whole := call_id + name + text).isascii() or "\0" in whole:
        call_id, name, text = clean(call_id), clean(name), clean(text)
    if not NAME.fullmatch(name):
        name = re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:64] or "_"
    function = {"name": name, "arguments": _object(text)}
    return {"id": call_id, "type": "function", "function": function}


def _object(text: str) -> str:
    """Return the text of a JSON object; a broken one gets later requests refused."""
    try:
        return text if type(from_json(text, allow_inf_nan=False)) is dict else "{}"
    except ValueError:
        value = _parsed(text)
    return dumps(value) if isinstance(value, dict) else "{}"


def _parsed(text: str) -> Any:
    """Return what JSON text says that has more than Unicode can hold, such as half a pair."""
    try:
        return parse_json(text)
    except ValueError:
        return None


def tool_message(call_id: str, content: Any, is_error: bool = False) -> Message:
    """Return the answer to a tool call."""
    message: Message = {"role": "tool", "tool_call_id": call_id, "content": content}
    if is_error:
        message["is_error"] = True
    return message


def size(message: Message) -> int:
    """Return about how many characters a message takes in a request."""
    # Looked up without get(), which is a call: every message of a run comes through here.
    content = message["content"] if "content" in message else None  # noqa: SIM401
    if content.__class__ is str:
        total = len(content)
    else:
        total = sum(map(_part_size, content)) if content else 0
    if "tool_calls" in message:
        for call in message["tool_calls"] or ():
            function = call["function"]
            total += len(function["name"]) + len(function["arguments"])
    return total


def _part_size(part: dict[str, Any]) -> int:
    # An image is billed by its size in pixels, not by the length of its base64 text.
    return len(part.get("text") or "") if part.get("type") == "text" else 1000


def open_calls(messages: list[Message]) -> list[ToolCall]:
    """Return the tool calls of the last turn that have no result, in call order."""
    start = _behind_last_turn(messages)
    answered = {message.get("tool_call_id") for message in messages[start:]}
    return [
        ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in _calls_before(messages, start)
        if call["id"] not in answered
    ]


def order_results(messages: list[Message]) -> None:
    """Put the results of the last turn right behind it, in the order of its calls.

    What someone has said since its calls were left open comes after them.
    """
    start = _behind_last_turn(messages)
    places = {call["id"]: place for place, call in enumerate(_calls_before(messages, start))}
    messages[start:] = sorted(
        messages[start:], key=lambda m: places.get(m.get("tool_call_id"), len(places))
    )


def _behind_last_turn(messages: list[Message]) -> int:
    """Return the place behind the last turn of the assistant."""
    place = len(messages)
    while place and messages[place - 1]["role"] != "assistant":
        place -= 1
    return place


def _calls_before(messages: list[Message], place: int) -> Sequence[dict[str, Any]]:
    return messages[place - 1].get("tool_calls") or () if place else ()


NO_RESULT = "No result: the call did not end, or its result was lost."


def repaired(messages: list[Message]) -> list[Message]:
    """Return a conversation in which each tool call has one result, right behind its turn.

    A call without a result is answered with one that says so. A result without a call, or
    with an earlier result of the same call, is left out; so is a call whose id was there
    before in its turn. Messages that need no change are the same objects.
    """
    result: list[Message] = []
    for index, message in enumerate(messages):
        if message["role"] == "tool":
            continue  # added behind its turn
        calls = message.get("tool_calls") if message["role"] == "assistant" else None
        if not calls:
            result.append(message)
            continue
        unique = _unique(calls)
        result.append(message if len(unique) == len(calls) else {**message, "tool_calls": unique})
        answers = _answers(messages, index + 1)
        result += [
            answers.get(call["id"]) or tool_message(call["id"], NO_RESULT, is_error=True)
            for call in unique
        ]
    return result


def _unique(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    first: dict[str, dict[str, Any]] = {}
    for call in calls:
        first.setdefault(call["id"], call)
    return list(first.values())


def _answers(messages: list[Message], start: int) -> dict[str, Message]:
    """Return the first result of each call, from ``start`` to the next assistant's message."""
    found: dict[str, Message] = {}
    for index in range(start, len(messages)):
        message = messages[index]
        if message["role"] == "assistant":
            break
        if message["role"] == "tool":
            found.setdefault(message["tool_call_id"], message)
    return found


def sendable(messages: list[Message]) -> list[Message]:
    """Return a repaired conversation in which each tool call has an id of its own."""
    return _distinct(repaired(messages))


def received(messages: Any) -> list[Message]:
    """Return a copy of a conversation from elsewhere that every provider takes.

    It is repaired, its calls have ids of their own and JSON objects for arguments. Raise
    Misused for what is no message, or no tool call.
    """
    check_messages(messages)
    return sendable([_taken(index, item) for index, item in enumerate(messages)])


def _taken(index: int, given: Message) -> Message:
    message: Message = clean_json(given)
    calls = message.pop("tool_calls", None)
    message["content"] = message.get("content") or ""
    if message["role"] == "tool" and not isinstance(message.get("tool_call_id"), str):
        raise Misused(f"Message {index} is the result of a tool: it needs a 'tool_call_id'.")
    if not calls or message["role"] != "assistant":
        return message
    try:
        return message | {"tool_calls": [_taken_call(call) for call in calls]}
    except (AttributeError, KeyError, TypeError):
        raise Misused(
            f"Message {index}: tool calls are a list of dicts with an 'id' and a 'function', "
            f"which has a 'name' and 'arguments', not {calls!r:.80}."
        ) from None


def _taken_call(call: Any) -> dict[str, Any]:
    function = call["function"]
    return _call(ToolCall(call["id"], function["name"], function.get("arguments") or "{}"))


def _distinct(messages: list[Message]) -> list[Message]:
    """Return paired messages in which no two calls have one id, as Anthropic wants it."""
    seen: set[str] = set()
    renamed: dict[str, str] = {}
    result: list[Message] = []
    for message in messages:
        if message.get("tool_calls"):
            ids = {call["id"]: _fresh(call["id"], seen) for call in message["tool_calls"]}
            renamed = {old: new for old, new in ids.items() if old != new}
            message = _renamed(message, renamed) if renamed else message
        elif message["role"] == "tool" and message["tool_call_id"] in renamed:
            message = {**message, "tool_call_id": renamed[message["tool_call_id"]]}
        result.append(message)
    return result


def _renamed(message: Message, ids: dict[str, str]) -> Message:
    """Return an assistant's turn whose calls have other ids."""
    calls = [{**call, "id": ids.get(call["id"], call["id"])} for call in message["tool_calls"]]
    # As its provider wants it echoed, it has the ids that are there twice.
    kept = {name: value for name, value in message.items() if name != "raw_content"}
    return {**kept, "tool_calls": calls}


def _fresh(call_id: str, seen: set[str]) -> str:
    """Return an id that is not among those seen, and add it to them."""
    fresh, number = call_id, 1
    while fresh in seen:
        number += 1
        fresh = f"{call_id}-{number}"
    seen.add(fresh)
    return fresh


def turns(messages: list[Message]) -> Iterator[list[Message]]:
    """Yield the whole turns of a conversation: a user's message and all up to the next one.

    What stands before the first user's message is left out: no request may begin with it.
    """
    turn: list[Message] = []
    for message in messages:
        if message["role"] == "user" and not (turn and turn[-1]["role"] == "user"):
            if turn:
                yield turn
            turn = []
        if turn or message["role"] == "user":
            turn.append(message)
    if turn:
        yield turn
