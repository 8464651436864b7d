"""What goes on over one socket: a client's frames come in, a run's events go out.

It knows no server and no Channels, only a function that sends text.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

from mlango.agents.resolve import check_input
from mlango.core.log import BEGINNING, Cursor, Places
from mlango.core.memory import owner_key
from mlango.core.messages import user_messages
from mlango.exceptions import Misconfigured, Misused, NotResumable, WrongStatus
from mlango.models import Approval, Event
from mlango.models.instruction import MAX_WAITING
from mlango.runtime.database import ask
from mlango.runtime.following import afollow, cursor_of
from mlango.serve.approvals import DECISIONS, decided, fields_of, gone_on, run_shown, whose
from mlango.serve.base import Ask, Visit, check_session
from mlango.serve.body import checked
from mlango.serve.failures import misuse
from mlango.serve.frames import Frame, event_frame, frame_of, refusal, said
from mlango.serve.limits import place, streams
from mlango.serve.owned import ID, own_traces
from mlango.serve.problems import Problem
from mlango.serve.runs import cancelled, hand_over
from mlango.serve.scopes import Scope, request_of
from mlango.serve.wire import text_of

if TYPE_CHECKING:
    from mlango.agents.agent import Agent
    from mlango.agents.streams import AsyncRunStream
    from mlango.serve.doors import Door

logger = logging.getLogger("mlango.serve")

Tell = Callable[[str], Awaitable[None]]


def _nothing() -> None:
    """Release what was never taken."""


def _decided(visit: Visit, fields: dict[str, Any]) -> tuple[Approval, Cursor]:
    """Decide, and return the row and the place in the run's log where it goes on."""
    row = Approval.objects.select_related("trace").filter(pk=fields["approval"]).first()
    last = row and Event.objects.last_of(row.trace.root.pk)
    return decided(visit, fields), last.last if last else BEGINNING


