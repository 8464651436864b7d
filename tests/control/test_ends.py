"""However and wherever a run ends, its history is one that models take, and the session goes on.

Each way to end is tried at each of eight steps. What the next message sends is read as OpenAI
and as Anthropic read it.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from asgiref.sync import async_to_sync

from mlango.agents import Agent, BufferMemory, Halt, Hooks, Limits, MetastoreMemory, Regex, tool
from mlango.agents.providers import (
    Completion,
    LiteLLMProvider,
    OpenAICompatibleProvider,
    ScriptedProvider,
    ToolCall,
)
from mlango.exceptions import ProviderUnavailable
from mlango.models.approval import Operator
from tests.fake_model import FakeModel, anthropic, says, text
from tests.wires import assert_anthropic_takes, assert_openai_takes, assert_sendable

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.filterwarnings("ignore"),  # other people's warnings
]

STEPS = 8
NEXT = "And now?"
BEGINNING = {"role": "user", "content": "hi"}


@tool
async def look_up(order: int) -> str:
    """Look an order up."""
    return f"order {order}"


@tool
def count(order: int) -> str:
    """Count an order's lines, of which there are none to tell of."""
    return ""


@tool(approval=True)
def pay(order: int) -> str:
    """Pay an order."""
    return "paid"


@tool
async def hang() -> str:
    """Take for ever."""
    await asyncio.Event().wait()


class Clerk(Agent):
    """Looks after orders."""

    class Meta:
        app_label = "ends"
        tools = [look_up, count, pay, hang]
        max_steps = None
        abstract = True


class InProcess(Clerk):
    class Meta:
        memory = BufferMemory(k=200)


class InTraces(Clerk):
    class Meta:
        memory = MetastoreMemory()


def turn(step):
    """Return calls side by side: blocking or not, known or not, with any name and any id."""
    calls = [("look_up", "a"), ("count", "b"), ("look it up!", "functions.c:0"), ("look_up", "")]
    # What is said before them is often nothing but space.
    said = f"Step {step}." if step % 2 else "\n\n"
    made = [
        ToolCall(f"{call_id}{step}" if call_id else "", name, {"order": step})
        for name, call_id in calls
    ]
    return Completion(said, [*made, ToolCall("again", "look_up", {"order": step})])


CALLS = len(turn(1).tool_calls)


def no_options(at):
    return {}


@dataclass
class End:
    """A way to end at a step: what the model says there, or what is done, asked for or hooked."""

    status: str
    says: Any = None
    does: dict[str, str] = field(default_factory=dict)  # event: the stream's method, or "leave"
    options: Callable[[int], dict[str, Any]] = no_options
    raises: Exception | None = None  # once, before the model is asked
    meta: dict[str, Any] = field(default_factory=dict)
    is_remembered: bool = True

    def turns(self, at):
        """Return what the model says: calls until the step, and for ever if that is no end."""
        if self.says is None:
            return [turn(step) for step in range(1, 20)]
        ending = self.says if isinstance(self.says, list) else [self.says]
        return [turn(step) for step in range(1, at)] + ending

    def agent(self, cls, at):
        """Return the agent, with what ends it."""
        errors = [self.raises]

        def before_model(messages, ctx):
            if ctx.step == at - 1 and errors:
                raise errors.pop()

        meta = dict(self.meta)
        if self.raises is not None:
            meta["hooks"] = [Hooks(before_model=before_model)]
        return type(cls.__name__, (cls,), {"Meta": type("Meta", (), meta)})() if meta else cls()


