from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlango.core.messages import (
    NO_RESULT,
    assistant_message,
    repaired,
    sendable,
    tool_message,
    turns,
)
from mlango.core.provider import Completion, ToolCall


def user(text="Hi"):
    return {"role": "user", "content": text}


def calling(*ids):
    calls = [
        {"id": each, "type": "function", "function": {"name": "f", "arguments": "{}"}}
        for each in ids
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}


# -- what a model calls ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments", ["", None, " ", "null", "{}", "[1]", '{"x": "abc', '{"x": NaN}']
)
def test_arguments_that_are_no_object_are_sent_as_an_empty_one(arguments):
    turn = assistant_message(Completion(tool_calls=[ToolCall("a", "f", arguments)]))

    assert turn["tool_calls"][0]["function"]["arguments"] == "{}"


def test_a_call_is_stored_and_sent_without_what_databases_and_wires_refuse():
    call = ToolCall(
        "a\0\ud800", "f\0\udc97", '{"x": "\0\ud83c\udf78\ud800 \\u0000 \\ud83c\\udf78"}'
    )

    (stored,) = assistant_message(Completion(tool_calls=[call]))["tool_calls"]

    assert stored["id"] == "a␀\ufffd"
    assert stored["function"]["name"] == "f__"
    assert "\0" not in stored["function"]["arguments"]
    stored["function"]["arguments"].encode()


@pytest.mark.parametrize(
    ("called", "sent"),
    [("look up!", "look_up_"), ("", "_"), ("näme", "n_me"), ("x" * 500, "x" * 64), ("a-B_9",) * 2],
)
def test_a_call_of_any_name_is_sent_under_one_that_models_take(called, sent):
    turn = assistant_message(Completion(tool_calls=[ToolCall("a", called, {})]))

    assert turn["tool_calls"][0]["function"]["name"] == sent


# -- repairing a history --------------------------------------------------------------------


def test_a_whole_conversation_is_kept_as_it_is():
    whole = [user(), calling("a", "b"), tool_message("a", "1"), tool_message("b", "2"), user()]

    assert repaired(whole) == whole
    assert all(new is old for new, old in zip(repaired(whole), whole, strict=True))


def test_a_call_without_a_result_gets_one_that_says_so():
    left = [user(), calling("a", "b"), tool_message("b", "2"), user()]

    assert repaired(left) == [
        user(),
        calling("a", "b"),
        tool_message("a", NO_RESULT, is_error=True),
        tool_message("b", "2"),
        user(),
    ]


def test_a_result_without_a_call_is_left_out():
    assert repaired([tool_message("x", "1"), user(), tool_message("y", "2")]) == [user()]


def test_only_the_first_result_of_a_call_is_kept():
    twice = [calling("a"), tool_message("a", "1"), tool_message("a", "2")]

    assert repaired(twice) == twice[:2]


def test_a_call_that_is_there_twice_is_one():
    assert repaired([calling("a", "b", "a"), tool_message("a", "1"), tool_message("b", "2")]) == [
        calling("a", "b"),
        tool_message("a", "1"),
        tool_message("b", "2"),
    ]


def test_results_come_in_call_order_before_what_the_user_says():
    mixed = [calling("a", "b"), tool_message("b", "2"), user(), tool_message("a", "1")]

    assert repaired(mixed) == [
        calling("a", "b"),
        tool_message("a", "1"),
        tool_message("b", "2"),
        user(),
    ]


def test_a_later_call_may_have_the_id_of_an_earlier_one():
    again = [calling("a"), tool_message("a", "1"), calling("a"), tool_message("a", "2")]

    assert repaired(again) == again


def test_calls_of_one_id_are_told_apart_before_they_are_sent():
    again = [calling("a"), tool_message("a", "1"), calling("a", "b"), tool_message("a", "2")]

    assert sendable(again) == [
        calling("a"),
        tool_message("a", "1"),
        calling("a-2", "b"),
        tool_message("a-2", "2"),
        tool_message("b", NO_RESULT, is_error=True),
    ]
    assert again[2] == calling("a", "b")


ids = st.sampled_from("abc")
histories = st.lists(
    st.one_of(
        st.just(user()),
        st.just({"role": "assistant", "content": "Yes."}),
        st.lists(ids, min_size=1, max_size=4).map(lambda called: calling(*called)),
        st.builds(tool_message, ids, st.sampled_from("123")),
    ),
    max_size=12,
)


def is_paired(messages):
    """Return whether each turn's calls are answered right behind it, once and in order."""
    waiting = []
    for message in messages:
        if message["role"] == "tool":
            if not waiting or waiting.pop(0) != message["tool_call_id"]:
                return False
        elif waiting:
            return False
        else:
            waiting = [call["id"] for call in message.get("tool_calls", ())]
            if len(set(waiting)) < len(waiting):
                return False
    return not waiting


@given(histories)
def test_every_history_becomes_paired_and_loses_nothing_else(history):
    before = [dict(message) for message in history]
    result = repaired(history)

    assert is_paired(result)
    assert repaired(result) == result
    assert is_paired(sendable(history))
    assert history == before
    assert [m["content"] for m in result if m["role"] != "tool"] == [
        m["content"] for m in history if m["role"] != "tool"
    ]


@given(histories, st.integers(1, 12))
def test_the_last_turns_of_a_repaired_history_begin_with_a_user_and_are_paired(history, count):
    kept = [message for turn in list(turns(repaired(history)))[-count:] for message in turn]

    assert not kept or kept[0]["role"] == "user"
    assert is_paired(kept)
