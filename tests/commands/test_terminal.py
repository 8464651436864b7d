"""What a terminal may be shown."""

import io

import pytest
from django.core.management.base import OutputWrapper

from mlango.management.terminal import Sanitizer, Screen, cut, one_line, sanitize, width
from mlango.management.waiting import Waiting
from tests.commands.conftest import Tty
from tests.commands.shouting import script


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("größe 大 🙂", "größe 大 🙂"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[38;5;1mred", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bPq#0;\x1b\\after", "after"),
        ("\x1b(Bafter", "after"),
        ("\x1bcafter", "after"),
        ("\x9b31mred", "red"),
        ("\x9d0;title\x9cafter", "after"),
        ("\x84after", "after"),
        ("\x1béafter", "éafter"),
        ("\x1b\x1b[2Jafter", "after"),
        ("\x1b[2éafter", "éafter"),
        ("\x1b]open\nnext line", "\nnext line"),
        ("\x1b]open\x18after", "after"),
        ("a\x00b\x07c\x7fd\x08", "a\ufffdb\ufffdc\ufffdd\ufffd"),
        ("a\u202eb\u2066c", "a\ufffdb\ufffdc"),
        ("half \ud800", "half \ufffd"),
        ("line\nnext\ttab", "line\nnext\ttab"),
        ("line\r\nnext", "line\nnext"),
        ("over\rwritten", "over\ufffdwritten"),
        ("cut \x1b[3", "cut "),
    ],
)
def test_text_cannot_steer_the_terminal(text, shown):
    assert sanitize(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "a\x1b[2Jb",
        "a\x1b]0;title\x07b",
        "a\x1b]0;t\x1b\\b",
        "a\x1bPq\x1b\\b",
        "a\r\nb",
        "a\x1b(Bb",
    ],
)
def test_it_does_not_matter_where_chunks_end(text):
    sanitizer = Sanitizer()

    assert "".join(map(sanitizer.feed, text)) == sanitize(text)


def test_a_text_becomes_one_line_of_limited_length():
    assert one_line("a\n  b\tc") == "a b c"
    assert one_line("abcdef", limit=3) == "abc…"


# -- colours -----------------------------------------------------------------------------------

STUMBLER = "commands.Stumbler"


@pytest.mark.django_db
def test_a_terminal_is_shown_errors_in_red(seen):
    script(ValueError("no"))

    assert "\x1b[31mValueError: no\x1b[0m\n" in seen("agent", "commands.Scripted", "hi")


@pytest.mark.django_db
@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_who_wants_no_colours_gets_no_escape(seen, monkeypatch, name, value):
    monkeypatch.setenv(name, value)

    assert "\x1b" not in seen("agent", STUMBLER, "hi", "--show-steps")


@pytest.mark.django_db
def test_an_option_has_the_last_word_on_colours(seen, manage, monkeypatch):
    assert "\x1b" not in seen("agent", STUMBLER, "hi", "--show-steps", "--no-color")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[31m" in manage("agent", STUMBLER, "hi", "--show-steps", "--force-color")[1]


@pytest.mark.django_db
def test_a_colour_never_reaches_the_answer(manage):
    out, _, _ = manage("agent", "commands.Shouter", "hi", "--force-color")

    assert out == "HI\n"


# -- width -------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_step_takes_one_line_of_a_terminal(seen):
    shown = seen("agent", "commands.Shouter", "long " * 50, "--show-steps", "--no-color")

    assert max(map(width, shown.splitlines())) == 40


@pytest.mark.parametrize(
    ("text", "shown"),
    [("abcdef", "abcdef"), ("abcdefg", "abcde…"), ("大大大", "大大大"), ("大大大大", "大大…")],
)
def test_a_line_is_cut_by_columns_and_not_by_characters(text, shown):
    assert cut(text, 6) == shown


def test_a_combining_mark_takes_no_column():
    assert width("e\u0301") == 1


# -- the live line -----------------------------------------------------------------------------


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def tty(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    return Tty()


def test_a_waiting_user_sees_for_what_and_how_long(tty):
    clock = Clock()
    waiting = Waiting(Screen(OutputWrapper(Tty())), Screen(OutputWrapper(tty)), clock)
    waiting.what = "shout"

    clock.now = 2.0
    waiting.show()

    assert tty.getvalue() == "… shout 2 s"


def test_the_live_line_gives_way_to_what_is_said(tty):
    err = Screen(OutputWrapper(tty))
    waiting = Waiting(Screen(OutputWrapper(Tty())), err, Clock())
    waiting.show()

    with waiting.interrupted():
        err.line("said")

    assert tty.getvalue() == f"… the model 0 s\r{' ' * 15}\rsaid\n"


def test_there_is_no_live_line_within_a_line_of_the_answer(tty):
    out = Screen(OutputWrapper(Tty()))
    out.write("half a li")

    Waiting(out, Screen(OutputWrapper(tty)), Clock()).show()

    assert tty.getvalue() == ""


def test_what_is_waited_for_is_waited_anew_after_each_event(tty):
    clock = Clock()
    waiting = Waiting(Screen(OutputWrapper(Tty())), Screen(OutputWrapper(tty)), clock)

    clock.now = 5.0
    with waiting.interrupted():
        pass
    clock.now = 6.0
    waiting.show()

    assert tty.getvalue() == "… the model 1 s"


def test_a_live_line_that_is_over_stays_away(tty):
    waiting = Waiting(Screen(OutputWrapper(Tty())), Screen(OutputWrapper(tty)), Clock())
    with waiting:
        waiting.show()

    waiting.show()

    assert tty.getvalue().endswith(" \r")


@pytest.mark.parametrize("dumb", [True, False])
def test_only_a_terminal_that_can_do_it_has_a_live_line(tty, monkeypatch, dumb):
    if dumb:
        monkeypatch.setenv("TERM", "dumb")
    err = Screen(OutputWrapper(tty if dumb else io.StringIO()))

    with Waiting(Screen(OutputWrapper(Tty())), err) as waiting:
        assert not waiting._thread.is_alive()
