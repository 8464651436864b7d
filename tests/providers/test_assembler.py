"""The shapes of streams that are known, and what each becomes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlango.agents.providers import Completion, ReasoningDelta, ToolCall, ToolCallDelta, Usage
from mlango.agents.providers.assembler import Assembler
from mlango.agents.providers.metering import estimate, read_usage
from mlango.agents.providers.sse import Answer
from mlango.exceptions import EmptyResponse, MalformedResponse
from tests.fake_model import chunk, tail, texts, tool_delta


def assembled(*deltas, finish="stop", **last):
    """Return the deltas and the Completion of a stream of chunks."""
    assembler = Assembler()
    given_deltas = []
    for delta in deltas:
        given_deltas += assembler.feed({"choices": [{"delta": delta}]})
    given_deltas += assembler.feed({"choices": [{"delta": {}, "finish_reason": finish}], **last})
    return given_deltas, assembler.completion("here", "m", lambda n: Usage(n, n, estimated=True))


def called(*pieces):
    """Return (id, name, arguments) of the calls that the pieces make."""
    sent = [{"tool_calls": [tool_delta(*piece)]} for piece in pieces]
    _, completion = assembled(*sent, finish="tool_calls")
    return [(call.id, call.name, call.arguments) for call in completion.tool_calls]


ONE, TWO = '{"x": 1}', '{"x": 2}'


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        pytest.param(
            [(0, "a", "f", ""), (0, None, None, '{"x"'), (0, None, None, ": 1}")],
            [("a", "f", ONE)],
            id="as OpenAI sends it",
        ),
        pytest.param(
            [(0, "a", "f", ONE), (0, "b", "f", TWO)],
            [("a", "f", ONE), ("b", "f", TWO)],
            id="one index, two ids",
        ),
        pytest.param(
            [(0, None, "f", ONE), (0, None, "f", TWO)],
            [("", "f", ONE), ("", "f", TWO)],
            id="one index, no ids",
        ),
        pytest.param(
            [(0, None, "f", ""), (0, None, "g", "")],
            [("", "f", "{}"), ("", "g", "{}")],
            id="one index, no ids, no arguments",
        ),
        pytest.param(
            [(None, None, "f", ONE), (None, None, "f", TWO)],
            [("", "f", ONE), ("", "f", TWO)],
            id="neither index nor id",
        ),
        pytest.param(
            [(None, "a", "f", '{"x"'), (None, "b", "g", ONE), (None, "a", None, ": 1}")],
            [("a", "f", ONE), ("b", "g", ONE)],
            id="ids alone, interleaved",
        ),
        pytest.param(
            [
                (0, "a", "f", '{"x"'),
                (1, "b", "g", '{"x"'),
                (0, None, None, ": 1}"),
                (1, None, None, ": 2}"),
            ],
            [("a", "f", ONE), ("b", "g", TWO)],
            id="interleaved",
        ),
        pytest.param(
            [(0, "a", "f", '{"x"'), (None, None, None, ": 1}")],
            [("a", "f", ONE)],
            id="the index goes missing",
        ),
        pytest.param(
            [(0, "a", "f", '{"x"'), (0, "a", "f", ": 1}"), (0, "a", "f", "")],
            [("a", "f", ONE)],
            id="id and name in every piece",
        ),
        pytest.param(
            [(0, None, "f", '{"x"'), (0, None, "f", ": 1}")],
            [("", "f", ONE)],
            id="name in every piece",
        ),
        pytest.param(
            [(0, None, "f", ""), (0, "a", None, ONE)], [("a", "f", ONE)], id="the id comes late"
        ),
        pytest.param(
            [(0, "a", "f", ONE), (1, "a", "f", TWO)],
            [("a", "f", ONE), ("a", "f", TWO)],
            id="one id, two indexes",
        ),
        pytest.param([(2, "a", "f", ONE)], [("a", "f", ONE)], id="counting from elsewhere"),
        pytest.param([(0, "a", "f", {"x": 1})], [("a", "f", ONE)], id="arguments as an object"),
        pytest.param([(0, "a", "f", None)], [("a", "f", "{}")], id="no arguments"),
        pytest.param([(0, "a", "f", "  ")], [("a", "f", "{}")], id="blank arguments"),
        pytest.param([(0, "a", None, ONE)], [("a", "unknown", ONE)], id="no name"),
        pytest.param([(0, "a", "f", '{"x"')], [("a", "f", '{"x"')], id="cut"),
        pytest.param([(0, "a", "f", ONE), (1, None, None, None)], [("a", "f", ONE)], id="nothing"),
    ],
)
def test_pieces_become_calls(pieces, expected):
    assert called(*pieces) == expected


def test_the_deltas_of_calls_count_the_calls():
    sent = [{"tool_calls": [tool_delta(0, "a", "f", ONE), tool_delta(0, "b", "g", TWO)]}]

    deltas, _ = assembled(*sent)

    assert deltas == [ToolCallDelta(0, "a", "f", ONE), ToolCallDelta(1, "b", "g", TWO)]


@given(st.data())
def test_however_calls_are_cut_they_are_the_same(data):
    calls = data.draw(
        st.lists(
            st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=5), max_size=3),
            min_size=1,
            max_size=3,
        )
    )
    pieces = []
    for index, arguments in enumerate(map(json.dumps, calls)):
        cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(arguments) - 1)), max_size=4)))
        parts = [arguments[a:b] for a, b in zip([0, *cuts], [*cuts, len(arguments)], strict=True)]
        pieces.append((index, f"id{index}", "f", parts[0]))
        pieces += [(index, None, None, part) for part in parts[1:]]

    assert called(*pieces) == [(f"id{n}", "f", json.dumps(a)) for n, a in enumerate(calls)]


@given(st.data())
def test_however_a_body_is_cut_it_reads_the_same(data):
    body = b"".join([*texts("Grüße an 🎉 alle"), chunk({}, "stop"), *tail()])
    cuts = sorted(data.draw(st.sets(st.integers(1, len(body) - 1), max_size=12)))
    answer = Answer("here", "")

    deltas = []
    for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True):
        deltas += answer.take(body[start:end])
    deltas += answer.end()

    assert deltas == ["Grüße ", "an ", "🎉 ", "alle"]
    assert answer.is_done


@given(st.binary(max_size=200))
def test_any_bytes_end_in_an_answer_or_a_typed_error(body):
    answer = Answer("here", "")

    def read():
        list(answer.take(body))
        list(answer.end())
        return answer.assembler.completion("here", "m", lambda n: Usage())

    with pytest.raises((MalformedResponse, EmptyResponse)):
        read()


def test_old_function_calls_are_calls():
    sent = [
        {"function_call": {"name": "f", "arguments": '{"x"'}},
        {"function_call": {"arguments": ": 1}"}},
    ]

    _, completion = assembled(*sent, finish="function_call")

    assert completion.tool_calls == [ToolCall("", "f", ONE)]
    assert completion.stop_reason == Completion.TOOL_USE


def test_text_in_parts_is_text():
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]},
        {"type": "text", "text": "Yes"},
    ]

    deltas, completion = assembled({"content": parts})

    assert deltas == [ReasoningDelta("Hm."), "Yes"]
    assert (completion.text, completion.reasoning) == ("Yes", "Hm.")


def test_reasoning_under_two_names_is_read_once():
    deltas, _ = assembled({"reasoning": "Hm.", "reasoning_content": "Hm."}, {"content": "x"})

    assert deltas == [ReasoningDelta("Hm."), "x"]


def test_a_signature_ends_a_block_of_thought():
    def block(**fields):
        return {"thinking_blocks": [{"type": "thinking", **fields}]}

    _, completion = assembled(
        block(thinking="One", signature=""),
        block(thinking=" two", signature=""),
        block(thinking="", signature="s1"),
        block(thinking="Three", signature="s2"),
        {"content": "x"},
    )

    assert completion.raw_content["message"]["thinking_blocks"] == [
        {"type": "thinking", "thinking": "One two", "signature": "s1"},
        {"type": "thinking", "thinking": "Three", "signature": "s2"},
    ]


def test_fields_of_a_provider_are_joined():
    _, completion = assembled(
        {"provider_specific_fields": {"citations": [1], "a": 1}},
        {"provider_specific_fields": {"citations": [2], "a": None, "b": 2}, "content": "x"},
    )

    assert completion.raw_content["message"]["provider_specific_fields"] == {
        "citations": [1, 2],
        "a": 1,
        "b": 2,
    }


def test_tags_of_thought_in_a_text_are_left_alone():
    _, completion = assembled({"content": "<think>Hm.</think>Yes"})

    assert completion.text == "<think>Hm.</think>Yes"


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        ("stop", Completion.END_TURN),
        ("eos_unheard_of", Completion.END_TURN),
        ("STOP", Completion.END_TURN),
        ("length", Completion.MAX_TOKENS),
        ("content_filter", Completion.CONTENT_FILTER),
        ("SAFETY", Completion.CONTENT_FILTER),
        ("refusal", Completion.REFUSAL),
        ("pause_turn", Completion.PAUSE_TURN),
    ],
)
def test_reasons_to_stop(finish, reason):
    assert assembled({"content": "x"}, finish=finish)[1].stop_reason == reason


def test_a_call_makes_a_stop_a_tool_use():
    sent = {"tool_calls": [tool_delta(0, "a", "f", ONE)]}

    assert assembled(sent, finish="stop")[1].stop_reason == Completion.TOOL_USE


def test_a_finish_of_error_is_an_error():
    with pytest.raises(MalformedResponse, match="broke off its answer") as caught:
        assembled({"content": "half"}, finish="error")

    assert caught.value.text == "half"


def test_thinking_alone_is_not_an_answer():
    with pytest.raises(EmptyResponse, match="neither text nor a tool call"):
        assembled({"reasoning_content": "Hm."})


def test_a_length_limit_without_text_is_told_as_such():
    completion = assembled({"reasoning_content": "Hm."}, finish="length")[1]

    assert completion.stop_reason == Completion.MAX_TOKENS


@pytest.mark.parametrize(
    ("raw", "usage"),
    [
        ({"prompt_tokens": 10, "completion_tokens": 5}, Usage(10, 5)),
        (
            {
                "prompt_tokens": 10,
                "completion_tokens": 5,
                "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 2},
                "completion_tokens_details": {"reasoning_tokens": 3},
            },
            Usage(10, 5, 4, 2, 3),
        ),
        (
            {
                "prompt_tokens": 10,
                "completion_tokens": 5,
                "prompt_cache_hit_tokens": 4,
                "prompt_tokens_details": {"cached_tokens": 4},
            },
            Usage(10, 5, 4),
        ),
        (
            {
                "prompt_tokens": 110,
                "completion_tokens": 5,
                "cache_read_input_tokens": 64,
                "cache_creation_input_tokens": 10,
            },
            Usage(110, 5, 64, 10),
        ),
        (
            {
                "input_tokens": 36,
                "output_tokens": 5,
                "cache_read_input_tokens": 64,
                "cache_creation_input_tokens": 10,
            },
            Usage(110, 5, 64, 10),
        ),
        (
            {"input_tokens": 36, "output_tokens": 5, "input_tokens_details": {"cached_tokens": 6}},
            Usage(36, 5, 6),
        ),
        ({"prompt_tokens": None, "completion_tokens": "5", "prompt_tokens_details": 4}, Usage()),
        ({"prompt_tokens": -3, "completion_tokens": 2.0}, Usage(0, 2)),
        ({"prompt_tokens": float("inf"), "completion_tokens": True}, Usage()),
    ],
)
def test_usage_is_read_in_every_shape(raw, usage):
    assert read_usage(raw) == usage


def test_usage_is_taken_from_the_last_chunk_that_has_it():
    assembler = Assembler()
    for count in (1, 2, 2):
        usage = {"prompt_tokens": 100, "completion_tokens": count}
        assembler.feed({"choices": [{"delta": {"content": "x"}}], "usage": usage})
    assembler.feed({"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": None})

    completion = assembler.completion("here", "m", lambda n: Usage())

    assert completion.usage == Usage(100, 2)


@pytest.mark.parametrize(
    "delta", [{"content": "abc"}, {"tool_calls": [tool_delta(0, "a", "f", "{ }")]}]
)
def test_zeros_for_an_answer_are_not_believed(delta):
    usage = {"prompt_tokens": 0, "completion_tokens": 0}

    assert assembled(delta, usage=usage)[1].usage == Usage(3, 3, estimated=True)


def test_an_estimate_counts_characters():
    messages = [{"role": "user", "content": "x" * 30}]

    assert estimate(messages, "y" * 10, None, 8) == Usage(10, 2, estimated=True)
