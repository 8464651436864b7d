"""Runs that go on as another agent."""

from contextlib import aclosing

from mlango.agents import (
    Agent,
    Finished,
    HandedOff,
    Regex,
    Started,
    ToolFinished,
    allow,
    deny,
    tool,
)
from mlango.agents.providers import ScriptedProvider
from mlango.agents.providers.scripted import call
from mlango.core.limits import Limits
from mlango.models import Trace
from tests.subagents.test_subagents import Priced, _agent, everywhere, said

HELLO = "I want my money back."


def desk(turns, billing_turns, tools=(), billing_tools=(), **options):
    """Return an agent that may hand over to one named Billing."""
    lead = {key: value for key, value in options.items() if not key.startswith("billing_")}
    other = {key[8:]: value for key, value in options.items() if key.startswith("billing_")}
    billing = _agent("Billing", "Knows about money.", billing_turns, other, billing_tools)
    return _agent("Desk", "Greets.", turns, {"handoffs": [billing], **lead}, tools)


def transfer(name="billing"):
    return call(f"transfer_to_{name}")


async def events_of(agent, message=HELLO, **options):
    async with aclosing(agent().astream(message, **options)) as stream:
        return [event async for event in stream]


def test_a_handoff_is_a_tool_without_parameters():
    [made] = desk([], [])()._colleagues()
    assert made.name == "transfer_to_billing"
    assert made.description.endswith("in your place. Knows about money.")
    assert made.to_schema()["function"]["parameters"]["properties"] == {}


@everywhere
def test_the_rest_of_a_run_goes_on_as_the_other_agent(where):
    provider = ScriptedProvider(["Here is your money."])
    agent = desk(
        [transfer()], provider, system="Greet.", billing_system="Pay.", billing_model="money"
    )
    run = agent().run(HELLO)
    [request] = provider.calls
    assert run.text == "Here is your money."
    assert (run.agent, run.last_agent, run.handoffs) == (
        "shop.Desk",
        "shop.Billing",
        ["shop.Billing"],
    )
    assert run.describe()["last_agent"] == "shop.Billing"
    assert (request.system, request.model) == ("Pay.", "money")
    assert [message["role"] for message in request.messages] == ["user", "assistant", "tool"]
    assert "goes on with the conversation" in request.messages[-1]["content"]


@everywhere
def test_one_trace_tells_both_parts_and_folds_to_the_messages(where):
    run = desk([transfer()], ["Here."])().run(HELLO)
    trace = Trace.objects.get()
    assert trace.messages == run.messages
    assert (trace.agent, trace.status) == ("shop.Desk", "finished")
    kinds = [(span.kind, span.name) for span in trace.spans]
    assert kinds == [
        ("llm", ""),
        ("tool", "transfer_to_billing"),
        ("agent", "handoff"),
        ("llm", ""),
    ]
    assert trace.spans.get(name="handoff").input == {"from": "shop.Desk", "to": "shop.Billing"}


async def test_a_handoff_is_told():
    events = await events_of(
        desk([transfer()], ["Here."], tracing=False),
    )
    [told] = [event for event in events if isinstance(event, HandedOff)]
    assert (told.from_agent, told.to_agent) == ("shop.Desk", "shop.Billing")
    assert told.describe()["kind"] == "handed_off"
    assert [event.seq for event in events] == list(range(len(events)))
    assert len([event for event in events if isinstance(event, Started | Finished)]) == 2


def test_the_other_agent_has_its_own_tools():
    @tool
    def pay() -> str:
        """Pay."""
        return "paid"

    @tool
    def greet() -> str:
        """Greet."""
        return "hello"

    turns = [[call("pay"), call("greet")], "Done."]
    run = desk([transfer()], turns, [greet], [pay], tracing=False)().run(HELLO)
    assert [each.content[:8] for each in run.tool_results[1:]] == ["paid", "There is"]


def test_calls_of_the_same_step_are_still_those_of_the_first_agent():
    done = []

    @tool
    def delete() -> str:
        """Delete everything."""
        done.append(True)
        return "deleted"

    agent = desk(
        [[transfer(), call("delete")]],
        ["Done."],
        [delete],
        permissions=[deny("delete"), allow("*")],
        tracing=False,
    )
    run = agent().run(HELLO)
    assert run.text == "Done."
    assert done == []
    assert "may not be called" in run.tool_results[1].content


def test_two_handoffs_of_one_step_are_one():
    other = _agent("Other", "", ["never"], {})
    billing = _agent("Billing", "", ["Here."], {})
    agent = _agent(
        "Desk",
        "",
        [[transfer(), transfer("other")]],
        {"handoffs": [billing, other], "tracing": False},
    )
    run = agent().run(HELLO)
    assert run.text == "Here."
    assert run.handoffs == ["shop.Billing"]
    assert run.tool_results[1].is_error


