"""transform_context: what an agent makes of the conversation before the model reads it."""

import pytest

from mlango.agents import Agent, Hooks, tool
from mlango.agents.providers import ScriptedProvider
from mlango.agents.providers.scripted import call


@tool
def look(page: int) -> str:
    """Read a page."""
    return f"page {page}"


class Latest(Agent):
    class Meta:
        tools = [look]
        tracing = False
        abstract = True

    def transform_context(self, messages, ctx):
        return messages[-2:]


class Dated(Latest):
    class Meta:
        abstract = True
        hooks = Hooks(before_model=lambda messages, ctx: [*messages, {**messages[-1]}])

    async def transform_context(self, messages, ctx):
        messages[0]["content"] = f"{ctx.state['date']}: {messages[0]['content']}"
        return messages


TURNS = [call("look", page=1), call("look", page=2), "done"]


def test_the_model_reads_what_the_agent_returns():
    provider = ScriptedProvider(TURNS)
    result = Latest().run("hi", provider=provider)
    assert [len(each.messages) for each in provider.calls] == [1, 2, 2]
    assert len(result.messages) == 6


def test_each_call_begins_with_the_whole_conversation():
    seen = []

    class Counting(Latest):
        class Meta:
            abstract = True

        def transform_context(self, messages, ctx):
            seen.append(len(messages))
            return messages[:1]

    Counting().run("hi", provider=ScriptedProvider(TURNS))
    assert seen == [1, 3, 5]


async def test_an_async_one_works_on_a_copy_before_the_hooks():
    provider = ScriptedProvider(["ok"])
    result = await Dated().arun("hi", provider=provider, state={"date": "May"})
    assert [m["content"] for m in provider.last_call.messages] == ["May: hi", "May: hi"]
    assert result.messages[0]["content"] == "hi"


def test_what_is_no_list_of_messages_fails_the_run():
    class Wrong(Latest):
        class Meta:
            abstract = True

        def transform_context(self, messages, ctx):
            return ["hi"]

    result = Wrong().run("hi", provider=ScriptedProvider(["ok"]), raise_on_error=False)
    assert result.status == "failed"


@pytest.mark.parametrize("kind", [Agent, Latest])
def test_only_an_agent_that_transforms_pays_for_it(kind):
    assert kind.transforms is (kind is Latest)
