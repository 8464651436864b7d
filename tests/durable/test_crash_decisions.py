"""What people and policies say of runs that a crash left open."""

import asyncio
import signal
from dataclasses import replace
from itertools import count

import pytest
from django.contrib.auth.models import Group
from django.core.checks import run_checks

from mlango.agents.execution import execute_now
from mlango.agents.worker import Worker
from mlango.models import Approval, Attempt, DurableRun, Trace
from mlango.models.approval import Operator
from mlango.runtime.registry import registry
from tests.durable.agents import LEDGER, plan
from tests.durable.checker import tree, violations
from tests.durable.crashing import Clerk, Doomed, Lead, Sum, Trusting, Typed, pay, send
from tests.durable.shapes import let_lapse, see_through

pytestmark = pytest.mark.django_db(transaction=True)

EVERY = 5  # of the kill points
SENT = plan([["send", {"to": "ann"}]], "Done.")


def killed(trace, mortals, where):
    """Have the process of a run be killed at a named kill point."""
    assert not mortals.do(trace.pk, where)
    let_lapse(trace.pk)
    return trace


def asked(trace):
    """Return what a run asks after its process was killed."""
    execute_now(trace.pk)
    return Approval.objects.open().get(trace=trace)


def results(trace):
    return [each["content"] for each in trace.messages if each["role"] == "tool"]


class TestACallThatWasCutOff:
    def test_waits_for_a_person_and_is_not_made_again(self, mortals, ledger):
        trace = killed(Clerk().enqueue(SENT), mortals, "after send")

        question = asked(trace)

        assert (question.kind, question.tool) == ("unknown", "send")
        assert Trace.objects.get(pk=trace.pk).status == "waiting"
        assert len(ledger.read()) == 1

    def test_that_had_its_effect_is_not_made_again(self, mortals, ledger):
        trace = killed(Clerk().enqueue(SENT), mortals, "after send")
        asked(trace).happened(by=Operator(), note="It is in the outbox.")

        trace = see_through(trace, ledger)

        assert results(trace) == ["It is in the outbox."]
        assert violations(trace, ledger.read()) == []
        assert len(ledger.read()) == 1

    def test_that_had_no_effect_is_told_to_the_model(self, mortals, ledger):
        trace = killed(Clerk().enqueue(SENT), mortals, "before send")
        asked(trace).did_not_happen(by=Operator())

        trace = see_through(trace, ledger)

        assert "had no effect" in results(trace)[0]
        assert trace.spans.get(kind="tool").error_type == "unknown"
        assert ledger.read() == []

    def test_is_made_again_where_somebody_says_so(self, mortals, ledger):
        trace = killed(Clerk().enqueue(SENT), mortals, "before send")
        asked(trace).run_again(by=Operator())

        trace = see_through(trace, ledger)

        assert results(trace) == ["sent to ann"]
        assert violations(trace, ledger.read()) == []
        assert len(ledger.read()) == 1

    def test_is_asked_about_again_when_it_is_cut_off_again(self, mortals, ledger):
        trace = killed(Clerk().enqueue(SENT), mortals, "before send")
        first = asked(trace)
        first.run_again(by=Operator())
        killed(trace, mortals, "after send")

        second = asked(trace)

        assert second.pk != first.pk
        assert len(ledger.read()) == 1

    @pytest.mark.parametrize(
        ("choice", "where"),
        [
            ("happened", "after send"),
            ("did_not_happen", "before send"),
            ("run_again", "before send"),
        ],
    )
    def test_keeps_what_was_decided_through_another_crash(self, mortals, ledger, choice, where):
        for number in count(1, EVERY):
            trace = killed(Clerk().enqueue(SENT), mortals, where)
            getattr(asked(trace), choice)(by=Operator(), note="It was so.")
            lived = mortals.do(trace.pk, number)

            trace = see_through(trace, ledger)

            assert trace.status == "finished"
            assert violations(trace, ledger.read()) == []
            if lived:
                break

    def test_is_told_to_the_model_by_a_policy(self, mortals, ledger):
        trace = killed(Trusting().enqueue(SENT), mortals, "after send")

        trace = see_through(trace, ledger)

        assert "Nobody knows" in results(trace)[0]
        assert not Approval.objects.exists()
        assert len(ledger.read()) == 1


