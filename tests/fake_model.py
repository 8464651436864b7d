"""A model server on this machine that answers what a test tells it, faults included.

It speaks OpenAI's chat completions, and Anthropic's messages. ``FakeModel.answers`` is a queue
of Answers; each request takes the next one.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
CLAUDE_USAGE = {
    "input_tokens": 36,
    "cache_read_input_tokens": 64,
    "cache_creation_input_tokens": 10,
    "output_tokens": 1,
}
STALL = "stall"  # says nothing more until the client leaves
RESET = "reset"  # cuts the connection


@dataclass
class Answer:
    """One response: a status, headers and the pieces of its body, with pauses in seconds."""

    pieces: list[Any] = field(default_factory=list)
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    content_type: str = "text/event-stream"


def event(data: Any) -> bytes:
    text = data if isinstance(data, str) else json.dumps(data)
    return f"data: {text}\n\n".encode()


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish}
    return event({"id": "c1", "model": "fake-1", "choices": [choice]} | more)


def tail(usage: dict[str, Any] | None = USAGE) -> list[bytes]:
    """The usage, in a chunk without choices as OpenAI sends it, and the end."""
    counted = [event({"id": "c1", "choices": [], "usage": usage})] if usage else []
    return [*counted, event("[DONE]")]


def texts(words: str) -> list[bytes]:
    return [chunk({"content": word}) for word in words.replace(" ", " \0").split("\0")]


def says(words: str, finish: str = "stop", usage: dict[str, Any] | None = USAGE) -> Answer:
    return Answer([*texts(words), chunk({}, finish), *tail(usage)])


def tool_delta(index: Any, call_id: Any, name: Any, arguments: Any) -> dict[str, Any]:
    """A piece of a tool call; None leaves a field out."""
    function = {"name": name, "arguments": arguments}
    piece = {"index": index, "id": call_id, "type": "function"}
    piece["function"] = {key: value for key, value in function.items() if value is not None}
    return {key: value for key, value in piece.items() if value is not None}


def calls(*made: tuple[str, str, dict[str, Any]], finish: str = "tool_calls") -> Answer:
    """Parallel calls (id, name, arguments), each in two pieces as OpenAI sends them."""
    pieces = []
    for index, (call_id, name, arguments) in enumerate(made):
        text = json.dumps(arguments)
        pieces.append(chunk({"tool_calls": [tool_delta(index, call_id, name, "")]}))
        pieces.append(chunk({"tool_calls": [tool_delta(index, None, None, text[:5])]}))
        pieces.append(chunk({"tool_calls": [tool_delta(index, None, None, text[5:])]}))
    return Answer([*pieces, chunk({}, finish), *tail()])


def deltas(*pieces: Iterable[Any], finish: str = "tool_calls") -> Answer:
    """Tool-call pieces (index, id, name, arguments), one chunk each."""
    sent = [chunk({"tool_calls": [tool_delta(*piece)]}) for piece in pieces]
    return Answer([*sent, chunk({}, finish), *tail()])


def fails(status: int, error: Any = None, **headers: str) -> Answer:
    body = {"error": error} if error is not None else {"error": {"message": "no"}}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer([json.dumps(body).encode()], status, named, "application/json")


def document(answer: Any, status: int = 200, content_type: str = "application/json") -> Answer:
    text = answer if isinstance(answer, str) else json.dumps(answer)
    return Answer([text.encode()], status, {}, content_type)


def anthropic(*blocks: Any, stop: str = "end_turn", output_tokens: int = 20) -> Answer:
    """An answer as Anthropic streams it: blocks, each with its pieces."""
    message = {"id": "m", "type": "message", "role": "assistant", "model": "claude", "content": []}
    parts = [("message_start", {"message": message | {"usage": CLAUDE_USAGE}})]
    for index, (block, *pieces) in enumerate(blocks):
        parts.append(("content_block_start", {"index": index, "content_block": block}))
        parts += [("content_block_delta", {"index": index, "delta": piece}) for piece in pieces]
        parts.append(("content_block_stop", {"index": index}))
    usage = {"output_tokens": output_tokens}
    ended = {"delta": {"stop_reason": stop, "stop_sequence": None}, "usage": usage}
    parts += [("message_delta", ended), ("message_stop", {})]
    return Answer([b"event: %b\n" % k.encode() + event({"type": k, **v}) for k, v in parts])


def text(words: str) -> Any:
    return ({"type": "text", "text": ""}, {"type": "text_delta", "text": words})


class FakeModel:
    """The server, in a thread of its own while the ``with`` block lasts."""

    def __init__(self) -> None:
        self.answers: deque[Answer] = deque()
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.asked = threading.Event()  # a request has come
        self.hung_up = threading.Event()  # a client left in the middle of an answer
        self.url = ""
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def script(self, *answers: Answer) -> None:
        self.answers.extend(answers)

    def clear(self) -> None:
        self.answers.clear()
        self.requests.clear()
        self.headers.clear()
        self.asked.clear()
        self.hung_up.clear()

    def __enter__(self) -> FakeModel:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *args: Any) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        runner = self._loop.run_until_complete(self._start())
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()

    async def _start(self) -> web.AppRunner:
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/{path:.*}", self._answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        return runner

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(await request.json())
        self.headers.append(dict(request.headers))
        answer = self.answers.popleft() if self.answers else fails(418)
        self.asked.set()
        try:
            return await self._respond(request, answer)
        except ConnectionError:
            self.hung_up.set()
            raise

    async def _respond(self, request: web.Request, answer: Answer) -> web.StreamResponse:
        response = web.StreamResponse(status=answer.status, headers=answer.headers)
        response.content_type = answer.content_type
        if answer.pieces[:1] == [STALL]:
            await self._stall(request)
        await response.prepare(request)
        for piece in answer.pieces:
            if piece == STALL:
                await self._stall(request)
            elif piece == RESET:
                request.transport.abort()
                return response
            elif isinstance(piece, float):  # seconds until the next piece
                await asyncio.sleep(piece)
            else:
                await response.write(piece)
        await response.write_eof()
        return response

    async def _stall(self, request: web.Request) -> None:
        # The transport tells nobody when it closes.
        while request.transport and not request.transport.is_closing():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        raise ConnectionResetError
