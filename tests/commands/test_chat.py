"""A chat in the terminal: what is typed that is no message."""

import os
import pty
import subprocess
import sys

import pytest

from mlango.models import Trace

pytestmark = pytest.mark.django_db

SHOUTER = "commands.Shouter"


@pytest.fixture
def chat(manage, typed):
    """Type these lines in a chat, and return its stdout and stderr."""

    def run(*lines, options=()):
        typed("".join(f"{line}\n" for line in lines))
        return manage("agent", SHOUTER, *options)[:2]

    return run


def test_help_lists_the_commands(chat):
    out, err = chat("/help")

    assert out == ""
    for word in ("/help", "/new", "/session", "/model", "/tools", "/quit", "Ctrl-C"):
        assert word in err
    assert not Trace.objects.exists()


def test_an_unknown_command_is_told_and_not_sent(chat):
    out, err = chat("/hepl", "hi")

    assert "There is no command '/hepl'. Did you mean '/help'?" in err
    assert out == "HI\n"


@pytest.mark.parametrize(
    ("line", "said"), [("//help me", "/HELP ME"), ("/etc/hosts is what?", "/ETC/HOSTS IS WHAT?")]
)
def test_a_message_may_begin_with_a_slash(chat, line, said):
    assert chat(line)[0] == f"{said}\n"


def test_a_new_session_forgets_what_was_said(chat):
    _, err = chat("one", "/new", "two")

    newest, first = Trace.objects.order_by("-started_at")
    assert first.session_key == "cli"
    assert f"The session is {newest.session_key!r}." in err
    assert newest.session_key.startswith("cli-")
    assert not newest.history


def test_a_session_is_told_and_changed(chat):
    _, err = chat("/session", "/session mine", "one")

    assert "The session is 'cli'." in err
    assert Trace.objects.get().session_key == "mine"


def test_a_model_is_told_and_changed(chat):
    _, err = chat("/model", "/model echo/other", "one")

    assert "The model is the default." in err
    assert Trace.objects.get().model == "other"


def test_a_model_that_cannot_be_is_told_and_the_chat_goes_on(chat):
    out, err = chat("/model openai/", "one", "/model echo/x", "two")

    assert "needs the name of a model" in err
    assert out == "TWO\n"


def test_tools_are_listed(chat):
    assert "The tools are shout." in chat("/tools")[1]


def test_quit_leaves(chat):
    assert chat("/quit", "one")[0] == ""


def test_a_line_of_before_is_recalled_at_a_terminal():
    pytest.importorskip("readline")

    shown = at_a_terminal(b"/help\n\x1b[A\n/quit\n")

    assert shown.count("begin a new session") == 2


def at_a_terminal(keys):
    """Type these keys in a chat of its own, and return all that its terminal shows."""
    program = (
        "import django, tests.commands.shouting\n"
        "from django.core.management import execute_from_command_line as run\n"
        "django.setup()\n"
        "run(['manage.py', 'agent', 'commands.Shouter'])\n"
    )
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=os.environ | {"DJANGO_SETTINGS_MODULE": "tests.settings", "TERM": "xterm"},
    ):
        os.close(theirs)
        shown = os.read(ours, 1024)  # the chat has begun
        os.write(ours, keys)
        shown += rest_of(ours)
    os.close(ours)
    return shown.decode()


def rest_of(terminal):
    """Return what comes until the program has ended."""
    shown = b""
    try:
        while piece := os.read(terminal, 1024):
            shown += piece
    except OSError:  # as Linux says it
        pass
    return shown
