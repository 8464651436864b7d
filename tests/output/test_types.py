"""Answers as values: what a run returns, and what the model is told of one that does not fit."""

from dataclasses import dataclass
from typing import Literal, TypedDict

import pytest
from pydantic import BaseModel, Field

from mlango.agents import Agent, Finished, TextChunk, tool
from mlango.agents.providers import Completion, EchoProvider, ScriptedProvider
from mlango.agents.providers.scripted import call
from mlango.exceptions import Misconfigured


class Town(BaseModel):
    name: str
    people: int = Field(ge=0)


@dataclass
class Point:
    x: int
    y: int = 0


class Pair(TypedDict):
    left: str
    right: int


class Tree(BaseModel):
    name: str
    children: "list[Tree]" = []


def agent(output, **meta):
    options = {"output": output, "tracing": False, "abstract": True, **meta}
    return type("Answering", (Agent,), {"Meta": type("Meta", (), options)})()


def run(output, *turns, **meta):
    provider = ScriptedProvider(turns)
    return agent(output, **meta).run("hi", provider=provider), provider


@pytest.mark.parametrize(
    ("output", "arguments", "value"),
    [
        (Town, {"name": "Bonn", "people": "330000"}, Town(name="Bonn", people=330000)),
        (Point, {"x": 1}, Point(1)),
        (Pair, {"left": "a", "right": 2}, {"left": "a", "right": 2}),
        (list[Town], {"answer": [{"name": "Ulm", "people": 1}]}, [Town(name="Ulm", people=1)]),
        (Literal["yes", "no"], {"answer": "yes"}, "yes"),
        (int | None, {"answer": None}, None),
        (Town | Point, {"answer": {"x": 3}}, Point(3)),
        (dict[str, int], {"answer": {"a": 1}}, {"a": 1}),
        (
            Tree,
            {"name": "a", "children": [{"name": "b"}]},
            Tree(name="a", children=[Tree(name="b")]),
        ),
    ],
)
def test_the_answer_is_a_value_of_the_type(output, arguments, value):
    result, provider = run(output, call("final_answer", **arguments))

    assert result.output == value
    assert result.ok
    assert type(result.text) is str
    assert [each["function"]["name"] for each in provider.last_call.tools] == ["final_answer"]


def test_an_answer_that_is_json_text_is_taken_too():
    result, _ = run(Town, '```json\n{"name": "Bonn", "people": 3}\n```')
    assert result.output == Town(name="Bonn", people=3)

    result, _ = run(list[int], "[1, 2]")
    assert result.output == [1, 2]


def test_the_model_is_told_what_does_not_fit_and_may_answer_again():
    result, provider = run(
        Town,
        call("final_answer", name="Bonn", people=-1),
        call("final_answer", name="Bonn", people=1),
    )

    assert result.output.people == 1
    assert "people: Input should be greater than or equal to 0" in provider.last_call.last_text
    assert "final_answer" in provider.last_call.last_text


def test_after_the_retries_the_run_stops_and_keeps_its_work():
    result, provider = run(Town, "Bonn.", "Bonn!", "Bonn?")

    assert (result.status, result.stop_reason) == ("stopped", "output_invalid")
    assert result.output is None
    assert result.text == "Bonn?"
    assert len(result.messages) == 6
    assert result.steps == len(provider.calls) == 3
    assert result.usage.output_tokens == 15


def test_without_retries_the_first_answer_counts():
    result, _ = run(Town, "Bonn.", output_retries=0)
    assert result.stop_reason == "output_invalid"
    assert "JSON" in result.error


def test_an_agent_without_an_output_answers_with_text():
    result, _ = run(None, "Bonn.")
    assert result.output == "Bonn."


@tool
def population(town: str) -> int:
    """Count the people of a town."""
    return 330000


def test_other_tools_stand_beside_the_answer():
    result, provider = run(
        Town,
        call("population", town="Bonn"),
        call("final_answer", name="Bonn", people=330000),
        tools=[population],
    )

    assert result.output.people == 330000
    assert result.tools_used == ["population"]
    assert len(provider.calls) == 2


def test_an_answer_beside_other_calls_has_to_come_again():
    result, provider = run(
        Town,
        [call("population", town="Bonn"), call("final_answer", name="Bonn", people=1)],
        call("final_answer", name="Bonn", people=2),
        tools=[population],
    )

    assert result.output.people == 2
    assert "alone" in provider.last_call.last_text


