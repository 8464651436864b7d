"""Agents that are tools of other agents."""

import asyncio
from contextlib import aclosing
from decimal import Decimal

import pytest
from django.contrib.auth.models import Group, User
from django.db import transaction

from mlango.agents import (
    Agent,
    Context,
    Finished,
    Regex,
    Started,
    TextChunk,
    ToolCalled,
    ToolFinished,
    tool,
)
from mlango.agents.fields import CharField
from mlango.agents.providers import Completion, ScriptedProvider, Usage
from mlango.agents.providers.scripted import call
from mlango.core.limits import Limits
from mlango.core.signals import agent_finished
from mlango.exceptions import Misconfigured, Misused, ProviderUnavailable
from mlango.models import Trace

# Inside a test's transaction rows are written on the test's connection, else by the thread.
INLINE = pytest.param("inline", marks=pytest.mark.django_db)
WRITER = pytest.param("writer", marks=pytest.mark.django_db(transaction=True))
everywhere = pytest.mark.parametrize("where", [INLINE, WRITER])


class Priced(ScriptedProvider):
    """Is scripted, but not for free."""

    offline = False


def said(text="", calls=(), tokens=10):
    return Completion(
        text=text,
        tool_calls=list(calls),
        usage=Usage(input_tokens=tokens, output_tokens=tokens),
    )


def pair(lead_turns, child_turns, child_tools=(), **meta):
    """Return an agent with a sub-agent named Researcher, both scripted."""
    lead_options = {key: value for key, value in meta.items() if not key.startswith("child_")}
    child_options = {key[6:]: value for key, value in meta.items() if key.startswith("child_")}
    child = _agent("Researcher", "Finds things out.", child_turns, child_options, child_tools)
    return _agent("Support", "Helps.", lead_turns, {"subagents": [child], **lead_options})


def _agent(name, document, turns, options, tools=()):
    provider = turns if hasattr(turns, "astream") else ScriptedProvider(turns)
    meta = type("Meta", (), {"provider": provider, "app_label": "shop", "tools": tools, **options})
    return type(name, (Agent,), {"Meta": meta, "__doc__": document})


def ask(message="Look."):
    return call("researcher", message=message)


async def events_of(agent, message="hi", **options):
    async with aclosing(agent().astream(message, **options)) as stream:
        return [event async for event in stream]


# -- the tool ---------------------------------------------------------------------------------


def test_a_subagent_is_a_tool_with_one_message():
    agent = pair([], [])
    [made] = agent()._colleagues()
    assert made.name == "researcher"
    assert made.description == "Finds things out."
    schema = made.to_schema()["function"]["parameters"]
    assert list(schema["properties"]) == ["message"]
    assert schema["required"] == ["message"]


def test_a_class_that_needs_arguments_is_made_only_when_asked_for():
    class Writer(Agent):
        tone = CharField()

        class Meta:
            app_label = "shop"

    assert callable(Writer.as_tool)
    with pytest.raises(Misused, match="needs the field 'tone'"):
        Writer.as_tool()


def test_a_name_is_written_as_those_of_tools_are():
    agent = _agent("HTTPBillingDesk", "", [], {})
    made = agent.as_tool()
    assert made.name == "http_billing_desk"
    assert made.description == "Ask the agent HTTPBillingDesk."


def test_as_tool_takes_a_name_a_description_and_the_options_of_a_tool():
    made = _agent("Desk", "", [], {}).as_tool(
        name="ask", description="Ask.", permission="shop.ask", tags=["a"]
    )
    assert (made.name, made.description) == ("ask", "Ask.")
    assert (made.permission, made.tags) == ("shop.ask", ("a",))


def test_as_tool_of_an_instance_asks_that_instance():
    class Writer(Agent):
        tone = CharField(default="plain")

        class Meta:
            provider = ScriptedProvider([lambda request: request.system] * 2)
            app_label = "shop"

        def get_system(self):
            return f"Be {self.tone}."

    turns = [[call("formal", message="a"), call("writer", message="b")], "Done."]
    tools = [Writer(tone="formal").as_tool(name="formal"), Writer.as_tool()]
    run = _agent("Lead", "", turns, {"tracing": False}, tools)().run("hi")
    assert [each.content for each in run.tool_results] == ["Be formal.", "Be plain."]


