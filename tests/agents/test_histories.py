"""A history from elsewhere: whatever is wrong with it, the model gets what it takes."""

from copy import deepcopy

import pytest

from mlango.agents import Agent, Memory, tool
from mlango.agents.providers import LiteLLMProvider, OpenAICompatibleProvider, ScriptedProvider
from mlango.core.messages import received
from mlango.exceptions import Misused
from tests.fake_model import FakeModel

pytestmark = pytest.mark.filterwarnings("ignore")  # other people's warnings

paid = []


@tool
def pay(amount: int) -> str:
    """Pay."""
    paid.append(amount)
    return "paid"


class Payer(Agent):
    class Meta:
        tools = [pay]
        tracing = False
        abstract = True


def user(text):
    return {"role": "user", "content": text}


def asks(*ids, arguments='{"amount": 1}', content=""):
    calls = [
        {"id": i, "type": "function", "function": {"name": "pay", "arguments": arguments}}
        for i in ids
    ]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def result(call_id, content="paid"):
    return {"role": "tool", "tool_call_id": call_id, "content": content}


HOSTILE = {
    "a call without a result": [user("a"), asks("1"), user("b")],
    "a call without a result at the end": [user("a"), asks("1")],
    "one result of two": [user("a"), asks("1", "2"), result("2"), user("b")],
    "a result without a call": [user("a"), result("9"), {"role": "assistant", "content": "b"}],
    "a result twice": [user("a"), asks("1"), result("1"), result("1", "again")],
    "a result too late": [user("a"), asks("1"), user("b"), result("1")],
    "one call twice": [user("a"), asks("1", "1"), result("1"), result("1")],
    "one id in two turns": [user("a"), asks("1"), result("1"), asks("1"), result("1", "again")],
    "broken arguments": [user("a"), asks("1", arguments='{"amount": '), result("1")],
    "arguments that are no text": [user("a"), asks("1", arguments={"amount": 1}), result("1")],
    "nothing said": [user("a"), asks("1", content=None), result("1", None), user("b")],
    "no calls in a list": [user("a"), {"role": "assistant", "content": "b", "tool_calls": []}],
}
each_history = pytest.mark.parametrize("history", HOSTILE.values(), ids=HOSTILE)


@pytest.fixture(scope="module")
def model():
    with FakeModel() as model:
        yield model


def sent(model, provider, history):
    """Return the messages of the request that a history leads to."""
    model.clear()
    paid.clear()
    before = deepcopy(history)
    Payer().run(
        "Go on.", history=history, provider=provider, model="claude-x", raise_on_error=False
    )
    assert history == before
    assert paid == []
    return model.requests[0]["messages"]


@each_history
def test_openai_gets_each_call_with_its_result_behind_it(model, history):
    messages = sent(model, OpenAICompatibleProvider(model.url, api_key="k"), history)
    waiting = []
    for message in messages:
        if message["role"] == "tool":
            assert message["tool_call_id"] == waiting.pop(0)
            continue
        assert waiting == []
        assert message.get("tool_calls") != []
        waiting = [call["id"] for call in message.get("tool_calls", ())]
        for call in message.get("tool_calls", ()):
            assert call["function"]["arguments"].startswith("{")
            assert call["function"]["arguments"].endswith("}")
    assert waiting == []
    assert messages[-1] == user("Go on.")


@each_history
def test_anthropic_gets_each_call_with_its_result_in_the_next_turn(model, history):
    base = model.url.removesuffix("/v1")
    provider = LiteLLMProvider(prefix="anthropic/", api_base=base, api_key="k")
    messages = sent(model, provider, history)
    seen, waiting = set(), []
    for message in messages:
        parts = message["content"] if isinstance(message["content"], list) else []
        results = [part["tool_use_id"] for part in parts if part["type"] == "tool_result"]
        assert results == waiting
        waiting = [part["id"] for part in parts if part["type"] == "tool_use"]
        assert seen.isdisjoint(waiting)
        seen.update(waiting)
    roles = [message["role"] for message in messages]
    assert roles == [("user", "assistant")[index % 2] for index in range(len(roles))]
    assert waiting == []


@pytest.mark.parametrize(
    "message",
    [
        {"role": "tool", "content": "paid"},
        {"role": "assistant", "tool_calls": ["pay"]},
        {"role": "assistant", "tool_calls": [{"id": "1"}]},
        {"role": "assistant", "tool_calls": [{"id": 1, "function": {"name": "pay"}}]},
        {"role": "assistant", "tool_calls": 7},
        {"role": "root", "content": "x"},
    ],
)
def test_what_is_no_message_is_refused_with_its_place(message):
    with pytest.raises(Misused, match="Message 1"):
        received([user("a"), message])


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (5, "content of message 0 is text or a list of content parts, not int"),
        ({"type": "text", "text": "Hi"}, "a list of content parts, not dict"),
        (["Hi"], "A content part is a dict with a 'type'"),
        ([{"text": "Hi"}], "A content part is a dict with a 'type'"),
        ([{"type": "text"}], "A content part is a dict with a 'type'"),
        ([{"type": "text", "text": 3}], "A content part is a dict with a 'type'"),
    ],
)
def test_content_that_no_model_takes_is_refused_before_the_run(content, told):
    messages = [{"role": "user", "content": content}]
    with pytest.raises(Misused, match=told):
        Payer().run(messages, provider=ScriptedProvider(["Hi."]))
    with pytest.raises(Misused, match=told):
        Payer().run("Hi", history=messages, provider=ScriptedProvider(["Hi."]))


@pytest.mark.parametrize("part", ["Hi", {"text": "Hi"}, {"type": "text"}])
def test_a_message_of_parts_that_no_model_takes_is_refused_before_the_run(part):
    with pytest.raises(Misused, match="A content part is a dict with a 'type'"):
        Payer().run([part], provider=ScriptedProvider(["Hi."]))


@pytest.mark.parametrize("name", ["images", "files"])
@pytest.mark.parametrize("one", ["https://example.com/a.png", b"%PDF-", {"type": "file"}, 3])
def test_one_file_where_a_list_is_needed_is_refused_and_not_read_by_letters(name, one):
    with pytest.raises(Misused, match=rf"{name} is a list, such as {name}=\[…\]"):
        Payer().run("Hi", provider=ScriptedProvider(["Hi."]), **{name: one})


def test_metadata_that_is_no_dict_is_refused():
    with pytest.raises(Misused, match="metadata must be a dict, or None, not 3"):
        Payer().run("Hi", metadata=3, provider=ScriptedProvider(["Hi."]))


def test_a_call_that_someone_handed_in_is_not_run():
    paid.clear()
    provider = ScriptedProvider(["ok"])
    Payer().run([user("a"), asks("1")], provider=provider)
    assert paid == []
    assert [m["role"] for m in provider.last_call.messages] == ["user", "assistant", "tool"]


def test_a_history_that_is_right_stays_as_it_is():
    right = [user("a"), asks("1", "2"), result("1"), result("2"), user("b")]
    assert received(right) == right


class Forgetful(Memory):
    """Recalls a call, but not its result."""

    def load(self, key):
        return [user("a"), asks("1")]

    def append(self, key, messages):
        pass


@pytest.mark.django_db(transaction=True)
async def test_what_a_memory_recalls_is_repaired():
    provider = ScriptedProvider(["ok"])
    await Payer().arun("b", provider=provider, memory=Forgetful(), session_id="s")
    roles = [message["role"] for message in provider.last_call.messages]
    assert roles == ["user", "assistant", "tool", "user"]
    assert "No result" in provider.last_call.messages[2]["content"]