class TestACrashLoop:
    def test_ends_a_run_that_does_not_get_further(self, mortals, ledger):
        trace = Clerk().enqueue(plan([["die", {"how": "hard"}]], "Never."))
        for _ in range(3):
            killed(trace, mortals, 0)

        mortals.do(trace.pk)

        trace.refresh_from_db()
        assert (trace.status, trace.stop_reason) == ("failed", "crash_loop")
        assert "3 times at the same step" in trace.error
        assert violations(trace, ledger.read()) == []
        assert len(ledger.read()) == 3

    def test_in_a_sub_agent_ends_that_too(self, mortals, ledger):
        inner = plan([["die", {"how": "hard"}]], "Never.")
        trace = Lead().enqueue(plan([["clerk", {"message": inner}]], "Never."))
        for _ in range(3):
            killed(trace, mortals, 0)

        mortals.do(trace.pk)

        assert [each.status for each in tree(trace)] == ["failed", "cancelled"]
        assert violations(trace, ledger.read()) == []

    def test_ends_before_the_run_is_made_where_that_is_what_kills(self, mortals, ledger):
        trace = Doomed().enqueue(plan("Hello."))
        for _ in range(4):
            killed(trace, mortals, 0)

        assert mortals.do(trace.pk)

        trace.refresh_from_db()
        assert (trace.status, trace.stop_reason) == ("failed", "crash_loop")
        assert violations(trace, ledger.read()) == []


@pytest.fixture
def release(monkeypatch):
    """Return a function that declares an agent anew, as it is in a later release."""

    def declare(old, **meta):
        monkeypatch.setitem(registry._agents, old._meta.label, old)
        meta["app_label"] = old._meta.label.partition(".")[0]
        meta = type("Meta", (old.Meta,), meta)
        return type(old.__name__, (old,), {"__doc__": old.__doc__, "Meta": meta})

    return declare


class TestAnAgentThatHasChanged:
    """Its run was begun by another process, with the agent as the module declares it."""

    def changed(self, mortals, release):
        trace = killed(Clerk().enqueue(SENT), mortals, "after the model")
        release(Clerk, system="Be quick.")
        return trace

    def test_is_not_gone_on_with_before_somebody_says_so(self, mortals, ledger, release):
        trace = self.changed(mortals, release)

        question = asked(trace)

        trace.refresh_from_db()
        assert (trace.status, trace.stop_reason) == ("waiting", "needs_decision")
        assert question.kind == "change"
        assert ledger.read() == []

    def test_is_gone_on_with_by_the_new_code(self, mortals, ledger, release):
        trace = self.changed(mortals, release)
        asked(trace).approve(by=Operator())

        trace = see_through(trace, ledger)

        assert trace.status == "finished"
        assert trace.fingerprint == registry.get(trace.agent)._meta.fingerprint()
        assert violations(trace, ledger.read()) == []

    def test_ends_the_run_where_somebody_says_so(self, mortals, ledger, release):
        trace = self.changed(mortals, release)
        asked(trace).reject(by=Operator())

        trace = see_through(trace, ledger)

        assert (trace.status, trace.stop_reason) == ("stopped", "needs_decision")
        assert violations(trace, ledger.read()) == []

    def test_asks_once_however_often_the_next_process_dies(self, mortals, ledger, release):
        trace = self.changed(mortals, release)
        asked(trace).approve(by=Operator())
        release(Clerk, system="Be quick and kind.")

        assert "kind" not in asked(trace).arguments["begun_with"]
        assert Approval.objects.filter(trace=trace).count() == 2

    def test_is_asked_about_when_it_works_for_another(self, mortals, ledger, release):
        inner = plan([["put", {"what": "a"}]], [["send", {"to": "ann"}]], "Sub.")
        trace = Lead().enqueue(plan([["clerk", {"message": inner}]], "All."))
        killed(trace, mortals, "after put")
        release(Lead, subagents=[release(Clerk, system="Be quick.")])

        execute_now(trace.pk)

        child = trace.children.get()
        assert child.stop_reason == "needs_decision"
        assert Trace.objects.get(pk=trace.pk).status == "waiting"
        assert see_through(trace, ledger).status == "finished"
        assert violations(trace, ledger.read()) == []

    def test_does_not_repeat_what_was_once_only_when_it_was_called(self, mortals, ledger, release):
        trace = killed(Clerk().enqueue(SENT), mortals, "after send")
        others = [each for each in Clerk._meta.tools if each is not send]
        release(Clerk, tools=[replace(send, effect="idempotent"), *others])

        assert asked(trace).kind in ("unknown", "change")
        assert len(ledger.read()) == 1

    def test_asks_about_a_call_whose_tool_is_gone(self, mortals, ledger, release):
        trace = killed(Clerk().enqueue(SENT), mortals, "after send")
        release(Clerk, tools=[each for each in Clerk._meta.tools if each is not send])
        asked(trace).approve(by=Operator())

        question = asked(trace)

        assert (question.kind, question.tool) == ("unknown", "send")
        question.happened(by=Operator(), note="It was sent.")
        trace = see_through(trace, ledger)
        assert results(trace) == ["It was sent."]
        assert violations(trace, ledger.read()) == []


