"""``manage.py agent``, as a user types it."""

import io
import json
import os
import signal
import subprocess
import sys
import threading

import pytest
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command
from django.db import connections

from mlango.agents.providers import Completion, ToolCall
from mlango.exceptions import (
    AuthenticationFailed,
    InvalidRequest,
    ProviderTimeout,
    ProviderUnavailable,
)
from mlango.models import Trace
from tests.commands.shouting import script

User = get_user_model()

pytestmark = pytest.mark.django_db

SHOUTER, SCRIPTED = "commands.Shouter", "commands.Scripted"


# -- one answer -------------------------------------------------------------------------------


def test_stdout_is_the_answer_and_nothing_else(manage):
    out, err, code = manage("agent", SHOUTER, "hello")

    trace = Trace.objects.get()
    assert out == "HELLO\n"
    assert err == f"2 steps · {trace.usage.total_tokens} tokens · trace {trace.uuid[:8]}\n"
    assert code == 0


def test_an_answer_that_ends_its_line_gets_no_empty_one(manage):
    script("One line.\n")

    assert manage("agent", SCRIPTED, "hi")[0] == "One line.\n"


def test_what_is_said_before_a_tool_call_has_a_line_of_its_own(manage):
    script(Completion("Let me see.", [ToolCall("c", "shout", {"text": "x"})]), "Done.")

    assert manage("agent", SCRIPTED, "hi")[0] == "Let me see.\nDone.\n"


def test_words_make_one_message(manage):
    assert manage("agent", SHOUTER, "hello", "there")[0] == "HELLO THERE\n"


@pytest.mark.parametrize("place", [0, 1, 2])
def test_options_may_stand_anywhere(manage, place):
    words = [SHOUTER, "hello"]
    words.insert(place, "--json")

    out, _, _ = manage("agent", *words)

    assert json.loads(out.splitlines()[-1])["output"] == "HELLO"


def test_what_follows_two_dashes_is_message(manage):
    assert manage("agent", SHOUTER, "--", "--json")[0] == "--JSON\n"


def test_steps_are_told_on_stderr_one_line_each(manage):
    out, err, _ = manage("agent", "commands.Stumbler", "hello", "--show-steps")

    lines = err.splitlines()
    assert lines[0] == "step 1 · model call"
    assert lines[1] == '→ stumble {"text": "hello"}'
    assert lines[2].startswith("✗ stumble ")
    assert len(lines) == 5
    assert "stumble" not in lines[-1]
    assert "→" not in out


def test_a_model_cannot_steer_the_terminal(manage):
    script(
        Completion(
            "\x1b]0;title\x07\x1b[2Jsafe\u202e", [ToolCall("c", "shout", {"text": "\x1b[2J"})]
        ),
        "\x9b2Jend",
    )

    out, err, _ = manage("agent", SCRIPTED, "hi", "--show-steps")

    assert out == "safe\ufffd\nend\n"
    assert "\x1b" not in err
    assert "\x9b" not in err


def test_half_a_character_does_not_break_the_output(manage):
    script("a\ud800b")

    assert manage("agent", SCRIPTED, "hi")[0] == "a\ufffdb\n"


def test_an_encoding_without_the_symbols_gets_plain_ones():
    err = io.TextIOWrapper(io.BytesIO(), encoding="ascii")

    call_command("agent", SHOUTER, "hello", "--show-steps", stdout=io.StringIO(), stderr=err)

    assert b"> shout" in err.buffer.getvalue()
    assert b"steps - " in err.buffer.getvalue()


# -- where the message comes from --------------------------------------------------------------


@pytest.mark.parametrize("words", [["-"], []])
def test_a_message_is_read_from_stdin(manage, piped, words):
    piped("hello\n")

    assert manage("agent", SHOUTER, *words)[0] == "HELLO\n"


def test_stdin_is_left_alone_when_there_is_a_message(manage, monkeypatch):
    class Untouched(io.StringIO):
        def read(self, *args):
            raise AssertionError("stdin was read")

    monkeypatch.setattr("sys.stdin", Untouched())

    assert manage("agent", SHOUTER, "hello")[2] == 0


@pytest.mark.parametrize("words", [[], [""], ["-"]])
def test_an_empty_message_is_a_wrong_usage(manage, piped, words):
    piped("\n")

    out, err, code = manage("agent", SHOUTER, *words)

    assert (out, code) == ("", 2)
    assert "The message is empty" in err


def test_a_process_without_stdin_gets_the_same_answer(manage, monkeypatch):
    monkeypatch.setattr("sys.stdin", None)

    assert manage("agent", SHOUTER)[2] == 2


# -- options -----------------------------------------------------------------------------------


def test_json_is_one_event_a_line_in_ascii(manage):
    out, err, _ = manage("agent", SHOUTER, "größe", "--json")

    events = [json.loads(line) for line in out.splitlines()]
    assert out.isascii()
    assert [events[0]["kind"], events[-1]["kind"]] == ["started", "finished"]
    assert events[-1]["output"] == "GRÖSSE"
    assert err == ""


