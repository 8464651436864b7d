"""Agents over WebSockets, with Channels: ``path("ws/", Support.as_consumer())``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from channels.consumer import AsyncConsumer, get_handler_name
from channels.exceptions import StopConsumer

from mlango.conf import settings
from mlango.serve.asgi import Scope, Send, start_of
from mlango.serve.doors import Door
from mlango.serve.frames import said
from mlango.serve.problems import Problem
from mlango.serve.sockets import Socket
from mlango.serve.streaming import hurried

if TYPE_CHECKING:
    from mlango.agents.agent import Agent
    from mlango.serve.policy import Policy

POLICY_VIOLATION, TOO_BIG = 1008, 1009
# As with events: proxies close what is silent for long, and a server may send no pings.
HEARTBEAT_SECONDS = 15.0
DENIAL = "websocket.http.response"


def endpoint(agent: Agent, policy: Policy) -> Any:
    """Return an ASGI application that talks with ``agent`` over a WebSocket."""
    return AgentConsumer.as_asgi(agent=agent, door=Door(agent, policy))


class AgentConsumer(AsyncConsumer):  # type: ignore[misc]  # channels has no types
    """One WebSocket of an agent; what is said over it is in Socket."""

    def __init__(self, agent: Agent, door: Door) -> None:
        self.agent = agent
        self.door = door
        self.socket: Socket | None = None
        self.beat: asyncio.TimerHandle | None = None
        self.beating: asyncio.Task[None] | None = None
        self.is_dropped = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.task: asyncio.Task[Any] = asyncio.current_task()  # type: ignore[assignment]
        try:
            await super().__call__(scope, receive, send)
        except asyncio.CancelledError:
            if not self.is_dropped:
                raise
        finally:
            if self.beat is not None:
                self.beat.cancel()
            if self.socket is not None:
                await self.socket.leave()

    async def dispatch(self, message: dict[str, Any]) -> None:
        # Not Channels' own, which takes a turn of a thread for each frame, to close database
        # connections; here none is left open.
        await getattr(self, get_handler_name(message))(message)

    async def websocket_connect(self, message: dict[str, Any]) -> None:
        socket = Socket(self.agent, self.door, self.scope, self.tell)
        try:
            await socket.open()
        except Problem as problem:
            await deny(problem, self.scope, self.send)
            raise StopConsumer from None
        self.socket = socket
        await self.send({"type": "websocket.accept"})
        self.wait()

    async def websocket_receive(self, message: dict[str, Any]) -> None:
        limit, text = settings.MAX_FRAME_BYTES, message.get("text")
        size = len(message.get("bytes") or b"") if text is None else len(text.encode())
        if limit is not None and size > limit:
            reason = f"A frame has more than {limit} bytes (MAX_FRAME_BYTES)."
            await self.close(TOO_BIG, reason)
        if self.socket is not None:
            await self.socket.hear(text)

    async def websocket_disconnect(self, message: dict[str, Any]) -> None:
        raise StopConsumer

    async def tell(self, text: str) -> None:
        """Send a text frame; leave a client who does not take it in time."""
        with hurried(self.drop):
            await self.send({"type": "websocket.send", "text": text})

    def drop(self) -> None:
        """End the socket without a word, which would not be read either."""
        self.is_dropped = True
        self.task.cancel()

    async def close(self, code: int, reason: str) -> None:
        """Close the socket; the client reads why."""
        await self.send({"type": "websocket.close", "code": code, "reason": reason})
        raise StopConsumer

    # -- while nothing is said ------------------------------------------------------------------

    def wait(self) -> None:
        """Have a heartbeat sent in a while."""
        loop = asyncio.get_running_loop()
        self.beat = loop.call_later(HEARTBEAT_SECONDS, self._beat)

    def _beat(self) -> None:
        self.beating = asyncio.ensure_future(self._tell_beat())

    async def _tell_beat(self) -> None:
        try:
            await self.tell(said("heartbeat"))
        except OSError:  # the client has gone
            return
        self.wait()


async def deny(problem: Problem, scope: Scope, send: Send) -> None:
    """Refuse a socket with the problem where the server can send one, else with a 403."""
    if DENIAL not in (scope.get("extensions") or {}):
        await send({"type": "websocket.close", "code": POLICY_VIOLATION})
        return
    response = problem.response()
    await send({**start_of(response), "type": f"{DENIAL}.start"})
    await send({"type": f"{DENIAL}.body", "body": response.content})