down = ProviderUnavailable("down", retryable=False)
cut = Completion("", [ToolCall("cut", "look_up", '{"order": ')], stop_reason="max_tokens")
ENDS = {
    # somebody stops it
    "stopped before the model is asked": End("cancelled", does={"thinking": "abort"}),
    "stopped while the model speaks": End("cancelled", does={"text_chunk": "abort"}),
    "stopped while the model calls": End("cancelled", does={"tool_call_chunk": "abort"}),
    "stopped as calls begin": End("cancelled", does={"tool_called": "abort"}),
    "stopped between calls": End("cancelled", does={"tool_finished": "abort"}),
    "stopped as the step ends": End("cancelled", does={"step_finished": "abort"}),
    "stopped in a call": End(
        "cancelled",
        [[ToolCall("h1", "look_up", {"order": 1}), ToolCall("h2", "hang", {})]],
        does={"tool_finished": "abort"},
    ),
    "left while the model speaks": End("cancelled", does={"text_chunk": "leave"}),
    "left between calls": End("cancelled", does={"tool_finished": "leave"}),
    # a limit
    "steps of the agent": End("stopped", options=lambda at: {"max_steps": at}),
    "limit of steps": End("stopped", options=lambda at: {"limits": Limits(max_steps=at)}),
    "limit of calls": End(
        "stopped", options=lambda at: {"limits": Limits(max_tool_calls=CALLS * at - 2)}
    ),
    "limit of time": End(
        "stopped",
        [[ToolCall("h1", "look_up", {"order": 1}), ToolCall("h2", "hang", {})]],
        options=lambda at: {"limits": Limits(max_duration=0.3)},
    ),
    # a control
    "guardrail of the answer": End(
        "stopped",
        "This is forbidden.",
        meta={"guardrails": [Regex(pattern="forbidden")]},
        is_remembered=False,
    ),
    "hook that halts": End("stopped", raises=Halt("enough", "Enough.")),
    "hook that fails": End("failed", raises=ValueError("out"), is_remembered=False),
    # the model
    "refusal": End("stopped", Completion("", stop_reason="refusal"), is_remembered=False),
    "content filter": End(
        "stopped", Completion("So", stop_reason="content_filter"), is_remembered=False
    ),
    "cut answer": End("stopped", Completion("So", stop_reason="max_tokens")),
    "cut before a word": End("stopped", Completion("", stop_reason="max_tokens")),
    "cut calls": End("stopped", [cut] * 3),
    "failure": End("failed", down, is_remembered=False),
    "failure after a word": End(
        "failed",
        {"text": "So it", "error": ProviderUnavailable("broke off")},
        is_remembered=False,
    ),
    "empty answer": End("finished", Completion(" ")),
    # a person
    "approval": End(
        "waiting",
        [[ToolCall("p1", "pay", {"order": 1}), ToolCall("p2", "look_up", {"order": 1})]],
        is_remembered=False,
    ),
}


@pytest.fixture(scope="module")
def server():
    with FakeModel() as model:
        yield model


class Wires:
    """Two families of models; what they are asked is read as each of them reads it."""

    def __init__(self, server):
        self.server = server
        base = server.url.removesuffix("/v1")
        self.openai = OpenAICompatibleProvider(server.url, api_key="k")
        self.anthropic = LiteLLMProvider(prefix="anthropic/", api_base=base, api_key="k")

    def ask_openai(self, ask):
        """Return the messages that a run sends."""
        messages = self._ask(ask, says("Hello."), self.openai)
        assert_openai_takes(messages)
        return messages

    def ask_anthropic(self, ask):
        messages = self._ask(ask, anthropic(text("Hello.")), self.anthropic)
        assert_anthropic_takes(messages)
        return messages

    def _ask(self, ask, answer, provider):
        self.server.clear()
        self.server.script(answer)
        run = ask(provider=provider, model="claude-x")
        assert (run.status, run.text, run.error) == ("finished", "Hello.", "")
        (request,) = self.server.requests
        return request["messages"]


@pytest.fixture
def wires(server):
    return Wires(server)


def act(end, at, stream, event):
    """Do what a reader does at an event; return whether he leaves."""
    if event.step == at and (what := end.does.get(event.kind)):
        if what == "leave":
            return True
        getattr(stream, what)()
    return False


def in_plain_code(agent, end, at, **options):
    with agent.stream("hi", **options) as stream:
        for event in stream:
            if act(end, at, stream, event):
                break
    return stream.run


def in_async_code(agent, end, at, **options):
    async def read():
        async with agent.astream("hi", **options) as stream:
            async for event in stream:
                if act(end, at, stream, event):
                    break
        return stream.run

    return async_to_sync(read)()


CASES = [
    *((in_plain_code, InProcess, at) for at in range(1, STEPS + 1)),
    *((in_async_code, InTraces, at) for at in (1, 2, 5, STEPS)),
]


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize(("way", "cls", "at"), CASES)
def test_models_take_what_a_run_leaves_and_its_session_goes_on(way, cls, name, at, wires):
    end, session = ENDS[name], uuid4().hex
    agent, options = end.agent(cls, at), end.options(at)
    model = ScriptedProvider(end.turns(at))
    run = way(agent, end, at, provider=model, session_id=session, **options)
    assert run.status == end.status
    assert run.trace.messages == run.messages
    if run.status != "waiting":  # for the result of a call
        assert_sendable(run.messages)

    def go_on(**options):
        return agent.run(NEXT, session_id=session, **options)

    first = wires.ask_openai(go_on)
    assert first.count(BEGINNING) == int(end.is_remembered)
    assert first[-1] == {"role": "user", "content": NEXT}
    assert NEXT in str(wires.ask_anthropic(go_on)[-1])
    if run.ok:
        return

    for approval in run.trace.approvals.all():
        approval.approve(by=Operator())
    wires.ask_anthropic(partial(agent.resume, run, limits=Limits(max_steps=99), max_steps=99))
    assert wires.ask_openai(go_on).count(BEGINNING) == 1