def test_json_ends_with_failed_if_the_run_failed(manage):
    script(InvalidRequest("No such model."))

    out, _, code = manage("agent", SCRIPTED, "hi", "--json")

    assert json.loads(out.splitlines()[-1])["kind"] == "failed"
    assert code == 1


def test_json_is_not_for_a_chat(manage, typed):
    typed("hello\n")

    _, err, code = manage("agent", SHOUTER, "--json")

    assert code == 2
    assert "--json needs a message" in err


def test_a_user_and_a_session_are_those_of_the_trace(manage):
    ada = User.objects.create_user("ada")

    manage("agent", SHOUTER, "hello", "--user", "ada", "--session", "s1")

    trace = Trace.objects.get()
    assert (trace.user, trace.session_key) == (ada, "s1")


def test_a_file_is_attached(manage, tmp_path):
    path = tmp_path / "note.txt"
    path.write_text("a note")

    manage("agent", SHOUTER, "hello", "--file", str(path))

    said = Trace.objects.get().messages[0]["content"]
    assert said[1]["file"]["filename"] == "note.txt"


def test_a_recorded_run_is_replayed(manage, tmp_path):
    path = str(tmp_path / "cassette.json")
    script("Recorded.")
    manage("agent", SCRIPTED, "hi", "--record", path)

    out, _, code = manage("agent", SCRIPTED, "hi", "--replay", path)

    assert (out, code) == ("Recorded.\n", 0)


def test_an_unknown_agent_is_told_before_an_empty_message(manage, piped):
    piped("")

    assert "Did you mean 'commands.Shouter'?" in manage("agent", "commands.Shoutr")[1]


def test_a_cassette_that_is_there_is_kept(manage, tmp_path):
    path = tmp_path / "cassette.json"
    path.write_text("kept")

    _, err, code = manage("agent", SCRIPTED, "hi", "--record", str(path))

    assert "is already there. Delete it, or record to another." in err
    assert (path.read_text(), code) == ("kept", 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("{broken\n", "has no JSON in line 1"),
        ('{"mlango_cassette": 1}\n{"ag', "is cut off in line 2"),
    ],
)
def test_a_broken_cassette_is_a_wrong_usage(manage, tmp_path, text, message):
    path = tmp_path / "cassette.json"
    path.write_text(text)

    out, err, code = manage("agent", SCRIPTED, "hi", "--replay", str(path))

    assert message in err
    assert (out, code) == ("", 2)


def test_a_cassette_that_cannot_be_written_fails_the_run_and_keeps_it(manage, tmp_path):
    script("Said.")

    out, err, code = manage("agent", SCRIPTED, "hi", "--record", str(tmp_path / ("long" * 99)))

    assert "cannot be written: File name too long." in err
    assert (out, code) == ("Said.\n", 1)
    assert Trace.objects.get().status == "failed"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["commands.Shoutr", "hi"], "Did you mean 'commands.Shouter'?"),
        ([SHOUTER, "hi", "--user", "nobody"], "There is no user 'nobody'."),
        ([SHOUTER, "hi", "--provider", "ech"], "Did you mean 'echo'?"),
        ([SHOUTER, "hi", "--model", ""], "--model needs a value"),
        ([SHOUTER, "hi", "--file", "gone.txt"], "Cannot read the file 'gone.txt'"),
        ([SHOUTER, "hi", "--replay", "gone.json"], "'gone.json' is not there"),
    ],
)
def test_a_wrong_usage_is_told_before_anything_runs(manage, arguments, message):
    out, err, code = manage("agent", *arguments)

    assert message in err
    assert (out, code) == ("", 2)
    assert not Trace.objects.exists()


# -- exit codes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (InvalidRequest("No such model."), 1),
        (ProviderUnavailable("The server is away.", retryable=False), 69),
        (AuthenticationFailed("The key is wrong."), 69),
        (ProviderTimeout("Nothing came.", retryable=False), 124),
    ],
)
def test_the_exit_code_tells_how_a_run_failed(manage, error, expected):
    script(error)

    out, err, code = manage("agent", SCRIPTED, "hi")

    assert (out, code) == ("", expected)
    assert err.startswith(f"{error}\n")


def test_an_error_of_any_kind_is_told_in_full(manage):
    script(KeyError("missing"))

    _, err, code = manage("agent", SCRIPTED, "hi")

    assert "KeyError: 'missing'" in err
    assert code == 1


def test_a_limit_has_an_exit_code_of_its_own(manage):
    _, err, code = manage("agent", SHOUTER, "hello", "--max-steps", "1")

    assert code == 4
    assert "max_steps" in err