@pytest.mark.parametrize("option", ["subagents", "handoffs"])
def test_what_is_no_agent_is_refused(option):
    with pytest.raises(Misconfigured, match=f"Bad.Meta.{option} holds 7, which is not an agent"):
        _agent("Bad", "", [], {option: [7]})
    with pytest.raises(Misconfigured, match="which is an abstract agent"):
        _agent("Bad", "", [], {option: [_agent("Base", "", [], {"abstract": True})]})


def test_a_subagent_named_like_a_tool_is_refused():
    @tool
    def researcher() -> str:
        """Search."""

    with pytest.raises(Misconfigured, match="two tools named 'researcher'"):
        _agent("Bad", "", [], {"subagents": [_agent("Researcher", "", [], {})]}, [researcher])


def test_a_budget_must_be_limits():
    with pytest.raises(Misconfigured, match=r"budget of as_tool\(\) must be Limits"):
        _agent("Desk", "", [], {}).as_tool(budget=5)


def test_a_label_may_name_an_agent_that_comes_later():
    lead = _agent("Early", "", [call("late", message="x"), "Done."], {"subagents": ["shop.Late"]})
    _agent("Late", "Comes later.", ["Here."], {"tracing": False})
    run = lead().run("hi")
    assert run.tool_results[0].content == "Here."


# -- what comes back --------------------------------------------------------------------------


@everywhere
def test_the_answer_of_a_subagent_is_the_result_of_the_call(where):
    run = pair([ask("Find it."), "Found."], ["It is there."])().run("hi")
    assert run.text == "Found."
    assert run.tool_results[0].content == "It is there."
    child = run.trace.children.get()
    assert run.tool_results[0].details == {
        "agent": "shop.Researcher",
        "trace": child.uuid,
        "status": "finished",
    }
    assert (child.agent, child.input, child.output) == (
        "shop.Researcher",
        "Find it.",
        "It is there.",
    )
    assert child.metadata == {"tool_call_id": run.tool_results[0].tool_call_id}


@everywhere
def test_in_async_code_too(where):
    run = asyncio.run(pair([ask(), "Found."], ["It is there."])().arun("hi"))
    assert run.text == "Found."
    assert run.trace.children.get().status == "finished"


@everywhere
def test_the_rows_of_both_fold_to_their_messages(where):
    @tool
    def look(where: str) -> str:
        """Look."""
        return f"nothing in {where}"

    agent = pair([ask(), "Found."], [call("look", where="the box"), "Nowhere."], [look])
    events = list(agent().stream("hi"))
    lead = events[-1].result
    [child] = [e.result for e in events if isinstance(e, Finished) and e.parent]
    assert lead.trace.messages == lead.messages
    assert child.trace.messages == child.messages
    assert child.trace.parent == lead.trace


def test_a_subagent_that_fails_is_a_failed_call():
    agent = pair(
        [ask(), "Sorry."],
        [ProviderUnavailable("out of order", retryable=False)],
        tracing=False,
        child_tracing=False,
    )
    run = agent().run("hi")
    result = run.tool_results[0]
    assert run.text == "Sorry."
    assert result.is_error
    assert result.content == "The agent shop.Researcher failed (error): out of order"
    assert result.details["status"] == "failed"


def test_a_subagent_that_stops_tells_why_and_what_it_had_said():
    turns = [said("Half way.", [call("look")]), "never"]

    @tool
    def look() -> str:
        """Look."""
        return "nothing"

    agent = pair(
        [ask(), "Sorry."], turns, [look], child_max_steps=1, tracing=False, child_tracing=False
    )
    result = agent().run("hi").tool_results[0]
    assert result.is_error
    assert "shop.Researcher stopped (max_steps): Stopped after 1 steps" in result.content
    assert result.content.endswith("It had said: Half way.")