class Socket:
    """One client of ``agent``: who it is, and the run that it began, one at a time."""

    def __init__(self, agent: Agent, door: Door, scope: Scope, tell: Tell) -> None:
        self.agent = agent
        self.door = door
        self.scope = scope
        self.tell = tell
        self.stream: AsyncRunStream | None = None
        self.following: asyncio.Task[None] | None = None
        self.followed = ""  # the run whose events that tells
        self.tasks: set[asyncio.Task[None]] = set()
        self.close: Callable[[], None] = _nothing

    async def open(self) -> None:
        """Let a client in; raise a Problem if it may not, or has too many sockets open."""
        visit = await self.enter(is_throttled=False)
        address = visit.request.META.get("REMOTE_ADDR") or ""
        self.close = streams.open(visit.user, address)

    async def enter(self, *, is_throttled: bool = True) -> Visit:
        """Return who is there; raise a Problem if that is nobody, or may not do this."""
        request = request_of(self.scope)
        user = await ask(partial(self.door.admit, request, is_throttled=is_throttled))
        return Visit(self.agent, request, user)

    async def hear(self, text: str | None) -> None:
        """Do what a frame says, and tell what is wrong with it."""
        ref = ""
        try:
            frame = frame_of(text)
            ref = frame.ref
            await self._do(frame)
        except Misused as error:
            await self.tell(refusal(misuse(error), ref))
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
        self.close()

    # -- what a client may say --------------------------------------------------------------

    async def _do(self, frame: Frame) -> None:
        if frame.type == "ping":
            await self.tell(said("pong", frame.ref))
        elif frame.type == "send":
            await self._send(frame)
        elif frame.type == "follow":
            await self._follow(frame)
        elif frame.type in DECISIONS:
            await self._decide(frame)
        elif self.stream is None and self.followed:
            await self._ask_of_followed(frame)
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
        check_session(visit, fields)
        question = Ask(self.agent, visit.request, visit.user, **fields)
        release = await place()
        try:
            self._show(self.agent.astream(question.message, **question.options), release)
        except BaseException:
            release()
            raise

    async def _follow(self, frame: Frame) -> None:
        """Tell the events of a run of the user, whoever began it; the one before is left."""
        visit = await self.enter()
        uuid = frame.fields["run"]
        if not ID.fullmatch(uuid) or not await ask(own_traces(visit).filter(pk=uuid).exists):
            raise Problem(404, "There is no such run.")
        self._tell_rest(uuid, cursor_of(frame.fields.get("after")), frame.ref)

    def _tell_rest(self, uuid: str, after: Cursor, ref: str = "") -> None:
        """Tell the events of a run behind one of them; leave the run that was followed before."""
        if self.following is not None:
            self.following.cancel()
        self.followed = uuid
        self.following = self._start(self._tell_log(uuid, after), ref)

    async def _tell_log(self, uuid: str, after: Cursor) -> None:
        async with aclosing(afollow(uuid, after)) as events:
            async for told in events:
                await self.tell(event_frame(told.cursor, told.data))

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

    async def _ask_of_followed(self, frame: Frame) -> None:
        """Steer, lengthen or stop the user's run that is followed, in any process."""
        visit, message = await self.enter(), frame.fields.get("message")
        if frame.type in ("abort", "cancel"):
            await ask(cancelled, visit, self.followed)
            return
        check_input(user_messages(message))
        if frame.type == "steer":
            now = frame.fields.get("now", False)
            await ask(hand_over, visit, self.followed, lambda run: run.steer(message, now=now))
        else:
            await ask(hand_over, visit, self.followed, lambda run: run.follow_up(message))

    async def _decide(self, frame: Frame) -> None:
        """Decide about a tool call, and go on with its run when there is a place for it."""
        fields = fields_of({**frame.fields, "decision": frame.type})
        visit = await self.enter()
        release = await place()
        try:
            row, after = await ask(_decided, visit, fields)
            await self.tell(said("decided", frame.ref, approval=row.describe()))
            is_own = owner_key(visit.user) == row.owner_key
            if (
                is_own
                and self.stream is None
                and await self._shows_rest(visit, row, after, release)
            ):
                return
            going_on = self._start(self._go_on(visit, row, frame.ref), frame.ref)
            going_on.add_done_callback(lambda task: release())
        except BaseException:
            release()
            raise

    async def _shows_rest(
        self, visit: Visit, row: Approval, after: Cursor, release: Callable[[], None]
    ) -> bool:
        """Go on with the user's run and tell its events; return whether there are any."""
        agent, trace = await ask(whose, visit, row)
        try:
            self._show(await agent.aresume_stream(trace, user=visit.user), release)
        except NotResumable:
            return False
        except WrongStatus:  # somebody else goes on with it
            release()
            if self.followed != trace or self.following is None or self.following.done():
                self._tell_rest(trace, after)
        return True

    async def _go_on(self, visit: Visit, row: Approval, ref: str) -> None:
        """Go on with a run whose events are not for this socket; tell how it ended."""
        run = await gone_on(visit, row)
        await self.tell(said("run", ref, run=run_shown(visit, row, run)))

    # -- the run --------------------------------------------------------------------------------

    def _show(self, stream: AsyncRunStream, release: Callable[[], None]) -> None:
        """Tell the events of a run as they happen; ``release`` the place that it has at last."""
        self.stream = stream.keep_log()
        task = self._start(self._tell_events(stream))
        task.add_done_callback(lambda task: release())

    async def _tell_events(self, stream: AsyncRunStream) -> None:
        places = Places(stream.uuid)
        try:
            async with aclosing(stream):
                async for event in stream:
                    await self.tell(event_frame(places.of(event), text_of(event)))
        finally:
            self.stream = None

    def _start(self, work: Any, ref: str = "") -> asyncio.Task[None]:
        task = asyncio.create_task(self._safely(work, ref))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def _safely(self, work: Awaitable[None], ref: str) -> None:
        try:
            await work
        except OSError:  # the client has gone; the server will say so
            return
        except Misused as error:  # such as an event that the run never comes to
            await self.tell(refusal(misuse(error), ref))
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