@pytest.mark.parametrize(("name", "expected"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_stops_the_run_and_keeps_it(manage, name, expected):
    before = signal.getsignal(getattr(signal, name))

    _, err, code = manage("agent", "commands.Interrupted", name)

    assert code == expected
    assert "Press Ctrl-C again" in err
    assert Trace.objects.get().status == "cancelled"
    assert signal.getsignal(getattr(signal, name)) is before


def test_a_second_interrupt_ends_what_a_tool_does(manage):
    _, _, code = manage("agent", "commands.InterruptedTwice", "now")

    assert code == 130
    assert Trace.objects.get().status == "cancelled"


@pytest.mark.django_db(transaction=True)
def test_another_thread_than_the_main_one_may_run_it(manage):
    seen = []
    thread = threading.Thread(target=lambda: seen.append(run_and_close(manage)))
    thread.start()
    thread.join()

    assert seen[0][0] == "HELLO\n"


def run_and_close(manage):
    try:
        return manage("agent", SHOUTER, "hello")
    finally:
        connections.close_all()


# -- readers that leave ------------------------------------------------------------------------


class Closed(io.StringIO):
    """A pipe whose reader has left."""

    def write(self, text):
        raise BrokenPipeError


def test_a_reader_that_leaves_stops_the_run_without_an_error():
    err = io.StringIO()

    call_command("agent", SHOUTER, "hello", stdout=Closed(), stderr=err)

    assert err.getvalue() == ""
    assert Trace.objects.get().status == "cancelled"


def test_a_process_whose_reader_left_says_nothing_at_its_exit():
    program = (
        "import django, tests.commands.shouting\n"
        "from django.core.management import execute_from_command_line as run\n"
        "django.setup()\n"
        "run(['manage.py', 'agents'])\n"
    )
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as gone:
        done = subprocess.run(
            [sys.executable, "-c", program],
            stdout=gone,
            stderr=subprocess.PIPE,
            env=os.environ | {"DJANGO_SETTINGS_MODULE": "tests.settings"},
            check=False,
        )

    assert (done.stderr, done.returncode) == (b"", 0)


class Full(io.StringIO):
    """A disk that is full."""

    def write(self, text):
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_full_disk_is_told_and_the_run_is_kept(options):
    with pytest.raises(CommandError) as caught:
        call_command("agent", SHOUTER, "hello", *options, stdout=Full(), stderr=io.StringIO())

    assert str(caught.value) == "The output cannot be written: No space left on device."
    assert caught.value.returncode == 1
    assert Trace.objects.get().status == "cancelled"


# -- a chat ------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["exit", "quit", ":q"])
def test_a_chat_goes_on_until_the_user_leaves(manage, typed, word):
    typed(f"one\n\ntwo\n{word}\nthree\n")

    out, err, code = manage("agent", SHOUTER)

    assert out == "ONE\nTWO\n"
    assert err.count("you> ") == 4
    assert code == 0


def test_ctrl_d_leaves(manage, typed):
    typed("one\n")

    out, _, code = manage("agent", SHOUTER)

    assert (out, code) == ("ONE\n", 0)


def test_a_chat_remembers_what_was_said(manage, typed):
    typed("one\ntwo\n")

    manage("agent", SHOUTER)

    last = Trace.objects.first()
    assert last.session_key == "cli"
    assert [message["content"] for message in last.history][:1] == ["one"]


def test_a_chat_may_have_a_session_of_its_own(manage, typed):
    typed("one\n")

    manage("agent", SHOUTER, "--session", "mine")

    assert Trace.objects.get().session_key == "mine"


def test_a_file_belongs_to_the_first_message_of_a_chat(manage, typed, tmp_path):
    path = tmp_path / "note.txt"
    path.write_text("a note")
    typed("one\ntwo\n")

    manage("agent", SHOUTER, "--file", str(path))

    assert [isinstance(t.turn[0]["content"], list) for t in Trace.objects.all()] == [False, True]


def test_a_chat_goes_on_after_an_error_of_the_provider(manage, typed):
    script(ProviderUnavailable("The server is away.", retryable=False), "Back.")
    typed("one\ntwo\n")

    out, err, code = manage("agent", SCRIPTED)

    assert out == "Back.\n"
    assert "The server is away." in err
    assert code == 0


def test_a_chat_goes_on_after_a_run_that_was_stopped(manage, typed):
    typed("SIGINT\nuse nothing\n")

    _, err, code = manage("agent", "commands.Interrupted")

    assert "The run was stopped." in err
    assert err.count("you> ") == 3
    assert code == 0


def test_sigterm_ends_a_chat(manage, typed):
    typed("SIGTERM\nmore\n")

    _, err, code = manage("agent", "commands.Interrupted")

    assert err.count("you> ") == 1
    assert code == 143


def test_ctrl_c_at_the_prompt_leaves_when_pressed_twice(manage, monkeypatch):
    class Pressing(io.StringIO):
        def isatty(self):
            return True

        def readline(self, *args):
            raise KeyboardInterrupt

    monkeypatch.setattr("sys.stdin", Pressing())

    _, err, code = manage("agent", SHOUTER)

    assert err.count("you> ") == 2
    assert "Press Ctrl-C again or Ctrl-D to leave." in err
    assert code == 130