def test_the_guardrails_of_a_subagent_hold_in_it():
    agent = pair(
        [ask("my secret"), ask("hello"), "Sorry."],
        ["the secret"],
        child_guardrails=[Regex("secret")],
        tracing=False,
        child_tracing=False,
    )
    events = list(agent().stream("hi"))
    results = [each.content for each in events[-1].result.tool_results]
    assert ["(guardrail)" in content for content in results] == [True, True]
    texts = [e.text for e in events if isinstance(e, TextChunk) and e.parent]
    assert texts == []


# -- events -----------------------------------------------------------------------------------


async def test_the_events_of_a_subagent_are_told_among_those_of_its_lead():
    agent = pair([ask(), "Found."], ["It is there."], tracing=False, child_tracing=False)
    events = await events_of(agent)

    lead = events[-1].run
    own = [event for event in events if event.run == lead]
    others = [event for event in events if event.run != lead]
    assert {event.parent for event in own} == {None}
    assert {event.parent for event in others} == {lead}
    assert [event.seq for event in own] == list(range(len(own)))
    assert [event.seq for event in others] == list(range(len(others)))
    assert isinstance(others[0], Started)
    assert isinstance(others[-1], Finished)
    between = events[events.index(others[0]) - 1], events[events.index(others[-1]) + 1]
    assert isinstance(between[0], ToolCalled)
    assert isinstance(between[1], ToolFinished)
    assert others[0].describe()["parent"] == lead


def test_a_plain_stream_tells_them_too():
    agent = pair([ask(), "Found."], ["It is there."], tracing=False, child_tracing=False)
    events = list(agent().stream("hi"))
    texts = [(e.parent is None, e.text) for e in events if isinstance(e, TextChunk)]
    assert "".join(text for own, text in texts if own) == "Found."
    assert "".join(text for own, text in texts if not own) == "It is there."
    assert isinstance(events[-1], Finished)
    assert events[-1].parent is None


def test_signals_are_sent_once_for_each_run():
    heard = []

    def hear(sender, result, **kwargs):
        heard.append((sender.__name__, result.text))

    agent_finished.connect(hear)
    try:
        pair([ask(), "Found."], ["There."], tracing=False, child_tracing=False)().run("hi")
    finally:
        agent_finished.disconnect(hear)
    assert heard == [("Researcher", "There."), ("Support", "Found.")]


async def test_subagents_of_one_step_run_side_by_side():
    arrived = []
    both = asyncio.Event()

    async def meet(request):
        arrived.append(request.last_text)
        if len(arrived) == 2:
            both.set()
        await both.wait()
        return request.last_text.upper()

    agent = pair(
        [[ask("a"), ask("b")], "Found."], [meet, meet], tracing=False, child_tracing=False
    )
    run = await agent().arun("hi")
    assert [each.content for each in run.tool_results] == ["A", "B"]


async def test_no_more_run_at_once_than_tools_may():
    running = []
    most = []

    async def answer(request):
        running.append(request)
        most.append(len(running))
        await asyncio.sleep(0)
        running.pop()
        return "ok"

    agent = pair(
        [[ask(str(n)) for n in range(5)], "Found."],
        [answer] * 5,
        max_parallel_tools=2,
        tracing=False,
        child_tracing=False,
    )
    await agent().arun("hi")
    assert max(most) == 2


async def test_a_waiting_lead_takes_no_place_from_the_tools_of_its_subagents():
    from mlango.core.slots import slots

    @tool
    async def look() -> str:
        """Look."""
        return f"{slots.taken} taken"

    agent = pair(
        [ask(), "Found."], [call("look"), "Ok."], [look], tracing=False, child_tracing=False
    )
    before = slots.taken
    events = await events_of(agent)
    [result] = [e.content for e in events if isinstance(e, ToolFinished) and e.name == "look"]
    assert result == f"{before + 1} taken"
    assert slots.taken == before


# -- who it works for -------------------------------------------------------------------------


async def test_a_subagent_works_for_the_same_user_and_state():
    seen = []

    @tool
    async def look(context: Context) -> str:
        """Look."""
        seen.append((context.user, context.request, context.session_id))
        context.state["seen"] = True
        return "ok"

    agent = pair(
        [ask(), "Found."], [call("look"), "Ok."], [look], tracing=False, child_tracing=False
    )
    state, anna = {}, User(pk=1, username="anna")
    await agent().arun("hi", user=anna, request=None, state=state)
    assert seen == [(anna, None, "")]
    assert state == {"seen": True}


