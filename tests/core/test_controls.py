"""The seams of the loop: what a control may do at each of them."""

from dataclasses import replace

import pytest

from mlango.agents import Agent, TextChunk, tool
from mlango.agents.providers import ScriptedProvider, ToolCall
from mlango.agents.resolve import run_for
from mlango.core.controls import Control, Controls, Halt, Parked
from mlango.core.loop import iterate
from mlango.core.run import FINISHED, STOPPED, WAITING
from mlango.exceptions import ToolError

called = []


@tool
async def order(number: int) -> str:
    """Look an order up."""
    called.append(number)
    return f"order {number}"


class Desk(Agent):
    class Meta:
        tools = [order]
        tracing = False


@pytest.fixture(autouse=True)
def _no_calls():
    called.clear()


async def events(control, turns):
    run = run_for(Desk(), "hi", {"provider": ScriptedProvider(turns)})
    run.controls = Controls((control,))
    return run, [event async for event in iterate(run)]


def call(**arguments):
    return [ToolCall("", "order", arguments)]


async def test_a_control_that_overrides_nothing_costs_nothing():
    controls = Controls((Control(),))
    assert not any(getattr(controls, seam) for seam in Controls.__slots__)


async def test_a_halt_before_the_model_stops_the_run():
    class Closed(Control):
        async def before_model(self, run):
            raise Halt("closed", "The shop is closed.")

    run, _ = await events(Closed(), ["hello"])
    assert (run.status, run.stop_reason, run.error) == (STOPPED, "closed", "The shop is closed.")


async def test_a_refused_answer_is_paid_for_but_not_said():
    class Strict(Control):
        def holds(self, run):
            return True

        async def after_model(self, run, completion):
            raise Halt("guardrail", "No.")

    run, told = await events(Strict(), ["hello"])
    assert not any(isinstance(event, TextChunk) for event in told)
    assert run.usage.output_tokens > 0
    assert [message["role"] for message in run.messages] == ["user"]
    assert run.stop_reason == "guardrail"


async def test_a_rewritten_answer_is_what_everyone_reads():
    class Polite(Control):
        def holds(self, run):
            return True

        async def after_model(self, run, completion):
            return replace(completion, text=completion.text.replace("damn", "very"))

    run, told = await events(Polite(), ["damn good"])
    assert "".join(event.text for event in told if isinstance(event, TextChunk)) == "very good"
    assert run.text == run.messages[-1]["content"] == "very good"


async def test_what_is_held_only_at_first_is_released_in_order():
    class Briefly(Control):
        left = 3

        def holds(self, run):
            self.left -= 1
            return self.left > 0

    _, told = await events(Briefly(), ["one two three four"])
    assert "".join(e.text for e in told if isinstance(e, TextChunk)) == "one two three four"


async def test_a_refused_call_does_not_run():
    class Deny(Control):
        async def before_call(self, run, job, arguments):
            raise ToolError("Not this one.")

    run, _ = await events(Deny(), [call(number=1), "ok"])
    assert called == []
    assert run.tool_results[0].content == "Not this one."


async def test_a_tool_that_needs_an_approval_does_not_run_without_a_control_that_gives_it():
    @tool(approval=True)
    async def erase(number: int) -> str:
        """Erase an order."""
        called.append(number)

    class Eraser(Agent):
        class Meta:
            tools = [erase]
            tracing = False

    turns = [[ToolCall("", "erase", {"number": 1})], "ok"]
    run = run_for(Eraser(), "hi", {"provider": ScriptedProvider(turns)})
    run.controls = Controls()
    async for _ in iterate(run):
        pass
    assert called == []
    assert "needs an approval" in run.tool_results[0].content


async def test_a_halt_at_a_call_stops_the_run_with_each_call_answered():
    class Stop(Control):
        async def before_call(self, run, job, arguments):
            raise Halt("guardrail", "Stopped.")

    run, _ = await events(Stop(), [call(number=1) + call(number=2)])
    assert called == []
    assert run.stop_reason == "guardrail"
    assert [message["role"] for message in run.messages] == ["user", "assistant", "tool", "tool"]


async def test_a_parked_call_leaves_the_run_waiting_and_the_others_done():
    class Ask(Control):
        async def before_call(self, run, job, arguments):
            if arguments["number"] == 1:
                raise Parked
            return arguments

    run, _ = await events(Ask(), [call(number=1) + call(number=2)])
    assert called == [2]
    assert (run.status, run.stop_reason) == (WAITING, "awaiting_approval")
    assert [message["role"] for message in run.messages] == ["user", "assistant", "tool"]


async def test_an_objection_sends_the_model_back():
    class Twice(Control):
        async def before_finish(self, run):
            return [{"role": "user", "content": "Again."}] if run.step == 1 else []

    run, _ = await events(Twice(), ["first", "second"])
    assert (run.status, run.text, run.step) == (FINISHED, "second", 2)


async def test_a_view_is_what_the_model_reads_and_the_messages_stay():
    class Short(Control):
        async def before_model(self, run):
            run.view = run.messages[-1:]

    provider = ScriptedProvider(["ok"])
    run = run_for(
        Desk(),
        "hi",
        {
            "provider": provider,
            "history": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
        },
    )
    run.controls = Controls((Short(),))
    async for _ in iterate(run):
        pass
    assert [len(each.messages) for each in provider.calls] == [1]
    assert len(run.messages) == 4
