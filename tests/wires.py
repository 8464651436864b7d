"""What model servers take: strict readers of conversations, as we store them and on the wire."""

import json
import re

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
ID = re.compile(r"[a-zA-Z0-9_-]+")


def assert_sendable(messages):
    """Assert that a stored conversation begins with the user and has each call answered."""
    assert messages[0]["role"] == "user"
    waiting, seen = [], set()
    for message in messages:
        waiting = _paired(message, waiting, seen)
    assert waiting == []


def assert_openai_takes(messages):
    """Assert that OpenAI's chat completions take the messages of a request."""
    said = messages[1:] if messages[0]["role"] == "system" else messages
    assert said[0]["role"] == "user"
    assert said[-1]["role"] in ("user", "tool")
    waiting, seen = [], set()
    for message in said:
        waiting = _paired(message, waiting, seen)
        assert set(message) <= FIELDS[message["role"]]
        assert message["content"] or message.get("tool_calls") or message["role"] == "tool"
        _check_texts(message["content"])
    assert waiting == []


FIELDS = {
    "user": {"role", "content"},
    "assistant": {"role", "content", "tool_calls"},
    "tool": {"role", "content", "tool_call_id"},
}


def _paired(message, waiting, seen):
    """Return the calls that wait for a result behind a message."""
    if message["role"] == "tool":
        assert message["tool_call_id"] == waiting[0]  # in call order
        return waiting[1:]
    assert waiting == []
    assert message["role"] in ("user", "assistant")
    calls = message.get("tool_calls")
    assert calls is None or (message["role"] == "assistant" and calls)
    for call in calls or ():
        assert call["type"] == "function"
        assert call["id"]
        assert call["id"] not in seen
        seen.add(call["id"])
        assert NAME.fullmatch(call["function"]["name"])
        assert isinstance(json.loads(call["function"]["arguments"]), dict)
    return [call["id"] for call in calls or ()]


def _check_texts(content):
    if isinstance(content, list):
        assert content
        assert all(part["text"].strip() for part in content if part["type"] == "text")
    else:
        assert content is None or isinstance(content, str)


def assert_anthropic_takes(messages):
    """Assert that Anthropic takes the messages of a request."""
    roles = [message["role"] for message in messages]
    assert roles == [("user", "assistant")[index % 2] for index in range(len(roles))]
    assert roles[-1] == "user"
    waiting, seen = [], set()
    for message in messages:
        parts = message["content"]
        if isinstance(parts, str):
            parts = [{"type": "text", "text": parts}]
        assert parts
        _check_texts(parts)
        answered = [part["tool_use_id"] for part in parts if part["type"] == "tool_result"]
        assert answered == waiting
        assert all(part["type"] == "tool_result" for part in parts[: len(answered)])
        calls = [part for part in parts if part["type"] == "tool_use"]
        assert not calls or message["role"] == "assistant"
        waiting = [call["id"] for call in calls]
        assert len(set(waiting)) == len(waiting)
        assert seen.isdisjoint(waiting)
        seen.update(waiting)
        for call in calls:
            assert ID.fullmatch(call["id"])
            assert NAME.fullmatch(call["name"])
            assert isinstance(call["input"], dict)
    assert waiting == []
