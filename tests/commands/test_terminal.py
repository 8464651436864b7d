"""What a terminal may be shown."""

import pytest

from mlango.management.terminal import Sanitizer, one_line, sanitize


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
