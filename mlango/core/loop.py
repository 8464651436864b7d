"""The loop: one async generator of events. Everything else consumes it.

Per step: controls and bounds → model call (streaming) → journal → tools side by side → journal →
steering, until there is an answer, a limit, an abort or a failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from time import monotonic

from mlango.core.calls import CUT, Batch, cancel, refuse
from mlango.core.controls import Halt
from mlango.core.events import (
    Event,
    Failed,
    Finished,
    FollowedUp,
    Started,
    StepFinished,
    Thinking,
)
from mlango.core.hearing import hear_rest, hear_steering, heard, said_text
from mlango.core.memory import remember
from mlango.core.messages import open_calls, sendable, size, text_of
from mlango.core.model import ModelCall
from mlango.core.provider import Completion, ToolCall
from mlango.core.retry import Attempts
from mlango.core.run import CANCELLED, FAILED, FINISHED, LEFT, LOST, STOPPED, WAITING, Run
from mlango.core.threads import settle
from mlango.core.values import clean
from mlango.core.watch import Interrupted, TimedOut
from mlango.exceptions import ProviderError

# After so many answers in a row that were cut inside a tool call, the run stops.
MAX_CUTS = 2
# Said to a model that is to go on behind its own words: some refuse a request that ends with them.
GO_ON = "Go on where you stopped."


async def iterate(run: Run) -> AsyncGenerator[Event]:
    """Yield the events of ``run``, from Started to Finished or Failed."""
    run.watch.attach()
    settle(run.context)
    run.first = run.seq  # of the event that is told once what was said is checked
    run.seq += 1
    if run.bounds.run_timeout is not None:
        run.deadline = monotonic() + run.bounds.run_timeout
    try:
        await run.spawn(_begin(run))
        yield _started(run)
        async with aclosing(_work(run)) as events:
            async for event in events:
                yield event
    except Halt as halt:
        run.halt(halt)
    except Interrupted:
        run.cut()
    except TimedOut:
        run.time_out()
    except Exception as error:  # noqa: BLE001 - the one place where a failure ends a run
        _fail(run, error)
    except BaseException:  # the reader left, or its task was cancelled
        run.cut()
        raise
    finally:
        await _end(run)
    if run.status not in LEFT:  # else the process that goes on tells how it ended
        for event in run.ending:
            yield event


def _started(run: Run) -> Event:
    """Return the first event, which tells nothing of what was said that is not checked."""
    run.is_told = True
    said = said_text(run.heard)
    about = (run.label, run.uuid, run.session_id, said)
    event = Started(run.first, run.uuid, 0, run.started_at, run.parent, *about)
    if run.log is not None:
        run.log.add(event)
    return event


def _fail(run: Run, error: Exception) -> None:
    name = type(error).__name__
    if isinstance(error, ProviderError) or run.disclose_errors:
        text = clean(str(error) or name)
    else:
        text = f"The run failed with {name} (reference {run.uuid[:8]})."
    run.exception = error
    run.stop(FAILED, "error", text)


def last_events(run: Run) -> list[Event]:
    """Return what is left to tell of a run that has ended."""
    told, result = list(run.drain()), run.result()
    if not run.is_told:
        told.insert(0, _started(run))
    if run.status == FAILED:
        return [*told, run.emit(Failed, run.error, type(run.exception).__name__, result)]
    return [*told, run.emit(Finished, result)]


async def _end(run: Run) -> None:
    """Settle what is open and store the run. Goes on when its caller is cancelled."""
    run.watch.close()
    storing = run.spawn(_store(run))
    if not storing.done():
        if run.lead is not None:
            run.lead.wait_for(storing)
        await asyncio.shield(storing)


async def _store(run: Run) -> None:
    if run.children:
        await asyncio.wait(run.children)
    if run.status != WAITING and run.status not in LEFT:
        run.outbox.extend(cancel(run, open_calls(run.messages)))
    try:
        if run.messages and run.status != LOST:
            await hear_rest(run)
        if run.journal.saves:
            await run.journal.sync()  # nothing is given back or remembered by one who lost it
        for end in run.controls.end:
            await end(run)
        await remember(run)
    except Halt as halt:
        run.status = halt.status or run.status
    except Exception as error:  # noqa: BLE001 - what was done must be stored all the same
        _fail(run, error)
    finally:
        if run.status not in LEFT:
            run.ending = last_events(run)  # so that the last event is stored with the end
        await run.journal.close(run)
        if run.turn is not None:
            await run.turn.release(run)
        if run.release is not None:
            await run.release(run)


async def _work(run: Run) -> AsyncGenerator[Event]:
    # One generator for all steps: opening one for each model call and each batch of tool
    # calls would cost more than everything else in the loop.
    if run.owes_step:
        yield _step_finished(run)
    calls = open_calls(run.messages)  # what a run that goes on has left open
    if run.reply is not None:  # an earlier process did not live to act on it
        calls = _take(run, run.reply)
        if run.status != "running" or (not calls and await _is_done(run)):
            return
    elif run.was_stopped_speaking:
        run.hear([{"role": "user", "content": GO_ON}], "go_on")
    while True:
        if not calls:
            if run.steering and not run.aborted:
                await hear_steering(run)
            if _must_stop(run):
                return
            if run.controls.before_model:
                run.view = None
                for look in run.controls.before_model:
                    await run.spawn(look(run))
            if run.outbox:
                for event in run.drain():
                    yield event
            run.step += 1
            attempts = None
            while True:
                yield run.emit(Thinking, run.model)
                call = ModelCall(run)
                try:
                    while (heard := await call.next()) is not None:
                        if run.outbox:  # told before this was heard
                            for event in run.drain():
                                yield event
                        yield heard
                    break
                except ProviderError as error:
                    failed = error
                finally:
                    await call.close()
                if run.controls.mend and await run.spawn(_is_mended(run, failed)):
                    for event in run.drain():
                        yield event
                    continue
                attempts = attempts or Attempts(run)
                yield attempts.next(failed)
                if await _is_steered(run, attempts.delay):
                    break
            if attempts is not None:
                attempts.close()
            if run.reply is None:  # steered before the model said anything
                continue
            calls = _take(run, run.reply)
            if run.outbox:
                for event in run.drain():
                    yield event
        if calls and run.cuts:
            for event in refuse(run, calls, CUT, "cut"):
                yield event
        elif calls:
            batch = Batch(run, calls)
            try:
                while batch.left:
                    if (told := batch.next()) is not None:
                        yield told
                    else:
                        await batch.rest()
            finally:
                batch.finish()
            if batch.is_parked and not run.aborted:
                run.park()
        step_finished = _step_finished(run)
        if run.journal.writes and run.journal.wants_sync:
            await run.spawn(run.journal.sync())
        yield step_finished
        if run.status != "running":
            return
        pausing = run.reply is not None and run.reply.stop_reason == Completion.PAUSE_TURN
        if calls or run.steering or pausing:
            calls = []
            continue
        if await _is_done(run):
            return


async def _is_mended(run: Run, error: ProviderError) -> bool:
    """Return whether a control has made the failed model call one that may succeed."""
    if run.released:
        return False
    for mend in run.controls.mend:
        if await mend(run, error):
            return True
    return False


async def _is_steered(run: Run, delay: float) -> bool:
    """Wait before a model call; return whether someone said something that need not wait."""
    if run.aborted:  # by the reader of the last event, while nothing was waited for
        raise Interrupted
    if run.is_hurried:
        return True
    run.watch.steerable = True
    try:
        await run.watch.wait(asyncio.sleep(delay), run.deadline)
    except Interrupted as interruption:
        if not interruption.steered:
            raise
        return True
    finally:
        run.watch.steerable = False
    return False


def _step_finished(run: Run) -> Event:
    reply = run.reply
    if reply is None:  # the calls of an earlier process
        said = next(each for each in reversed(run.messages) if each["role"] == "assistant")
        return run.emit(StepFinished, Completion.TOOL_USE, 0, 0, text_of(said["content"]))
    usage, text = reply.usage, "" if run.is_muted else clean(reply.text)
    return run.emit(StepFinished, reply.stop_reason, usage.input_tokens, usage.output_tokens, text)


async def _is_done(run: Run) -> bool:
    """Return whether the run ends with its answer, and not with what is said to that."""
    if run.controls.before_finish and await run.spawn(_object(run)):
        return False
    if run.steering:  # while it was looked at
        return False
    if not run.follow_ups:
        run.stop(FINISHED, "end_turn")
        return True
    said = await heard(run, run.follow_ups, run.follow_up_mode, "follow_up")
    run.note(FollowedUp, said_text(said))
    return False


async def _object(run: Run) -> bool:
    """Tell the model what is wrong with its answer; return whether anything is."""
    for look in run.controls.before_finish:
        said = await look(run)
        if said:
            run.hear(said, "objection")
            return True
    return False


async def _begin(run: Run) -> None:
    """Take the session's turn, recall what was said before, and open the trace."""
    if run.turn is not None:
        await run.turn.take(run)
    if run.memory is not None and run.memory_key is not None and not run.is_resumed:
        recalled = await run.memory.aload(run.memory_key)
        mended = sendable(recalled)
        # As it was, it may say which traces it comes from.
        run.history = recalled if mended == recalled else mended
    if run.resolve is not None:
        await run.resolve(run)
    if not run.is_resumed:
        for hear in run.controls.hear:
            run.said = await hear(run, run.said)
        run.messages = [*run.history, *run.said]
    run.is_heard = True
    run.chars = sum(map(size, run.messages))
    run.call_ids = {
        call["id"] for message in run.messages for call in message.get("tool_calls") or ()
    }
    await run.journal.open(run)
    for look in run.controls.begin:
        await look(run)


