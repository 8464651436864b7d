"""Whatever a user, a model or a tool says, a run ends and its rows can be read."""

import json

import pytest

from mlango.agents.memory import MetastoreMemory
from mlango.core.memory import SessionKey
from mlango.core.messages import user_messages
from mlango.core.provider import Completion, ToolCall
from mlango.core.tools import tool
from mlango.exceptions import ToolError
from mlango.models import Span, Trace
from mlango.runtime.sessions import SessionTurn
from tests.helpers import finish, new_run

pytestmark = pytest.mark.django_db
KEY = SessionKey("shop.Support", "", "s1")
KEPT = "🍸 👩‍👩‍👧 日本 \u200fعربي"

VALUES = [
    "a\0b",
    {"k\0": "v\0"},
    "half \ud800 and \udc97",
    "joined \ud83c\udf78",
    KEPT,
    float("nan"),
    [float("inf")],
    {1, 2},
    b"\xff",
    2**70,
    object(),
]


def odd_run(value, message="Hi\0 \ud800"):
    """Return a run whose one tool returns ``value``."""

    @tool
    def odd(text: str = "") -> object:
        """Return something odd."""
        if isinstance(value, Exception):
            raise value
        return value

    calls = [ToolCall("id\0\ud800", "odd", '{"text": "\\u0000 \\ud83c\\udf78 \ud800"}')]
    return new_run(
        [Completion(tool_calls=calls), "Done\0 \udc97"],
        [odd],
        said=user_messages(message),
        session_id="s1",
        memory=MetastoreMemory(),
        memory_key=KEY,
        turn=SessionTurn(KEY),
    )


def stored_text():
    """Return all that was stored, as strict JSON text."""
    rows = [*Trace.objects.values(), *Span.objects.values()]
    text = json.dumps(rows, default=str, allow_nan=False, ensure_ascii=False)
    text.encode()
    return text


@pytest.mark.parametrize("value", [*VALUES, ToolError("told\0\ud800"), ValueError("x\0\ud800")])
def test_a_run_with_odd_values_ends_and_is_stored(value):
    run = finish(odd_run(value))

    assert run.status == "finished"
    assert run.tool_results[0].error_type != "validation"
    assert "\0" not in stored_text()
    decoded = repr([(span.input, span.output) for span in Span.objects.all()])
    assert "\\x00" not in decoded
    assert "\\ud800" not in decoded
    assert Trace.objects.get().status == "finished"


def test_the_next_run_recalls_what_was_odd():
    finish(odd_run("a\0b \ud800"))
    again = finish(odd_run(KEPT, message="Again"))

    assert again.status == "finished"
    assert Trace.objects.filter(status="finished").count() == 2
    recalled = [m["content"] for m in again.messages if m["role"] == "tool"]
    assert recalled == ["a␀b \ufffd", KEPT]
