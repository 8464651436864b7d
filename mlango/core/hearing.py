"""What is said to a run on the way: read before the next model call, or kept for later."""

from __future__ import annotations

from collections import deque
from contextlib import suppress

from mlango.core.controls import Halt
from mlango.core.events import FollowedUp, Steered
from mlango.core.messages import text_of
from mlango.core.provider import Message
from mlango.core.run import Run
from mlango.core.watch import NEVER, Interrupted


def said_text(said: list[Message]) -> str:
    """Return the text of what was said, for people."""
    return "\n".join(text_of(message["content"]) for message in said)


async def hear_steering(run: Run) -> None:
    """Have the conversation go on with what was said to steer the run."""
    run.is_hurried = False
    while run.steering:
        said = await heard(run, run.steering, run.steering_mode, "steer")
        run.note(Steered, said_text(said))
        if run.steering_mode != "all":
            return


async def hear_rest(run: Run) -> None:
    """Keep what nobody has read when a run ends: it is read once the run or its session goes on.

    What may not be read is told by whoever refuses it.
    """
    run.deadline = NEVER  # the run's time may be up; each check has its own
    for queue, name, kind in (
        (run.steering, "steer", Steered),
        (run.follow_ups, "follow_up", FollowedUp),
    ):
        while queue:
            with suppress(Halt, Interrupted):  # the latter by who stops it once more
                said = await heard(run, queue, "one-at-a-time", name)
                run.note(kind, said_text(said))


async def heard(run: Run, queue: deque[list[Message]], mode: str, name: str) -> list[Message]:
    """Add to the conversation what waits in a queue, as the controls let it be read."""
    items = run.next_queued(queue, mode)
    said = [message for item in items for message in item]
    try:
        for hear in run.controls.hear:
            said = await run.spawn(hear(run, said))
    except BaseException as error:
        if len(items) > 1 or not isinstance(error, Halt):  # else it is what may not be read
            queue.extendleft(reversed(items))
        raise
    run.hear(said, name)
    return said
