"""Durable runs are told something on the way, whichever process has them."""

from itertools import count

import pytest

from mlango.agents import Agent
from mlango.agents.execution import execute_now
from mlango.exceptions import Misused
from mlango.models import Event, Instruction
from mlango.models.instruction import MAX_WAITING
from mlango.runtime.following import asker, follow
from tests.durable.agents import LEDGER, Clerk, Speaker, plan
from tests.durable.processes import let_lapse, until, worker
from tests.durable.test_log import dead_from

pytestmark = pytest.mark.django_db(transaction=True)


class Fleeting(Agent):
    """Has no durable runs."""

    class Meta:
        app_label = "durable"


@pytest.fixture(autouse=True)
def _clean():
    LEDGER.clear()
    yield
    asker.close()


def kinds(uuid):
    return [told.kind for told in follow(uuid)]


def test_a_run_that_waits_for_a_process_reads_it_first():
    trace = Clerk().enqueue(plan([["put", {"what": "a"}]], "First."))
    trace.steer(plan("Second."))

    run = execute_now(trace.pk)

    assert (run.text, LEDGER) == ("Second.", [])
    assert "steered" in kinds(trace.pk)
    assert not Instruction.objects.exists()


def test_a_run_goes_on_with_what_follows():
    trace = Clerk().enqueue(plan("First."))
    trace.follow_up(plan("Second."))

    run = execute_now(trace.pk)

    assert run.text == "Second."
    assert kinds(trace.pk).count("followed_up") == 1


async def test_it_can_be_told_in_a_loop():
    trace = await Clerk().aenqueue(plan("First."))

    await trace.asteer(plan("Second."), now=True)
    await trace.afollow_up(plan("Third."))

    rows = [(each.kind, each.now) async for each in trace.instructions.all()]
    assert rows == [("steer", True), ("follow_up", False)]


def test_wherever_a_process_dies_it_is_heard_once():
    for at in count(1):
        trace = Clerk().enqueue(plan([["put", {"what": "a"}]], "First."))
        trace.follow_up(plan("Second."))
        with dead_from(at):
            execute_now(trace.pk)
        trace.refresh_from_db()
        is_done = trace.status == "finished"
        if not is_done:
            let_lapse(trace.pk)
            execute_now(trace.pk)

        trace.refresh_from_db()
        assert trace.output == "Second."
        assert kinds(trace.pk).count("followed_up") == 1
        assert trace.spans.filter(kind="agent").count() == 1
        assert not Instruction.objects.exists()
        if is_done:
            return


def test_a_run_in_another_process_is_told(tmp_path):
    trace = Speaker().enqueue("Speak.")
    with worker("--once", WAY=str(tmp_path / "way")) as process:
        until(lambda: Event.objects.filter(trace=trace.pk, kind="text_chunk").exists())
        trace.follow_up("And again.")
        (tmp_path / "way").touch()
        assert process.wait() == 0

    assert kinds(trace.pk).count("followed_up") == 1
    assert trace.spans.filter(kind="llm").count() == 4


def test_a_run_that_hears_nothing_any_more_refuses():
    trace = Clerk().run(plan("Hello.")).trace

    with pytest.raises(Misused, match="is finished and hears nothing"):
        trace.steer("Too late.")


def test_a_run_that_is_not_durable_refuses():
    with pytest.raises(Misused, match="is not durable"):
        Fleeting().run("hi").trace.follow_up("More.")


def test_only_so_much_waits_for_a_run():
    trace = Clerk().enqueue(plan("Hello."))
    for _ in range(MAX_WAITING):
        trace.steer("More.")

    with pytest.raises(Misused, match="16 messages wait for the run"):
        trace.steer("More.")
