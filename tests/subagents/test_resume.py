"""Runs of several agents that wait, and go on."""

import asyncio

import pytest
from django.contrib.auth import get_user_model

from mlango.agents import ApprovalRequested, Started, tool
from mlango.agents.providers import ScriptedProvider
from mlango.agents.providers.scripted import call
from mlango.models import Approval, Trace
from tests.subagents.test_subagents import _agent, ask, pair, said

pytestmark = pytest.mark.django_db(transaction=True)

paid = []


@tool(approval=True)
def pay(amount: int) -> str:
    """Pay."""
    paid.append(amount)
    return f"paid {amount}"


@pytest.fixture(autouse=True)
def _nothing_paid():
    paid.clear()


@pytest.fixture
def ann():
    return get_user_model().objects.create_user("ann")


def support(**options):
    return pair(
        [said(calls=[ask("Pay 5.")]), said("All done.")],
        [said(calls=[call("pay", amount=5)]), said("It is paid.")],
        [pay],
        **options,
    )


def decide(ann):
    for row in Approval.objects.filter(status="pending"):
        row.approve(by=ann)


def test_a_lead_waits_for_what_its_subagent_waits_for(ann):
    run = support()().run("hi", user=ann)
    row = Approval.objects.get()
    child = run.trace.children.get()
    assert (run.status, run.stop_reason) == ("waiting", "awaiting_approval")
    assert child.status == "waiting"
    assert row.trace == child
    assert [each["approval"] for each in run.approvals] == [row.uuid]
    assert paid == []


def test_the_event_of_the_question_is_told_by_the_lead(ann):
    events = list(support()().stream("hi", user=ann))
    [asked] = [event for event in events if isinstance(event, ApprovalRequested)]
    assert asked.parent == events[-1].run
    assert asked.arguments == {"amount": 5}


@pytest.mark.parametrize(
    "go_on",
    [
        lambda agent, run: agent.resume(run),
        lambda agent, run: asyncio.run(agent.aresume(run)),
        lambda agent, run: list(agent.resume_stream(run))[-1].result,
    ],
    ids=["sync", "async", "stream"],
)
def test_a_lead_goes_on_and_its_subagent_with_it(ann, go_on):
    agent = support()()
    waiting = agent.run("hi", user=ann)
    decide(ann)

    run = go_on(agent, waiting)

    assert (run.status, run.text) == ("finished", "All done.")
    assert run.trace_uuid == waiting.trace_uuid
    assert run.tool_results[0].content == "It is paid."
    assert paid == [5]
    child = run.trace.children.get()
    assert (child.status, child.output, child.steps) == ("finished", "It is paid.", 2)
    assert run.trace.messages == run.messages
    assert run.usage.total_tokens == run.trace.usage.total_tokens == 80
    assert child.usage.total_tokens == 40


def test_a_lead_goes_on_waiting_until_it_is_decided(ann):
    agent = support()()
    waiting = agent.run("hi", user=ann)
    again = agent.resume(waiting)
    assert again.status == "waiting"
    assert Trace.objects.count() == 2
    decide(ann)
    assert agent.resume(again).text == "All done."


def test_a_refusal_reaches_the_subagent(ann):
    agent = support()()
    waiting = agent.run("hi", user=ann)
    Approval.objects.get().reject(by=ann, reason="Too much.")
    run = agent.resume(waiting)
    assert run.text == "All done."
    assert paid == []
    assert "Too much." in run.trace.children.get().messages[-2]["content"]


def test_a_subagent_that_went_on_alone_is_not_asked_again(ann):
    agent = support()
    waiting = agent().run("hi", user=ann)
    decide(ann)
    researcher = agent._meta.subagents[0]()
    researcher.resume(waiting.trace.children.get())
    run = agent().resume(waiting)
    assert run.tool_results[0].content == "It is paid."
    assert Trace.objects.count() == 2


def test_of_two_subagents_only_the_one_that_waits_goes_on(ann):
    clerk = _agent("Clerk", "", ["Filed."], {})
    researcher = support()._meta.subagents[0]
    researcher._meta.provider.turns[:] = [call("pay", amount=5), "It is paid."]
    turns = [[ask("Pay 5."), call("clerk", message="File it.")], "All done."]
    agent = _agent("Lead", "", turns, {"subagents": [researcher, clerk]})()
    waiting = agent.run("hi", user=ann)
    decide(ann)
    events = list(agent.resume_stream(waiting))
    assert [e.agent for e in events if isinstance(e, Started)] == ["shop.Lead", "shop.Researcher"]
    results = {each.name: each.content for each in events[-1].result.tool_results}
    assert results == {"researcher": "It is paid.", "clerk": "Filed."}


def test_code_that_decides_for_the_lead_decides_for_its_subagents(ann):
    asked = []

    def approve(request):
        asked.append(request["agent"])
        return True

    run = support()().run("hi", user=ann, approve=approve)
    assert run.text == "All done."
    assert (asked, paid) == (["shop.Researcher"], [5])


class TestHandoffs:
    def desk(self, turns, *, billing=(), tools=()):
        other = _agent("Billing", "", billing, {"system": "Pay."}, [pay])
        return _agent("Desk", "", turns, {"handoffs": [other], "system": "Greet."}, tools)()

    def test_a_run_goes_on_as_the_agent_that_had_it_last(self, ann):
        billing = ScriptedProvider([call("pay", amount=5), "It is paid."])
        agent = self.desk([call("transfer_to_billing")], billing=billing)
        waiting = agent.run("hi", user=ann)
        assert waiting.status == "waiting"
        decide(ann)
        run = agent.resume(waiting)
        assert (run.text, run.handoffs) == ("It is paid.", ["shop.Billing"])
        assert paid == [5]
        assert billing.last_call.system == "Pay."
        assert run.trace.messages == run.messages

    def test_calls_of_the_first_agent_are_answered_before_the_other_goes_on(self, ann):
        billing = ScriptedProvider(["Goodbye."])
        turns = [[call("pay", amount=7), call("transfer_to_billing")]]
        agent = self.desk(turns, billing=billing, tools=[pay])
        waiting = agent.run("hi", user=ann)
        assert (waiting.status, waiting.handoffs) == ("waiting", [])
        decide(ann)
        run = agent.resume(waiting)
        assert (run.text, run.handoffs) == ("Goodbye.", ["shop.Billing"])
        assert paid == [7]
        assert billing.last_call.system == "Pay."