@pytest.mark.django_db
def test_a_session_is_told_to_tools_but_its_turns_are_those_of_the_lead():
    seen = []

    @tool
    def look(context: Context) -> str:
        """Look."""
        seen.append(context.session_id)
        return "ok"

    agent = pair([ask(), "Found."], [call("look"), "Ok."], [look])
    run = agent().run("hi", session_id="s1")
    child = run.trace.children.get()
    assert seen == ["s1"]
    assert (child.session, child.session_key) == (None, "")


@pytest.mark.django_db(transaction=True)
def test_tools_of_a_subagent_see_the_transaction_of_the_caller():
    @tool
    def count() -> int:
        """Count the groups."""
        return Group.objects.filter(name="unsaved").count()

    @tool
    def add() -> str:
        """Add a group."""
        Group.objects.create(name="by the sub-agent")
        return "added"

    agent = pair([ask(), "Found."], [call("count"), call("add"), "Ok."], [count, add])

    with pytest.raises(ZeroDivisionError), transaction.atomic():
        Group.objects.create(name="unsaved")
        events = list(agent().stream("hi"))
        [counted] = [
            e.content for e in events if isinstance(e, ToolFinished) and e.name == "count"
        ]
        assert counted == "1"
        raise ZeroDivisionError
    assert not Group.objects.filter(name="by the sub-agent").exists()
    assert not Trace.objects.exists()


def test_a_run_with_an_offline_provider_reaches_no_other():
    network = Priced(["from the network"])
    agent = pair(["never"], network, tracing=False, child_tracing=False)
    script = ScriptedProvider([ask(), "from the script", "Found."])
    run = agent().run("hi", provider=script)
    assert run.tool_results[0].content == "from the script"
    assert network.calls == []


# -- what it spends ---------------------------------------------------------------------------


@everywhere
def test_what_a_subagent_uses_is_in_the_usage_of_its_lead(where, settings):
    settings.MLANGO = {
        "DEFAULT_PROVIDER": "echo",
        "PRICES": {"scripted/one": {"input": 1_000_000, "output": 0}},
    }
    agent = pair(
        Priced([said(calls=[ask()]), said("Found.")]),
        Priced([said("There.")]),
        model="scripted/one",
        child_model="scripted/one",
    )
    run = agent().run("hi")
    child = run.trace.children.get()
    assert (child.input_tokens, child.output_tokens) == (10, 10)
    assert (run.usage.input_tokens, run.usage.output_tokens) == (30, 30)
    assert run.trace.usage == run.usage
    assert child.cost == Decimal(10)
    assert run.cost == run.trace.cost == Decimal(30)


@everywhere
def test_a_subagent_stops_when_the_limits_of_its_lead_are_reached(where):
    @tool
    def look() -> str:
        """Look."""
        return "nothing"

    turns = [said(calls=[call("look")]) for _ in range(10)]
    agent = pair([said(calls=[ask()]), "never"], turns, [look], limits=Limits(max_tokens=75))
    run = agent().run("hi")
    child = run.trace.children.get()
    assert (run.status, run.stop_reason) == ("stopped", "budget_exceeded")
    assert (child.status, child.stop_reason) == ("stopped", "budget_exceeded")
    assert child.steps == 3
    assert run.usage.total_tokens == 80


def test_a_call_that_is_the_last_allowed_is_made_to_its_end():
    @tool
    def look() -> str:
        """Look."""
        return "nothing"

    agent = pair(
        [ask(), "Found."],
        [call("look"), call("look"), "There."],
        [look],
        limits=Limits(max_tool_calls=1, max_steps=2),
        tracing=False,
        child_tracing=False,
    )
    run = agent().run("hi")
    assert (run.text, run.tool_results[0].content) == ("Found.", "There.")


