"""The providers that need no model: what a script says, and what echo makes of a request."""

from __future__ import annotations

import asyncio

import pytest

from mlango.agents.providers import (
    Completion,
    EchoProvider,
    ReasoningDelta,
    ScriptedProvider,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from mlango.agents.providers.scripted import call
from mlango.core.messages import tool_message
from mlango.exceptions import Misused, ProviderError, RateLimited

HELLO = [{"role": "user", "content": "hello"}]


def ask(provider, messages=None, **request):
    async def collect():
        return [delta async for delta in provider.astream(messages=messages or HELLO, **request)]

    return asyncio.run(collect())


class TestScript:
    def test_text_is_streamed_word_by_word(self):
        deltas = ask(ScriptedProvider(["Hello big  world"]))

        assert deltas[:-1] == ["Hello ", "big  ", "world"]
        assert deltas[-1] == Completion("Hello big  world", usage=Usage(10, 5))

    def test_calls_get_ids_and_are_streamed(self):
        script = ScriptedProvider([[call("add", a=1), {"name": "sub", "arguments": {"b": 2}}]])

        deltas = ask(script)

        assert deltas[:2] == [
            ToolCallDelta(0, "call_1", "add", '{"a": 1}'),
            ToolCallDelta(1, "call_2", "sub", '{"b": 2}'),
        ]
        assert deltas[-1].stop_reason == Completion.TOOL_USE

    def test_ids_go_on_counting_and_given_ones_are_kept(self):
        script = ScriptedProvider([call("a"), [{"id": "mine", "name": "b"}], call("c")])

        ids = [ask(script)[-1].tool_calls[0].id for _ in range(3)]

        assert ids == ["call_1", "mine", "call_3"]

    def test_broken_arguments_are_passed_on(self):
        script = ScriptedProvider([[ToolCall("1", "add", '{"a": ')]])

        assert ask(script)[-1].tool_calls[0].arguments == '{"a": '

    def test_a_dict_sets_any_field(self):
        turn = {
            "text": "No.",
            "reasoning": "Hm.",
            "stop_reason": "refusal",
            "refusal": "Not allowed.",
            "usage": {"input_tokens": 3},
        }

        deltas = ask(ScriptedProvider([turn]))

        assert deltas[0] == ReasoningDelta("Hm.")
        assert deltas[-1].refusal == "Not allowed."
        assert deltas[-1].usage == Usage(input_tokens=3)

    def test_an_exception_is_raised(self):
        with pytest.raises(RateLimited, match="slow down"):
            ask(ScriptedProvider([RateLimited("slow down")]))

    def test_an_error_may_come_after_text(self):
        script = ScriptedProvider([{"text": "half of", "error": RateLimited("stop")}])

        got = []

        async def collect():
            async for delta in script.astream(messages=HELLO):
                got.append(delta)  # noqa: PERF401 - kept when the stream breaks

        with pytest.raises(RateLimited):
            asyncio.run(collect())
        assert got == ["half ", "of"]

    def test_a_function_sees_the_request(self):
        async def later(request):
            return f"{request.model} heard {request.last_text}"

        script = ScriptedProvider([lambda request: request.system, later])

        assert ask(script, system="Be brief.")[-1].text == "Be brief."
        assert ask(script, model="m")[-1].text == "m heard hello"

    def test_what_was_asked_is_kept_as_it_was(self):
        script = ScriptedProvider(["a", "b"])
        messages = [{"role": "user", "content": "one"}]
        tools = [{"type": "function"}]

        ask(script, messages, tools=tools, temperature=0.5)
        messages.append({"role": "user", "content": "two"})
        ask(script, messages)
        messages[0]["content"] = "changed"
        tools[0]["type"] = "changed"

        assert [len(each.messages) for each in script.calls] == [1, 2]
        assert script.calls[0].messages[0]["content"] == "one"
        assert script.calls[0].tools == [{"type": "function"}]
        assert script.calls[0].options == {"temperature": 0.5}
        assert script.last_call.tools is None

    def test_another_conversation_is_copied_anew(self):
        script = ScriptedProvider(["a", "b"])

        ask(script, [{"role": "user", "content": "one"}])
        ask(script, [{"role": "user", "content": "other"}])

        assert [each.last_text for each in script.calls] == ["one", "other"]

    def test_an_exhausted_script_names_the_call_and_the_last_message(self):
        script = ScriptedProvider(["only"])
        ask(script)

        with pytest.raises(ProviderError) as caught:
            ask(script)

        assert str(caught.value) == (
            "The script has no turn for call 2: it has 1. The last message is user: 'hello'."
        )
        assert not caught.value.retryable

    def test_unused_turns_are_told(self):
        script = ScriptedProvider(["one", "two"])
        ask(script)

        with pytest.raises(AssertionError, match=r"1 of 2 turns were not used. .* 'two'"):
            script.assert_exhausted()
        ask(script)
        script.assert_exhausted()

    def test_reset_begins_again(self):
        script = ScriptedProvider(["one"])
        ask(script)
        script.reset()

        assert ask(script)[-1].text == "one"

    @pytest.mark.parametrize(
        ("turn", "message"),
        [
            (42, "A turn is text, a tool call"),
            ({"txt": "x"}, "A turn has no key 'txt'. Did you mean 'text'?"),
            ([{"arguments": {}}], "A tool call is call"),
        ],
    )
    def test_an_odd_turn_is_refused(self, turn, message):
        with pytest.raises(Misused, match=message):
            ask(ScriptedProvider([turn]))


def tool(name, **properties):
    required = [key for key, schema in properties.items() if "default" not in schema]
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


SEARCH = tool("search_docs", query={"type": "string"}, limit={"type": "integer", "default": 5})
ADD = tool("add", a={"type": "integer"}, b={"type": "integer"})
TODAY = tool("today")


class TestEcho:
    def answer(self, text, tools=None, then=()):
        messages = [{"role": "user", "content": text}, *then]
        return ask(EchoProvider(), messages, tools=tools)[-1]

    def calls(self, text, *tools):
        return [(each.name, each.arguments) for each in self.answer(text, list(tools)).tool_calls]

    def test_it_echoes(self):
        assert self.answer("hello there").text == "echo: hello there"
        assert self.answer("hello there", [ADD]).text == "echo: hello there"

    def test_use_calls_a_tool(self):
        assert self.calls('use add {"a": 1, "b": 2}', ADD) == [("add", '{"a": 1, "b": 2}')]
        assert self.calls("use today", TODAY) == [("today", "{}")]

    def test_several_use_lines_make_parallel_calls(self):
        text = 'Please:\nuse add {"a": 1,\n "b": 2}\nuse today\n'

        assert self.calls(text, ADD, TODAY) == [("add", '{"a": 1,\n "b": 2}'), ("today", "{}")]

    def test_use_passes_on_an_unknown_tool_and_broken_json(self):
        assert self.calls("use nope {}", ADD) == [("nope", "{}")]
        assert self.calls('use add {"a": 1', ADD) == [("add", '{"a": 1')]

    def test_use_in_a_sentence_is_not_a_call(self):
        assert self.answer("use caution", [ADD]).text == "echo: use caution"
        assert self.answer("use today as a date", [TODAY]).text == "echo: use today as a date"

    def test_results_of_use_are_listed(self):
        then = [
            {"role": "assistant", "content": "", "tool_calls": []},
            tool_message("1", "3"),
            tool_message("2", "Monday"),
        ]

        answer = self.answer("use today\nuse today", [TODAY], then)

        assert answer.text == "tool results: 3; Monday"

    def test_plain_words_call_the_tool_that_takes_one_string(self):
        assert self.calls("How do I rotate a key?", ADD, SEARCH) == [
            ("search_docs", '{"query": "How do I rotate a key?"}')
        ]

    def test_a_string_that_must_have_a_form_is_not_filled_with_plain_words(self):
        chosen = tool("pick", colour={"type": "string", "enum": ["red"]})

        assert self.calls("hello", chosen) == []

    @pytest.mark.parametrize(
        ("result", "text"),
        [
            ("Rotate it.", "Rotate it."),
            ('["a", {"title": "B", "n": 2}]', "- a\n- title: B, n: 2"),
            ('{"title": "B"}', "title: B"),
            ("[]", "Nothing was found."),
        ],
    )
    def test_plain_words_are_answered_from_the_result(self, result, text):
        then = [{"role": "assistant", "content": ""}, tool_message("1", result)]

        assert self.answer("How?", [SEARCH], then).text == text

    def test_it_counts_about_four_characters_a_token(self):
        usage = self.answer("x" * 40).usage

        assert usage == Usage(10, 11)

    def test_ids_are_unique_in_a_conversation(self):
        then = [{"role": "assistant", "content": ""}, tool_message("call_1", "3")]
        messages = [
            {"role": "user", "content": "use today"},
            *then,
            {"role": "user", "content": "use today"},
        ]

        assert ask(EchoProvider(), messages, tools=[TODAY])[-1].tool_calls[0].id == "call_2"

    def test_rules_belong_to_one_provider_and_come_first(self):
        ruled = EchoProvider([(r"refund (\w+)", lambda match: call("refund", order=match[1]))])

        calls = ask(ruled, [{"role": "user", "content": "refund A7"}])[-1].tool_calls

        assert calls == [ToolCall("call_1", "refund", '{"order": "A7"}')]
        assert EchoProvider().rules == []