async def test_agents_that_hand_over_to_each_other_end():
    there = [transfer("pong") for _ in range(3)]
    back = [transfer("ping") for _ in range(3)]
    ping = _agent("Ping", "", [*there, "Enough."], {"handoffs": ["shop.Pong"], "tracing": False})
    _agent("Pong", "", [*back, "Enough."], {"handoffs": ["shop.Ping"], "tracing": False})
    events = await events_of(ping)
    run = events[-1].result
    assert run.ok
    assert run.handoffs == ["shop.Pong", "shop.Ping", "shop.Pong", "shop.Ping", "shop.Pong"]
    [refused] = [e for e in events if isinstance(e, ToolFinished) and e.is_error]
    assert "handed over 5 times, which is the most" in refused.content


def test_agents_may_share_the_list_of_those_they_hand_over_to():
    both = ["shop.North", "shop.South"]
    north = _agent("North", "", [], {"handoffs": both})
    _agent("South", "", [], {"handoffs": both})
    assert north().summary()["tools"] == ["transfer_to_south"]
    assert [each.name for each in north()._colleagues()] == ["transfer_to_south"]


def test_the_limits_of_a_run_hold_after_a_handoff():
    turns = [said(calls=[call("pay")]) for _ in range(9)]

    @tool
    def pay() -> str:
        """Pay."""
        return "paid"

    agent = desk(
        [said(calls=[transfer()])],
        turns,
        billing_tools=[pay],
        limits=Limits(max_tokens=50),
        tracing=False,
    )
    run = agent().run(HELLO)
    assert (run.stop_reason, run.steps) == ("budget_exceeded", 3)


def test_the_controls_of_the_other_agent_hold_from_then_on():
    @tool
    def pay() -> str:
        """Pay."""
        return "paid"

    agent = desk(
        [transfer()],
        [call("pay"), "Sorry."],
        billing_tools=[pay],
        billing_permissions=[deny("pay")],
        tracing=False,
    )
    run = agent().run(HELLO)
    assert run.text == "Sorry."
    assert run.tool_results[1].is_error


def test_the_guardrails_of_the_other_agent_hold_from_then_on():
    agent = desk(
        [transfer()],
        ["a secret"],
        billing_guardrails=[Regex("secret", on=["output"])],
        tracing=False,
    )
    run = agent().run(HELLO)
    assert (run.stop_reason, run.text) == ("guardrail", "")


def test_those_of_the_first_do_not():
    agent = desk(
        [transfer()], ["a secret"], guardrails=[Regex("secret", on=["output"])], tracing=False
    )
    assert agent().run(HELLO).text == "a secret"


def test_the_steps_of_both_count_as_one_run():
    run = desk([transfer()], ["Here."], max_steps=1, tracing=False)().run(HELLO)
    assert (run.status, run.stop_reason) == ("stopped", "max_steps")


async def test_who_may_not_use_the_other_agent_is_not_handed_over():
    agent = desk([transfer(), "Sorry."], ["never"], billing_permission="shop.bill", tracing=False)
    run = await agent().arun(HELLO)
    assert run.text == "Sorry."
    assert run.tool_results[0].content == "You may not call the tool 'transfer_to_billing'."


def test_a_dynamic_agent_takes_over_too():
    script = ScriptedProvider(["Here."])

    class Dynamic(Agent):
        class Meta:
            app_label = "shop"
            provider = script

        async def get_system(self):
            return "Be dynamic."

    agent = _agent("Desk", "", [transfer("dynamic")], {"handoffs": [Dynamic], "tracing": False})
    assert agent().run(HELLO).text == "Here."
    assert script.last_call.system == "Be dynamic."


def test_a_run_with_an_offline_provider_reaches_no_other():
    network = Priced(["from the network"])
    script = ScriptedProvider([transfer(), "from the script"])
    run = desk(["never"], network, tracing=False)().run(HELLO, provider=script)
    assert run.text == "from the script"
    assert network.calls == []


def test_a_subagent_may_hand_over():
    billing = _agent("Billing", "", ["Here."], {"tracing": False})
    clerk = _agent("Clerk", "", [transfer()], {"handoffs": [billing], "tracing": False})
    lead = _agent(
        "Lead", "", [call("clerk", message="x"), "Ok."], {"subagents": [clerk], "tracing": False}
    )
    run = lead().run(HELLO)
    assert run.tool_results[0].content == "Here."
    assert run.handoffs == []
