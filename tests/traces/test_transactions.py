"""Rows and the caller's transaction."""

import asyncio

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import Group
from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase

from mlango.agents.providers.scripted import call
from mlango.core.tools import tool
from mlango.models import Span, Trace
from tests.helpers import afinish, finish, new_run, stream


@tool
def make_group(name: str) -> str:
    """Make a group."""
    Group.objects.create(name=name)
    return "made"


TURNS = [call("make_group", name="staff"), "Made."]


class InATestCase(TestCase):
    def test_rows_are_written_on_the_connection_of_the_test(self):
        run = finish(new_run(TURNS, [make_group]))

        self.assertEqual(Trace.objects.get().uuid, run.uuid)
        self.assertTrue(connection.in_atomic_block)

    async def test_rows_of_an_async_test_too(self):
        run = await afinish(new_run(TURNS, [make_group]))

        trace = await Trace.objects.aget()
        self.assertEqual(trace.uuid, run.uuid)
        self.assertEqual(await trace.spans.acount(), 3)

    def test_the_rows_of_the_other_tests_are_gone(self):
        self.assertEqual(Trace.objects.count(), 0)

    def test_a_run_costs_few_queries(self):
        with self.assertNumQueries(7):  # trace; spans and end; two savepoints
            finish(new_run([call("add"), "Done."]))


class InATransactionTestCase(TransactionTestCase):
    def test_rows_are_committed_before_the_run_ends(self):
        run = finish(new_run(TURNS, [make_group]))

        self.assertEqual(Trace.objects.get().status, run.status)
        self.assertEqual(Span.objects.count(), 3)

    async def test_those_of_an_async_test_too(self):
        run = await afinish(new_run(TURNS, [make_group]))

        trace = await Trace.objects.aget()
        self.assertEqual(trace.status, run.status)


class Undo(Exception):
    pass


@pytest.mark.django_db(transaction=True)
class TestInsideAtomic:
    def test_rows_come_with_the_commit(self):
        with transaction.atomic():
            run = finish(new_run(TURNS, [make_group]))

        assert Trace.objects.get().uuid == run.uuid
        assert Span.objects.count() == 3

    def test_rows_go_with_the_rollback(self):
        with pytest.raises(Undo), transaction.atomic():
            finish(new_run(TURNS, [make_group]))
            assert Trace.objects.count() == 1
            raise Undo

        assert not Group.objects.exists()
        assert not Trace.objects.exists()
        assert not Span.objects.exists()

    def test_rows_of_async_code_under_async_to_sync_go_too(self):
        async def arun():
            await afinish(new_run())

        with pytest.raises(Undo), transaction.atomic():
            async_to_sync(arun)()
            assert Trace.objects.count() == 1
            raise Undo

        assert not Trace.objects.exists()

    def test_rows_of_a_loop_that_was_started_inside_go_too(self):
        with pytest.raises(Undo), transaction.atomic():
            asyncio.run(afinish(new_run()))
            assert Trace.objects.get().span_count == 1
            raise Undo

        assert not Trace.objects.exists()

    def test_rows_of_a_stream_that_is_left_inside_go_too(self):
        with pytest.raises(Undo), transaction.atomic():
            events = stream(new_run())
            next(events)
            events.close()
            raise Undo

        assert not Trace.objects.exists()

    @pytest.mark.parametrize("table", ["mlango_trace", "mlango_span"])
    def test_a_failing_write_leaves_the_block_whole(self, table, caplog):
        with pytest.raises(Undo), transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute(f"ALTER TABLE {table} RENAME TO gone")
            run = finish(new_run(TURNS, [make_group]))

            assert run.status == "finished"
            assert not connection.needs_rollback
            assert Group.objects.get().name == "staff"
            raise Undo

        [record] = [record for record in caplog.records if record.name == "mlango.traces"]
        assert f"The trace of run {run.uuid} of shop.Support is not complete" in record.message

    def test_a_broken_block_stays_broken_and_the_run_goes_on(self, caplog):
        with transaction.atomic():
            transaction.set_rollback(True)
            run = finish(new_run())

        assert run.status == "finished"
        assert not Trace.objects.exists()
        assert "TransactionManagementError" in caplog.text