class TestAProcessThatStopsForAWhile:
    @pytest.mark.parametrize("where", ["after a commit", "before put", "after put"])
    def test_writes_nothing_for_a_run_that_another_has(self, mortals, ledger, where):
        said = plan([["put", {"what": "a"}], ["found", {"what": "x"}]], "Done.")
        trace = Clerk().enqueue(said)
        assert not mortals.do(trace.pk, where, signal.SIGSTOP)
        done = see_through(trace, ledger)
        rows = [*done.spans.values_list("pk")], Attempt.objects.count()

        mortals.wake()

        assert violations(trace, ledger.read()) == []
        assert rows == ([*done.spans.values_list("pk")], Attempt.objects.count())
        assert Group.objects.count() == 1
        assert DurableRun.objects.get(pk=trace.pk).token == 2


def drained(trace):
    """Have a worker leave a run once a tool lingers in it."""

    async def drain():
        worker = Worker(grace=0)
        task = asyncio.create_task(worker.work())
        while not LEDGER:  # noqa: ASYNC110 - the tool belongs to another loop
            await asyncio.sleep(0.01)
        worker.drain()
        await task

    LEDGER.clear()
    asyncio.run(drain())


class TestARunThatIsLeft:
    def test_keeps_what_it_has_asked(self, ledger):
        trace = Clerk().enqueue(plan([["pay", {"amount": 3}], ["linger", {}]], "Done."))

        drained(trace)

        assert trace.approvals.get().status == "pending"
        LEDGER.clear()

    def test_keeps_what_its_sub_agent_has_asked(self, ledger):
        inner = plan([["pay", {"amount": 3}]], "Sub.")
        said = plan([["clerk", {"message": inner}], ["linger", {}]], "Done.")
        trace = Lead().enqueue(said)

        drained(trace)

        child = trace.children.get()
        assert (child.status, child.approvals.get().status) == ("waiting", "pending")


class TestTheCheck:
    @pytest.fixture
    def warned(self):
        """Return what the check says of the tools that runs wait for."""

        def check():
            found = run_checks(databases=["default"], tags=["database"])
            return [each.msg for each in found if each.id == "mlango.W021"]

        return check

    def parked(self):
        Clerk().run(plan([["pay", {"amount": 3}]], "Paid."))

    def test_says_nothing_while_the_tools_are_as_they_were(self, warned):
        self.parked()

        assert warned() == []

    def test_warns_of_a_tool_that_has_changed(self, warned, release):
        self.parked()
        others = [each for each in Clerk._meta.tools if each.name != "pay"]
        release(Clerk, tools=[replace(pay, description="Pay at once."), *others])

        assert warned() == ["Runs wait for a decision about the tool 'pay', but it has changed."]

    def test_warns_of_a_tool_that_is_gone(self, warned, release):
        self.parked()
        release(Clerk, tools=[each for each in Clerk._meta.tools if each.name != "pay"])

        assert warned() == ["Runs wait for a decision about the tool 'pay', but it is gone."]

    def test_warns_of_an_agent_that_is_gone(self, warned):
        self.parked()
        Approval.objects.update(agent="crashing.Gone")

        assert warned() == [
            "Runs wait for a decision about the tool 'pay', but its agent is gone."
        ]


class TestWhatWasWrittenDown:
    def test_a_typed_answer_is_not_asked_for_again(self, mortals, ledger):
        for number in count(1):
            trace = Typed().enqueue(plan('{"total": 3}'))
            if mortals.do(trace.pk, number):
                break
            let_lapse(trace.pk)

            done = execute_now(trace.pk)

            assert done is None or done.output == Sum(total=3), number
            answers = [each for each in trace.spans.all() if "stop_reason" in each.attributes]
            assert len(answers) == 1, number

    def test_a_typed_answer_that_does_not_fit_is_objected_to(self, mortals, ledger):
        for number in count(1, 2):
            trace = Typed().enqueue(plan("three", '{"total": 3}'))
            if mortals.do(trace.pk, number):
                break
            let_lapse(trace.pk)

            done = execute_now(trace.pk)

            assert done is None or done.output == Sum(total=3), number

    def test_a_sub_agent_counts_its_events_on(self, mortals, ledger):
        inner = plan([["put", {"what": "a"}]], [["put", {"what": "b"}]], "Sub.")
        for number in count(1, EVERY):
            trace = Lead().enqueue(plan([["clerk", {"message": inner}]], "All."))
            lived = mortals.do(trace.pk, number)

            trace = see_through(trace, ledger)

            told = [each.describe() for row in trace.events.all() for each in row.told()]
            for run in {each["run"] for each in told}:
                numbers = [each["seq"] for each in told if each["run"] == run]
                assert numbers == [*range(len(numbers))], number
            if lived:
                break