def test_the_tools_of_one_request_may_depend_on_the_user():
    class Dynamic(Agent):
        class Meta:
            output = Town
            tracing = False
            abstract = True

        async def get_tools(self, ctx):
            return [population]

    provider = ScriptedProvider([call("final_answer", name="a", people=1)])
    assert Dynamic().run("hi", provider=provider).output.name == "a"
    names = [each["function"]["name"] for each in provider.last_call.tools]
    assert names == ["population", "final_answer"]


async def test_only_an_answer_that_fits_is_streamed():
    wrong = ["Let me think.", call("final_answer", name="Bonn", people="many"), '{"name": "Bonn"']
    provider = ScriptedProvider([*wrong, call("final_answer", name="Bonn", people=7)])
    stream = agent(Town, output_retries=3).astream("hi", provider=provider)
    events = [event async for event in stream]

    texts = [event.text for event in events if isinstance(event, TextChunk)]
    assert "".join(texts) == events[-1].result.text == '{"name": "Bonn", "people": 7}'
    assert isinstance(events[-1], Finished)
    assert events[-1].output == Town(name="Bonn", people=7)
    assert events[-1].describe()["output"] == {"name": "Bonn", "people": 7}


async def test_what_is_said_before_a_tool_call_is_streamed():
    said = ["I look it up.", call("population", town="Bonn")]
    provider = ScriptedProvider([said, call("final_answer", name="Bonn", people=7)])
    stream = agent(Town, tools=[population]).astream("hi", provider=provider)
    texts = [event.text async for event in stream if isinstance(event, TextChunk)]
    assert "".join(texts).startswith("I look it up.")


def test_an_answer_cut_at_its_length_is_not_taken():
    cut = Completion(
        tool_calls=[call("final_answer", name="B", people=1)], stop_reason="max_tokens"
    )
    result, _ = run(Town, cut, call("final_answer", name="Bonn", people=2))
    assert result.output.people == 2


def test_a_refusal_is_not_asked_again():
    result, _ = run(Town, Completion("No.", stop_reason="refusal"))
    assert (result.stop_reason, result.output) == ("refusal", None)


def test_a_follow_up_gives_a_new_value():
    provider = ScriptedProvider(
        [call("final_answer", name="a", people=1), call("final_answer", name="b", people=2)]
    )
    stream = agent(Town).stream("hi", provider=provider)
    stream.follow_up("And b?")
    assert list(stream)[-1].output.name == "b"


def test_the_echo_provider_gives_an_answer_when_told_to():
    answering = agent(Town)
    said = 'use final_answer {"name": "Bonn", "people": 1}'
    assert answering.run(said, provider=EchoProvider()).output == Town(name="Bonn", people=1)
    assert answering.run("hello", provider=EchoProvider()).stop_reason == "output_invalid"


def test_the_turn_that_is_remembered_is_text_that_any_model_reads():
    result, _ = run(Town, call("final_answer", name="a", people=1))
    assert result.messages[-1] == {"role": "assistant", "content": '{"name": "a", "people": 1}'}


def test_characters_that_no_database_takes_are_cleaned():
    result, _ = run(Town, '{"name": "a\\u0000b\\ud800", "people": 1}')
    assert result.output.name == "a␀b\N{REPLACEMENT CHARACTER}"


def test_a_type_that_is_no_json_is_refused_when_the_class_is_made():
    with pytest.raises(Misconfigured, match=r"Answering.Meta.output"):
        agent(object())
    with pytest.raises(Misconfigured, match="output_retries"):
        agent(Town, output_retries=-1)


NONSENSE = [print, lambda text: text, "json", {"a": int}, [str], tool(lambda a: a, name="a")]


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_what_is_no_type_is_refused(nonsense):
    with pytest.raises(Misconfigured, match=r"Meta\.output must be a type, such as .*, not "):
        agent(nonsense)


def test_an_own_tool_may_not_have_the_name_of_the_answer():
    @tool
    def final_answer(text: str) -> str:
        """Answer."""
        return text

    with pytest.raises(Misconfigured, match="final_answer"):
        agent(Town, tools=[final_answer])


def test_a_subclass_has_the_output_of_its_base_and_its_own_fingerprint():
    base = type(agent(Town))
    heir = type("Heir", (base,), {"Meta": type("Meta", (), {"abstract": True})})
    other = type(agent(Point))
    assert heir._meta.output.declared is Town
    assert base._meta.fingerprint() != other._meta.fingerprint()
