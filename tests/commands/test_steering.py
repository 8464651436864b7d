"""What is typed while a run goes on."""

import io
import os
import pty
import subprocess
import sys
import threading

import pytest
from django.core.management.base import OutputWrapper

from mlango.exceptions import Misused
from mlango.management.keyboard import raw_keys
from mlango.management.steering import Line, Steering
from mlango.management.terminal import Screen
from tests.commands.conftest import Tty
from tests.commands.test_chat import rest_of


@pytest.mark.parametrize(
    ("keys", "lines", "left"),
    [
        (b"stop\n", ["stop"], ""),
        (b"one\rtwo\nthr", ["one", "two"], "thr"),
        (b"stup\x7f\x7fop\n", ["stop"], ""),
        (b"all wrong\x15right\n", ["right"], ""),
        (b"two words\x17w", [], "twow"),
        (b"a\x1b[Ab\x1b[3~c", [], "abc"),
        (b"\n  \n", [], ""),
        ("größe".encode(), [], "größe"),
        (b"a\x00\x04b", [], "ab"),
    ],
)
def test_keys_make_lines(keys, lines, left):
    line = Line()

    assert line.feed(keys) == lines
    assert line.text == left


def test_a_character_may_come_in_pieces():
    line = Line()

    line.feed("ö".encode()[:1])
    line.feed("ö".encode()[1:])

    assert line.text == "ö"


class Stream:
    """Notes what a run is told."""

    def __init__(self):
        self.told = []

    def steer(self, text):
        if text == "late":
            raise Misused("The run has ended.")
        self.told.append(("steer", text))

    def follow_up(self, text):
        self.told.append(("follow_up", text))


@pytest.mark.parametrize(
    ("line", "told", "shown"),
    [
        ("stop it", [("steer", "stop it")], "you> stop it"),
        ("/later and then", [("follow_up", "and then")], "you> /later and then"),
        ("//model", [("steer", "/model")], "you> //model"),
        ("/etc/hosts", [("steer", "/etc/hosts")], "you> /etc/hosts"),
        ("/model x", [], "While a run goes on, /later TEXT is the only command."),
        ("/later", [], "While a run goes on, /later TEXT is the only command."),
        ("late", [], "The run has ended."),
    ],
)
def test_a_line_is_told_to_the_run(line, told, shown):
    stream, err = Stream(), Tty()

    Steering(screen(io.StringIO()), screen(err)).tell(stream, line)

    assert stream.told == told
    assert err.getvalue() == f"{shown}\n"


def test_a_line_never_gets_into_an_answer_that_goes_to_a_file():
    out = io.StringIO()
    screen_of_out = screen(out)
    screen_of_out.write("half an ans")

    Steering(screen_of_out, screen(Tty())).tell(Stream(), "stop")

    assert out.getvalue() == "half an ans"


def screen(out):
    return Screen(OutputWrapper(out))


def test_without_a_terminal_no_keys_are_read(piped):
    piped("stop\n")

    with raw_keys() as has_keys:
        assert not has_keys


def test_a_chat_tells_its_run_what_is_typed_and_keeps_the_rest():
    pytest.importorskip("readline")
    ours, theirs = pty.openpty()
    program = (
        "import django, fcntl, termios, tests.commands.steered\n"
        "fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"  # only whose terminal it is may change it
        "from django.core.management import execute_from_command_line as run\n"
        "django.setup()\n"
        "run(['manage.py', 'agent', 'commands.Patient'])\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=os.environ | {"DJANGO_SETTINGS_MODULE": "tests.settings", "TERM": "xterm"},
        start_new_session=True,
    ) as process:
        os.close(theirs)
        watchdog = threading.Timer(60, process.kill)
        watchdog.start()
        shown = until(ours, b"you> ")
        os.write(ours, b"begin\n")
        shown += until(ours, b"HOLDING")
        os.write(ours, b"stop that\nand this\nnot sent")
        shown += until(ours, b"you> not sent")
        os.write(ours, b"\x15/quit\n")
        shown += rest_of(ours)
        watchdog.cancel()
    os.close(ours)

    assert b"you> stop that" in shown
    assert b"heard: and this" in shown


def until(terminal, mark):
    """Return what is shown until a mark is."""
    shown = b""
    while mark not in shown:
        shown += os.read(terminal, 1024)
    return shown
