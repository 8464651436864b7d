"""The one bridge from plain code to the loop.

All sync callers share one event loop in a helper thread, so connections to providers live on
between calls. While a caller waits, his own thread does the run's blocking work: tools and
the ORM see his transaction, his test's data and his connection.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import Any, TypeVar

from asgiref.sync import SyncToAsync, ThreadSensitiveContext

from mlango.core.threads import after_pool_call
from mlango.exceptions import Misused

T = TypeVar("T")
Work = Callable[[], None]


class Portal:
    """An event loop in a thread of its own, started at first use and after a fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0

    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._pid != os.getpid() or self._loop.is_closed():
                self._loop, self._pid = asyncio.new_event_loop(), os.getpid()
                threading.Thread(
                    target=self._loop.run_forever, name="mlango-loop", daemon=True
                ).start()
            return self._loop


portal = Portal()


def fulfil(
    future: Future[T], function: Callable[..., T], /, *args: Any, **kwargs: Any
) -> BaseException | None:
    """Call a function for a future, unless that was cancelled; return what it raised."""
    if not future.set_running_or_notify_cancel():
        return None
    try:
        result = function(*args, **kwargs)
    except BaseException as error:  # noqa: BLE001 - it is returned
        future.set_exception(error)
        return error
    future.set_result(result)
    return None


class Caller(Executor):
    """Runs the blocking work of one run in the thread that waits for it."""

    def __init__(self) -> None:
        self._work: SimpleQueue[Work | None] = SimpleQueue()
        self._interrupted = False

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()

        def work() -> None:
            error = fulfil(future, fn, *args, **kwargs)
            if error is not None and self._interrupted:
                raise error

        self._work.put(work)
        return future

    def done(self) -> None:
        """Let serve() return; may be called from any thread."""
        self._work.put(None)

    def serve(self, cancel: Callable[[], Any]) -> None:
        """Do what comes until done(). A Ctrl-C cancels, and is raised when all has ended."""
        interrupt: BaseException | None = None
        with _Interrupts(self):
            while True:
                try:
                    work = self._work.get()
                    if work is None:
                        break
                    work()
                except BaseException as error:
                    self._interrupted = False
                    if interrupt is not None:
                        raise
                    interrupt = error
                    cancel()
        if interrupt is not None:
            raise interrupt

    def interrupt(self) -> None:
        self._interrupted = True


class _Interrupts:
    """Tells a Ctrl-C from a KeyboardInterrupt that a tool raised by itself."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._active = False

    def __enter__(self) -> None:
        self._active = (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        )
        if self._active:
            signal.signal(signal.SIGINT, self._handle)

    def _handle(self, number: int, frame: Any) -> None:
        self._caller.interrupt()
        signal.default_int_handler(number, frame)

    def __exit__(self, *exc_info: object) -> None:
        if self._active:
            signal.signal(signal.SIGINT, signal.default_int_handler)


class Call:
    """One caller's stay on the portal: coroutines of one context, one after the other.

    ``instead`` is what code with a running loop should call. The context makes asgiref,
    and with it Django's own async ORM, send blocking work to the caller's thread.
    """

    def __init__(self, instead: str) -> None:
        refuse_running_loop(instead)
        self._loop = portal.loop()
        self._caller = Caller()
        self._sensitive = ThreadSensitiveContext(executor=self._caller)
        self.context = contextvars.copy_context()
        self.context.run(_enter, self._sensitive)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the portal's loop and work for it until it is done."""
        tasks: list[asyncio.Task[T]] = []

        def start() -> None:
            tasks.append(self._loop.create_task(coroutine, context=self.context))
            tasks[0].add_done_callback(lambda task: self._caller.done())

        def cancel() -> None:
            tasks[0].cancel()

        self._loop.call_soon_threadsafe(start)
        self._caller.serve(lambda: self._loop.call_soon_threadsafe(cancel))
        return tasks[0].result()

    def iterate(self, source: AsyncGenerator[T]) -> Iterator[T]:
        """Yield what ``source`` yields. The source stands still between two items."""
        nothing = object()

        async def following() -> Any:
            return await anext(source, nothing)

        try:
            while (item := self.run(following())) is not nothing:
                yield item
        finally:
            if not sys.is_finalizing():  # when the loop's thread is gone, as at an exit
                self.run(_close(source))


async def _close(source: AsyncGenerator[Any]) -> None:
    await source.aclose()


def _enter(sensitive: ThreadSensitiveContext) -> None:
    """Enter an async context manager that never waits, here and now."""
    try:
        sensitive.__aenter__().send(None)  # type: ignore[no-untyped-call]
    except StopIteration:
        return


def refuse_running_loop(instead: str) -> None:
    """Raise Misused where an event loop is running, as in an async view or a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise Misused(
        f"An event loop is running in this thread, so a blocking call would stop it. "
        f"Use {instead} here."
    )


def own_thread(context: contextvars.Context) -> ThreadSensitiveContext:
    """Give a context a thread of its own for blocking work, made at its first use.

    An outer sync caller, as in ``async_to_sync`` and Django's test case, goes before it.
    """
    sensitive = ThreadSensitiveContext()
    context.run(SyncToAsync.thread_sensitive_context.set, sensitive)
    return sensitive


async def close_own_thread(sensitive: ThreadSensitiveContext, *, wait: bool) -> None:
    """End the thread that own_thread() gave, with the connections it opened.

    Without ``wait`` the thread, which a tool still blocks, ends by itself later.
    """
    executor = SyncToAsync.context_to_thread_executor.pop(sensitive, None)
    if executor is None:
        return
    closed = executor.submit(close_connections)
    executor.shutdown(wait=False)
    if wait:
        await asyncio.wrap_future(closed)


_thread = threading.local()


def keep_connections() -> None:
    """Have this thread keep its connections for the next who works in it."""
    _thread.keeps_connections = True


def close_connections() -> None:
    """Close this thread's connections, but never one inside a transaction.

    A thread that keeps its connections loses only those with errors.
    """
    from django.db import connections  # needs settings, which may not be there at import

    keeps = getattr(_thread, "keeps_connections", False)
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block and (connection.errors_occurred or not keeps):
            connection.close()


def close_all_connections() -> None:
    """Close also what this thread keeps."""
    from django.db import connections

    connections.close_all()


after_pool_call.append(close_connections)
