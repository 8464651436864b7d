"""A task that starts at once is a task like any other."""

import asyncio
import contextvars

import pytest

from mlango.core.tasks import start

number = contextvars.ContextVar("number", default=0)


def run(coroutine):
    return asyncio.run(coroutine)


def started(coroutine):
    return start(coroutine, contextvars.copy_context())


async def current():
    return asyncio.current_task()


async def waiting():
    await asyncio.sleep(0)
    return asyncio.current_task()


class TestStart:
    def test_what_does_not_wait_is_done_at_once(self):
        async def main():
            return started(current()).done()

        assert run(main()) is True

    def test_a_task_is_the_current_one_before_and_after_its_first_wait(self):
        async def main():
            first, second = started(current()), started(waiting())
            assert await first is first
            assert await second is second

        run(main())

    def test_the_task_that_starts_another_stays_the_current_one(self):
        async def main():
            mine = asyncio.current_task()
            task = started(waiting())
            assert asyncio.current_task() is mine
            await task
            assert asyncio.current_task() is mine

        run(main())

    def test_its_variables_are_its_own(self):
        async def change():
            number.set(number.get() + 1)
            await asyncio.sleep(0)
            return number.get()

        async def main():
            number.set(5)
            assert await started(change()) == 6
            assert number.get() == 5

        run(main())

    def test_an_error_before_the_first_wait_is_the_tasks_own(self):
        async def fail():
            raise ValueError("no")

        async def main():
            task = started(fail())
            with pytest.raises(ValueError, match="no"):
                await task

        run(main())

    def test_its_timeouts_end_only_itself(self):
        async def late():
            async with asyncio.timeout(0):
                await asyncio.Event().wait()

        async def main():
            with pytest.raises(TimeoutError):
                await started(late())
            assert asyncio.current_task().cancelling() == 0

        run(main())

    def test_it_can_be_cancelled_while_it_waits(self):
        async def main():
            task = started(asyncio.Event().wait())
            task.cancel()
            await asyncio.wait({task})
            return task.cancelled()

        assert run(main()) is True

    def test_the_loop_calls_back_as_before(self):
        async def main():
            task = started(waiting())
            called = asyncio.Event()
            asyncio.get_running_loop().call_soon(called.set)
            await called.wait()
            return await task is task

        assert run(main()) is True
