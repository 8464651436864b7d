"""Conversations as bytes: each message is encoded once, and never a wrong one sent."""

from __future__ import annotations

import json

import pytest

from mlango.agents.providers import wire
from mlango.agents.providers.wire import Encoder, turns
from mlango.core.messages import tool_message

IMAGE = {"type": "image_url", "image_url": {"url": "https://x/y.png"}}


def user(text):
    return {"role": "user", "content": text}


def sent(encoder, messages, model="m"):
    return json.loads(b"[" + bytes(encoder.encode(messages, "here", model)) + b"]")


@pytest.fixture
def encoded(monkeypatch):
    """The values that were encoded, in order."""
    seen = []
    encode = wire.encode
    monkeypatch.setattr(wire, "encode", lambda value: seen.append(value) or encode(value))
    return seen


def test_a_message_is_encoded_once(encoded):
    encoder, messages = Encoder(), [user("one")]

    sent(encoder, messages)
    messages += [{"role": "assistant", "content": "two"}, user("three")]
    last = sent(encoder, messages)

    assert last == messages
    assert [each["content"] for each in encoded] == ["one", "two", "three"]


def test_a_conversation_that_changed_is_encoded_anew():
    encoder, messages = Encoder(), [user("one"), user("two")]
    sent(encoder, messages)

    messages[0] = user("other")
    assert sent(encoder, messages) == [user("other"), user("two")]
    messages.pop()
    assert sent(encoder, messages) == [user("other")]
    messages.clear()
    assert sent(encoder, messages) == []


def test_each_model_has_its_own_bytes():
    raw = {"model": "m", "message": {"reasoning": "Hm."}, "tool_calls": []}
    turn = {"role": "assistant", "content": "x", "raw_content": raw, "provider": "here"}
    encoder, messages = Encoder(), [turn]

    assert "reasoning" in sent(encoder, messages, "m")[0]
    assert "reasoning" not in sent(encoder, messages, "n")[0]
    assert "reasoning" in sent(encoder, messages, "m")[0]


def test_results_that_follow_an_image_stand_before_it():
    encoder = Encoder()
    messages = [user("draw"), tool_message("1", [IMAGE])]
    sent(encoder, messages)

    messages.append(tool_message("2", "done"))
    roles = [message["role"] for message in sent(encoder, messages)]

    assert roles == ["user", "tool", "tool", "user"]


def test_only_so_many_conversations_are_kept(monkeypatch):
    monkeypatch.setattr(wire, "KEPT", 2)
    encoder, conversations = Encoder(), [[user(str(number))] for number in range(4)]

    for messages in conversations:
        sent(encoder, messages)

    assert len(encoder._kept) == 2
    assert [sent(encoder, messages) for messages in conversations] == conversations


def test_a_large_conversation_is_not_kept(monkeypatch):
    monkeypatch.setattr(wire, "MAX_KEPT_BYTES", 50)
    encoder = Encoder()

    sent(encoder, [user("x" * 100)])

    assert not encoder._kept


def test_text_that_is_no_unicode_is_sent_all_the_same():
    assert sent(Encoder(), [user("a\ud800b")]) == [user("a?b")]


def test_what_is_no_number_is_sent_as_null():
    assert wire.encode({"a": float("nan"), "b": float("inf")}) == b'{"a":null,"b":null}'


def test_images_between_turns_stay_in_their_place():
    messages = [
        tool_message("1", [{"type": "text", "text": "A cat."}, IMAGE]),
        user("Nice."),
        tool_message("2", [IMAGE]),
    ]

    found = [(turn["role"], turn["content"]) for turn in turns(messages, "here", "m")]

    hoisted = [{"type": "text", "text": "Image from tool result:"}, IMAGE]
    assert found == [
        ("tool", "A cat."),
        ("user", hoisted),
        ("user", "Nice."),
        ("tool", "The result follows as an image."),
        ("user", hoisted),
    ]


def test_images_of_an_assistant_are_left_out():
    turn = {"role": "assistant", "content": [{"type": "text", "text": "Here."}, IMAGE]}

    assert list(turns([turn], "here", "m")) == [{"role": "assistant", "content": "Here."}]


def test_a_turn_in_which_nothing_was_said_is_left_out():
    nothing = {"role": "assistant", "content": ""}

    assert list(turns([user("Hi"), nothing, user("Hello?")], "here", "m")) == [
        user("Hi"),
        user("Hello?"),
    ]


def test_extras_of_calls_go_back_by_their_order():
    made = [
        {"id": each, "type": "function", "function": {"name": "f", "arguments": "{}"}}
        for each in "ab"
    ]
    raw = {"model": "m", "message": {}, "tool_calls": [{}, {"extra_content": {"x": 1}}]}
    turn = {
        "role": "assistant",
        "content": "",
        "tool_calls": made,
        "raw_content": raw,
        "provider": "here",
    }

    (own,) = turns([turn], "here", "m")
    assert own["content"] is None  # some servers refuse an empty text
    (other,) = turns([turn], "elsewhere", "m")

    assert own["tool_calls"] == [made[0], {**made[1], "extra_content": {"x": 1}}]
    assert other["tool_calls"] == made
