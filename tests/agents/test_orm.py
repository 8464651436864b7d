"""Tools and the ORM: whose transaction they see, and what they leave behind."""

import asyncio
from time import monotonic

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import Group
from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase

from mlango.agents import Agent, tool
from mlango.agents.providers import ScriptedProvider, ToolCall
from mlango.models import Trace


@tool
def count_groups() -> int:
    """Count the groups."""
    return Group.objects.count()


@tool
async def count_groups_async() -> int:
    """Count the groups."""
    return await Group.objects.acount()


@tool
def make_group(name: str) -> str:
    """Make a group."""
    Group.objects.create(name=name)
    return "made"


@tool
def list_groups():
    """Return the groups, unread."""
    return Group.objects.order_by("name")


@tool(thread_sensitive=False)
def count_aside() -> int:
    """Count the groups in a thread of a pool."""
    return Group.objects.count()


class Groups(Agent):
    """Knows the groups."""

    class Meta:
        model = "test"
        tools = [count_groups, count_groups_async, make_group, list_groups, count_aside]


def provider(*names):
    calls = [ToolCall("", name, {"name": "new"} if name == "make_group" else {}) for name in names]
    return ScriptedProvider([calls, "done"])


def contents(run):
    return [outcome.content for outcome in run.tool_results]


class InATransactionTests(TestCase):
    def setUp(self):
        Group.objects.create(name="staff")

    def test_sync_and_async_tools_see_the_tests_data_in_a_sync_run(self):
        run = Groups().run("go", provider=provider("count_groups", "count_groups_async"))

        assert contents(run) == ["1", "1"]

    async def test_sync_and_async_tools_see_the_tests_data_in_an_async_run(self):
        run = await Groups().arun("go", provider=provider("count_groups", "count_groups_async"))

        assert contents(run) == ["1", "1"]

    def test_the_same_under_async_to_sync(self):
        run = async_to_sync(Groups().arun)("go", provider=provider("count_groups"))

        assert contents(run) == ["1"]

    def test_a_queryset_is_read_where_the_orm_may_be_used(self):
        run = Groups().run("go", provider=provider("list_groups"))

        assert '"name":"staff"' in contents(run)[0].replace(" ", "")

    def test_the_trace_is_there_when_the_run_has_ended(self):
        run = Groups().run("go", provider=provider("count_groups"))

        assert run.trace.status == "finished"
        assert [span.kind for span in run.trace.spans.all()] == ["llm", "tool", "llm"]

    def test_a_callers_atomic_block_survives_and_rolls_back_with_the_tools_rows(self):
        try:
            with transaction.atomic():
                Groups().run("go", provider=provider("make_group"))
                assert Group.objects.filter(name="new").exists()
                raise ZeroDivisionError
        except ZeroDivisionError:
            pass

        assert not Group.objects.filter(name="new").exists()
        assert Group.objects.count() == 1


class OutsideTransactionTests(TransactionTestCase):
    def test_tools_of_every_kind_see_what_is_committed(self):
        Group.objects.create(name="staff")

        run = Groups().run(
            "go", provider=provider("count_groups", "count_groups_async", "count_aside")
        )

        assert contents(run) == ["1", "1", "1"]

    async def test_the_same_in_an_async_run(self):
        await Group.objects.acreate(name="staff")

        run = await Groups().arun(
            "go", provider=provider("count_groups", "count_groups_async", "count_aside")
        )

        assert contents(run) == ["1", "1", "1"]

    async def test_many_runs_leave_a_trace_each(self):
        runs = [Groups().arun("go", provider=provider("count_groups")) for _ in range(20)]
        await asyncio.gather(*runs)

        assert await Trace.objects.filter(status="finished").acount() == 20


@pytest.mark.skipif(connection.vendor != "postgresql", reason="counts PostgreSQL's connections")
class ConnectionTests(TransactionTestCase):
    def test_sixty_runs_at_once_leave_no_connection_open(self):
        def others():
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
                    "AND pid <> pg_backend_pid()"
                )
                return cursor.fetchone()[0]

        before = others()

        async def many():
            await asyncio.gather(
                *(
                    Groups().arun("go", provider=provider("count_groups", "count_groups_async"))
                    for _ in range(60)
                )
            )

        asyncio.run(many())

        # A backend ends a moment after its client has said goodbye.
        deadline = monotonic() + 10
        while others() > before and monotonic() < deadline:
            pass
        assert others() <= before
