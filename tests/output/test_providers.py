"""Answers as values over the wire: the direct provider and litellm."""

import pytest
from pydantic import BaseModel

from mlango.agents import Agent, tool
from mlango.agents.providers import LiteLLMProvider, OpenAICompatibleProvider
from tests.fake_model import FakeModel, calls, says

pytestmark = pytest.mark.filterwarnings("ignore")  # other people's warnings


class Town(BaseModel):
    name: str
    people: int


@tool
def population(town: str) -> int:
    """Count the people of a town."""
    return 330000


class Counting(Agent):
    class Meta:
        output = Town
        tools = [population]
        tracing = False
        abstract = True


@pytest.fixture(scope="module")
def model():
    with FakeModel() as model:
        yield model


@pytest.fixture(params=["direct", "litellm"])
def provider(request, model):
    model.clear()
    if request.param == "direct":
        return OpenAICompatibleProvider(model.url, api_key="k")
    return LiteLLMProvider(prefix="openai/", api_base=model.url, api_key="k")


def test_the_answer_comes_by_its_tool_after_a_correction(provider, model):
    model.script(
        calls(("c1", "population", {"town": "Bonn"})),
        calls(("c2", "final_answer", {"name": "Bonn"})),
        says("330000 people live in Bonn."),
        calls(("c3", "final_answer", {"name": "Bonn", "people": 330000})),
    )
    result = Counting().run("hi", provider=provider, model="m")

    assert result.output == Town(name="Bonn", people=330000)
    sent = model.requests[-1]
    assert [each["function"]["name"] for each in sent["tools"]] == ["population", "final_answer"]
    roles = [message["role"] for message in sent["messages"]]
    assert roles == ["user", "assistant", "tool", "assistant", "user", "assistant", "user"]
    assert "people: Field required" in sent["messages"][4]["content"]
