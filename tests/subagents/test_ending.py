"""How runs of several agents end together, and what holds for all of them."""

import asyncio
import json
import threading
from dataclasses import dataclass

import pytest
from django.contrib.auth import get_user_model

from mlango.agents import Agent, Context, Finished, ToolFinished, tool
from mlango.agents.providers.scripted import call
from mlango.core.limits import Limits
from mlango.models import Approval, Trace
from tests.subagents.test_resume import pay
from tests.subagents.test_subagents import Priced, _agent, ask, everywhere, pair, said


@pytest.fixture
def ann():
    return get_user_model().objects.create_user("ann")


def two(first, second, turns=None):
    """Return an agent that asks two sub-agents in one step."""
    turns = turns or [[call("first", message="a"), call("second", message="b")], "Done."]
    agents = [_agent("First", "", *first), _agent("Second", "", *second)]
    return _agent("Lead", "", turns, {"subagents": agents})


async def hang(request):
    await asyncio.Event().wait()


@everywhere
def test_what_one_waits_for_is_given_up_when_the_lead_is_stopped(where, ann):
    agent = two([[call("pay", amount=1)], {}, [pay]], [[hang], {}])
    with agent().stream("hi", user=ann) as stream:
        for event in stream:
            waits = isinstance(event, Finished) and event.result.status == "waiting"
            if waits and event.parent:
                stream.abort()
        lead = stream.run
    assert lead.status == "cancelled"
    statuses = dict(lead.trace.children.values_list("agent", "status"))
    # The second may not have been started when the first already waited.
    assert statuses["shop.First"] == "cancelled"
    assert set(statuses.values()) == {"cancelled"}
    assert Approval.objects.get().status == "expired"


@everywhere
def test_the_rows_of_a_stopped_lead_fold_to_its_messages(where):
    with pair([ask(), "never"], [hang])().stream("hi") as stream:
        for event in stream:
            if event.kind == "thinking" and event.parent:
                stream.abort()
        lead = stream.run
    assert lead.trace.messages == lead.messages
    assert [message["role"] for message in lead.messages] == ["user", "assistant", "tool"]


@everywhere
def test_a_blocking_tool_of_a_subagent_can_tell_that_it_is_over(where):
    ended, a_moment = threading.Event(), threading.Event()

    @tool(thread_sensitive=False)
    def work(context: Context) -> str:
        """Work until told to stop."""
        context.progress("working")
        while not context.cancelled:
            a_moment.wait(0.001)
        ended.set()
        return "over"

    agent = pair([ask(), "never"], [call("work"), "never"], [work])
    with agent().stream("hi") as stream:
        for event in stream:
            if event.kind == "tool_progress":
                stream.abort()
            elif event.kind == "tool_finished" and event.name == "researcher":
                assert event.error_type == "cancelled"
    assert stream.run.status == "cancelled"
    assert ended.wait(10)


@pytest.mark.django_db
def test_a_run_that_leaves_no_trace_leaves_none_of_its_subagents():
    run = pair([ask(), "Found."], ["There."], tracing=False)().run("hi")
    assert run.text == "Found."
    assert not Trace.objects.exists()


@pytest.mark.django_db
def test_a_trace_without_content_has_none_in_its_children():
    run = pair([ask("secret"), "Found."], ["There."], capture_content=False)().run("hi")
    child = run.trace.children.get()
    assert (child.input, child.output, child.opening_json) == ("", "", "")


@pytest.mark.django_db
def test_a_question_leads_to_the_run_that_is_to_go_on(ann):
    inner = _agent("Inner", "", [call("pay", amount=1)], {}, [pay])
    middle = _agent("Middle", "", [call("inner", message="x")], {"subagents": [inner]})
    options = {"subagents": [middle], "max_subagent_depth": 2}
    run = _agent("Outer", "", [call("middle", message="x")], options)().run("hi", user=ann)
    assert run.status == "waiting"
    assert Approval.objects.get().trace.root == run.trace
    assert run.trace.root == run.trace


class Dear(Priced):
    """Has no price."""

    name = "dear"


def test_a_limit_of_the_cost_refuses_a_subagent_without_a_price():
    child = Dear(["never"])
    agent = pair(
        [ask(), "Sorry."],
        child,
        limits=Limits(max_cost_usd=1),
        tracing=False,
        child_tracing=False,
        child_disclose_errors=True,
        child_model="none/such",
    )
    run = agent().run("hi")
    assert run.text == "Sorry."
    assert "The price of dear/none/such is unknown" in run.tool_results[0].content
    assert child.calls == []


def test_and_a_handoff_to_one():
    billing = _agent("Billing", "", Dear(["never"]), {"model": "none/such"})
    options = {"handoffs": [billing], "limits": Limits(max_cost_usd=1), "tracing": False}
    agent = _agent("Desk", "", [call("transfer_to_billing")], options)
    run = agent().run("hi", raise_on_error=False)
    assert run.status == "failed"


def test_a_typed_answer_is_read_as_json():
    @dataclass
    class Place:
        name: str
        page: int

    agent = pair(
        [ask(), "Found."],
        ['{"name": "box", "page": 7}'],
        child_output=Place,
        tracing=False,
        child_tracing=False,
    )
    run = agent().run("hi")
    assert json.loads(run.tool_results[0].content) == {"name": "box", "page": 7}


def test_a_list_of_texts_too():
    agent = pair(
        [ask(), "Found."],
        ['["a", "b"]'],
        child_output=list[str],
        tracing=False,
        child_tracing=False,
    )
    run = agent().run("hi")
    assert json.loads(run.tool_results[0].content) == ["a", "b"]


def test_a_subagent_that_cannot_begin_is_a_failed_call():
    class Broken(Agent):
        class Meta:
            app_label = "shop"
            tracing = False

        def get_system(self):
            raise ZeroDivisionError

    turns = [call("broken", message="x"), "Sorry."]
    run = _agent("Lead", "", turns, {"subagents": [Broken], "tracing": False})().run("hi")
    assert run.text == "Sorry."
    assert "shop.Broken failed (error): The run failed with ZeroDivisionError" in (
        run.tool_results[0].content
    )


def test_a_summary_names_the_tools_that_other_agents_bring():
    billing = _agent("Billing", "", [], {})
    agent = _agent("Desk", "", [], {"subagents": ["shop.Later"], "handoffs": [billing]})
    assert agent().summary()["tools"] == ["later", "transfer_to_billing"]


@pytest.mark.django_db(transaction=True)
def test_many_subagents_side_by_side_are_all_stored():
    async def answer(request):
        await asyncio.sleep(0)
        return said(request.last_text)

    turns = [[ask(str(number)) for number in range(20)], "Done."]
    run = asyncio.run(pair(turns, [answer] * 20)().arun("hi"))
    assert [each.content for each in run.tool_results] == [str(number) for number in range(20)]
    assert run.trace.children.filter(status="finished").count() == 20
    assert run.usage.input_tokens >= 200


async def test_each_answer_belongs_to_its_call():
    gates = {"a": asyncio.Event(), "b": asyncio.Event()}

    async def answer(request):
        if request.last_text == "a":
            await gates["b"].wait()
        gates[request.last_text].set()
        return request.last_text.upper()

    agent = pair(
        [[ask("a"), ask("b")], "Done."], [answer, answer], tracing=False, child_tracing=False
    )
    events = [event async for event in agent().astream("hi")]
    told = [e.content for e in events if isinstance(e, ToolFinished) and e.parent is None]
    assert told == ["B", "A"]
    assert [each.content for each in events[-1].result.tool_results] == ["A", "B"]
