"""What goes on over one socket: a client's frames come in, a run's events go out.

It knows no server and no Channels, only a function that sends text.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from mlango.agents.resolve import check_input
from mlango.core.memory import owner_key
from mlango.core.messages import user_messages
from mlango.exceptions import Misconfigured, Misused
from mlango.runtime.database import ask
from mlango.serve.approvals import DECISIONS, decided, fields_of, gone_on, run_shown, whose
from mlango.serve.base import Ask, Visit, check_permissions, logged_in
from mlango.serve.body import checked
from mlango.serve.frames import Frame, frame_of, refusal, said
from mlango.serve.origins import check_origin
from mlango.serve.problems import Problem
from mlango.serve.scopes import Scope, request_of
from mlango.serve.wire import text_of

if TYPE_CHECKING:
    from mlango.agents.agent import Agent
    from mlango.agents.streams import AsyncRunStream

logger = logging.getLogger("mlango.serve")

Tell = Callable[[str], Awaitable[None]]

MAX_WAITING = 16  # messages that a run has not read yet


class Socket:
    """One client of ``agent``: who it is, and the run that it began, one at a time."""

    def __init__(self, agent: Agent, needed: list[str], scope: Scope, tell: Tell) -> None:
        self.agent = agent
        self.needed = needed
        self.scope = scope
        self.tell = tell
        self.stream: AsyncRunStream | None = None
        self.tasks: set[asyncio.Task[None]] = set()

    async def enter(self) -> Visit:
        """Return who is there; raise a Problem if that is nobody, or may not do this."""
        request = request_of(self.scope)
        user = await ask(entered, request, self.needed)
        return Visit(self.agent, request, user)

    async def hear(self, text: str | None) -> None:
        """Do what a frame says, and tell what is wrong with it."""
        ref = ""
        try:
            frame = frame_of(text)
            ref = frame.ref
            await self._do(frame)
        except Misused as error:
            await self.tell(refusal(Problem(400, str(error)), ref))
        except Misconfigured:
            await self.tell(refusal(self._not_set_up(), ref))
        except Problem as problem:
            await self.tell(refusal(problem, ref))

    async def leave(self) -> None:
        """End what was begun; it stores itself on the way."""
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks)

    # -- what a client may say --------------------------------------------------------------

    async def _do(self, frame: Frame) -> None:
        if frame.type == "ping":
            await self.tell(said("pong", frame.ref))
        elif frame.type == "send":
            await self._send(frame)
        elif frame.type in DECISIONS:
            await self._decide(frame)
        else:
            self._ask_of_run(frame)

    async def _send(self, frame: Frame) -> None:
        """Begin a run."""
        fields = checked(frame.fields)
        if self.stream is not None:
            raise Problem(
                409, "A run goes on over this socket. Use 'steer' or 'follow_up', or 'abort' it."
            )
        visit = await self.enter()
        question = Ask(self.agent, visit.request, visit.user, **fields)
        self._show(self.agent.astream(question.message, **question.options))

    def _ask_of_run(self, frame: Frame) -> None:
        """Steer, lengthen or stop the run that goes on."""
        if self.stream is None:
            raise Problem(409, f"No run goes on over this socket, so {frame.type!r} has no use.")
        if frame.type in ("abort", "cancel"):
            self.stream.abort()
            return
        message, run = frame.fields["message"], self.stream._run
        check_input(user_messages(message))
        if len(run.steering) + len(run.follow_ups) >= MAX_WAITING:
            raise Problem(429, f"{MAX_WAITING} messages wait for the run already.")
        if frame.type == "steer":
            self.stream.steer(message, now=frame.fields.get("now", False))
        else:
            self.stream.follow_up(message)

    async def _decide(self, frame: Frame) -> None:
        """Decide about a tool call, and go on with its run."""
        fields = fields_of({**frame.fields, "decision": frame.type})
        visit = await self.enter()
        row = await ask(decided, visit, fields)
        await self.tell(said("decided", frame.ref, approval=row.describe()))
        if owner_key(visit.user) == row.owner_key and self.stream is None:
            agent, trace = await ask(whose, visit, row)
            try:
                self._show(await agent.aresume_stream(trace))
            except Misused:  # somebody else goes on with it
                return
        else:
            self._start(self._go_on(visit, row, frame.ref))

    async def _go_on(self, visit: Visit, row: Any, ref: str) -> None:
        """Go on with a run whose events are not for this socket; tell how it ended."""
        run = await gone_on(visit, row)
        await self.tell(said("run", ref, run=run_shown(visit, row, run)))

    # -- the run --------------------------------------------------------------------------------

    def _show(self, stream: AsyncRunStream) -> None:
        """Tell the events of a run as they happen."""
        self.stream = stream
        self._start(self._tell_events(stream))

    async def _tell_events(self, stream: AsyncRunStream) -> None:
        try:
            async with aclosing(stream):
                async for event in stream:
                    await self.tell(text_of(event))
        finally:
            self.stream = None

    def _start(self, work: Any) -> None:
        task = asyncio.create_task(self._safely(work))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _safely(self, work: Awaitable[None]) -> None:
        try:
            await work
        except OSError:  # the client has gone; the server will say so
            return
        except Misconfigured:
            await self.tell(refusal(self._not_set_up()))
        except Exception:
            problem = Problem(500, "Something went wrong; the server's log tells what.")
            logger.exception("%s: over a socket of %s.", problem.id, self.agent._meta.label)
            await self.tell(refusal(problem))

    def _not_set_up(self) -> Problem:
        problem = Problem(500, "The agent is not set up; the server's log tells why.")
        logger.exception("%s: %s is not set up.", problem.id, self.agent._meta.label)
        return problem


def entered(request: Any, needed: list[str]) -> Any:
    """Return who opens a socket; raise a Problem unless logged in, on this site, and permitted.

    A page of another site can open sockets with the cookies of its visitor, without a CSRF
    token; its Origin is what tells.
    """
    user = logged_in(request)
    check_origin(request)
    check_permissions(user, needed)
    return user