def _must_stop(run: Run) -> bool:
    """Stop the run if it was told to or has used up what it may."""
    bounds = run.bounds
    if run.aborted:
        run.stop(CANCELLED, "cancelled", "The run was stopped.")
    elif run.is_leaving:
        run.park()
    elif bounds.max_steps is not None and run.step >= bounds.max_steps:
        run.stop(STOPPED, "max_steps", f"Stopped after {run.step} steps (max_steps).")
    elif bounds.max_history_chars is not None and run.chars > bounds.max_history_chars:
        run.stop(
            STOPPED,
            "history_limit",
            f"Stopped: the conversation has {run.chars} characters, more than "
            f"{bounds.max_history_chars} (MAX_MESSAGE_HISTORY_CHARS).",
        )
    elif monotonic() >= run.deadline:
        run.time_out()
    return run.status != "running"


def _take(run: Run, reply: Completion) -> list[ToolCall]:
    """Note what the answer means for the run; return the tool calls to answer."""
    if reply.text or not reply.tool_calls:
        run.text = clean(reply.text)
    reason = reply.stop_reason
    if reason in (Completion.REFUSAL, Completion.CONTENT_FILTER):
        run.stop(STOPPED, reason, clean(reply.refusal) or f"The model refused ({reason}).")
        return []
    if reply.images:
        run.add_images(reply.images)
    run.cuts = run.cuts + 1 if reason == Completion.MAX_TOKENS else 0
    if run.cuts and (not reply.tool_calls or run.cuts > MAX_CUTS):
        run.stop(STOPPED, reason, "The answer was cut at its length limit (max_tokens).")
        return []
    return reply.tool_calls