def test_a_budget_limits_each_call():
    @tool
    def look() -> str:
        """Look."""
        return "nothing"

    turns = [said(calls=[call("look")]) for _ in range(10)]
    child = _agent("Researcher", "", turns, {"tracing": False}, [look])
    researcher = child.as_tool(budget=Limits(max_tokens=40))
    lead = _agent("Lead", "", [ask(), ask(), "Done."], {"tracing": False}, [researcher])
    run = lead().run("hi")
    assert run.text == "Done."
    assert ["budget_exceeded" in each.content for each in run.tool_results] == [True, True]
    assert run.usage.total_tokens > 80


# -- how deep ---------------------------------------------------------------------------------


def nested(depth):
    inner = _agent("Inner", "", ["Deep."], {"tracing": False})
    middle = _agent(
        "Middle", "", [call("inner", message="x"), "Ok."], {"subagents": [inner], "tracing": False}
    )
    return _agent(
        "Outer",
        "",
        [call("middle", message="x"), "Done."],
        {"subagents": [middle], "tracing": False, "max_subagent_depth": depth},
    )


async def test_subagents_are_not_nested_deeper_than_the_outermost_allows():
    events = await events_of(nested(1))
    [refused] = [e for e in events if isinstance(e, ToolFinished) and e.name == "inner"]
    assert refused.is_error
    assert refused.content == (
        "Sub-agents of shop.Outer may be nested 1 deep (max_subagent_depth). Do without this one."
    )


async def test_they_are_nested_where_all_allow_it():
    events = await events_of(nested(2))
    started = [event for event in events if isinstance(event, Started)]
    assert [event.agent for event in started] == ["shop.Outer", "shop.Middle", "shop.Inner"]
    assert [event.parent for event in started] == [None, started[0].run, started[1].run]
    assert events[-1].result.ok


# -- how it ends ------------------------------------------------------------------------------


@everywhere
@pytest.mark.parametrize("way", ["abort", "leave"])
def test_a_subagent_ends_with_its_lead(where, way):
    closed, events = [], []

    async def hang(request):
        try:
            await asyncio.Event().wait()
        finally:
            closed.append(True)

    async def read():
        async with aclosing(pair([ask(), "never"], [hang])().astream("hi")) as stream:
            async for event in stream:
                events.append(event)
                if event.kind == "thinking" and event.parent:
                    if way == "leave":
                        break
                    stream.abort()

    asyncio.run(read())
    lead = Trace.objects.get(parent=None)
    child = lead.children.get()
    assert closed == [True]
    assert (lead.status, child.status) == ("cancelled", "cancelled")
    assert child.ended_at <= lead.ended_at
    if way == "abort":
        *_, last_of_child, last = [e for e in events if isinstance(e, Finished)]
        assert (last_of_child.run, last_of_child.result.status) == (child.uuid, "cancelled")
        assert last is events[-1]


@everywhere
def test_leaving_a_plain_stream_stores_both(where):
    async def hang(request):
        await asyncio.Event().wait()

    with pair([ask(), "never"], [hang])().stream("hi") as stream:
        for event in stream:
            if event.kind == "thinking" and event.parent:
                break
    assert sorted(Trace.objects.values_list("status", flat=True)) == ["cancelled", "cancelled"]


@everywhere
def test_a_subagent_ends_when_the_time_of_its_lead_is_up(where, settings):
    settings.MLANGO = {"DEFAULT_PROVIDER": "echo", "AGENT_TIMEOUT": 0.05, "TOOL_TIMEOUT": 0.01}

    async def hang(request):
        await asyncio.Event().wait()

    run = pair([ask(), "never"], [hang])().run("hi")
    assert run.stop_reason == "timeout"
    assert run.trace.children.get().ended_at is not None


async def test_the_files_of_a_subagent_are_those_of_its_lead():
    @tool
    async def draw(context: Context) -> str:
        """Draw."""
        context.artifact(b"png", "image/png", "a.png")
        return "drawn"

    agent = pair(
        [ask(), "Found."], [call("draw"), "Ok."], [draw], tracing=False, child_tracing=False
    )
    run = await agent().arun("hi")
    assert [artifact.name for artifact in run.artifacts] == ["a.png"]
