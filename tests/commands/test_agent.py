"""``manage.py agent`` and its neighbours, as a user types them."""

import io
import json

import pytest
from django.core.management import CommandError, call_command

from mlango.agents import Agent, tool
from mlango.management.terminal import Sanitizer, sanitize
from mlango.models import Trace
from mlango.runtime.registry import registry

pytestmark = pytest.mark.django_db


@tool
def shout(text: str) -> str:
    """Say it louder."""
    return text.upper()


class Shouter(Agent):
    """Shouts."""

    class Meta:
        app_label = "commands"
        tools = [shout]


@pytest.fixture(autouse=True)
def registered():
    registry.register(Shouter)


def manage(*arguments):
    out, err = io.StringIO(), io.StringIO()
    code = 0
    try:
        call_command(*arguments, stdout=out, stderr=err)
    except SystemExit as leave:
        code = leave.code
    return out.getvalue(), err.getvalue(), code


def test_stdout_is_the_answer_and_nothing_else():
    out, err, code = manage("agent", "commands.Shouter", "hello")

    assert out == "HELLO\n"
    assert "2 steps" in err
    assert code == 0


@pytest.mark.parametrize("place", [0, 1, 2])
def test_options_may_stand_anywhere(place):
    words = ["commands.Shouter", "hello"]
    words.insert(place, "--json")

    out, _, _ = manage("agent", *words)

    events = [json.loads(line) for line in out.splitlines()]
    assert events[-1]["kind"] == "finished"
    assert events[-1]["output"] == "HELLO"


def test_an_unknown_label_suggests_one_and_is_a_wrong_usage():
    with pytest.raises(CommandError, match=r"Did you mean 'commands\.Shouter'") as error:
        manage("agent", "commands.Shoutr", "hello")

    assert error.value.returncode == 2


def test_a_limit_has_an_exit_code_of_its_own():
    _, err, code = manage("agent", "commands.Shouter", "hello", "--max-steps", "1")

    assert code == 4
    assert "max_steps" in err


def test_steps_are_told_on_stderr():
    out, err, _ = manage("agent", "commands.Shouter", "hello", "--show-steps")

    assert out == "HELLO\n"
    assert "→ shout" in err
    assert "✓ shout" in err


def test_traces_lists_and_shows_what_was_done():
    manage("agent", "commands.Shouter", "hello")
    prefix = str(Trace.objects.get().pk)[:8]

    listed, _, _ = manage("traces", "list")
    shown, _, _ = manage("traces", "show", prefix)

    assert prefix in listed
    assert "shout" in shown
    assert "HELLO" in shown


def test_an_unknown_trace_is_an_error():
    with pytest.raises(CommandError, match="ffffffff"):
        manage("traces", "show", "ffffffff")


def test_agents_lists_them():
    out, _, _ = manage("agents")

    assert "commands.Shouter" in out


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("a\x00b", "a\ufffdb"),
        ("a\u202eb", "a\ufffdb"),
        ("line\nnext\ttab", "line\nnext\ttab"),
    ],
)
def test_text_cannot_steer_the_terminal(text, shown):
    assert sanitize(text) == shown


def test_an_escape_sequence_cut_by_a_chunk_is_dropped_all_the_same():
    sanitizer = Sanitizer()

    assert [sanitizer.feed(chunk) for chunk in ("a\x1b", "[2", "Jb")] == ["a", "", "b"]
