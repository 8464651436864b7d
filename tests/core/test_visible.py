"""Text that deceives nobody."""

import json

import pytest

from mlango.core.visible import canonical, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("größe 大 🙂 шар", "größe 大 🙂 шар"),
        ("a\u202eb", "a\\u202eb"),
        ("a\u200bb\ufeff", "a\\u200bb\\ufeff"),
        ("a\x1b[2Jb\x7f\x9b", "a\\u001b[2Jb\\u007f\\u009b"),
        ("a\u00a0b\u3164c\ufe0f", "a\\u00a0b\\u3164c\\ufe0f"),
        ("\U000e0041", "\\udb40\\udc41"),
        ("half \ud800", "half \\ud800"),
        ("p\u0430ypal", "p\\u0430ypal"),
        ("10 k\u03a9 or \u03a9", "10 k\\u03a9 or \u03a9"),
    ],
)
def test_what_cannot_be_seen_is_escaped(text, shown):
    assert visible(text) == shown


def test_a_value_is_one_line_of_json_that_means_the_same():
    value = {"b": ["two\nlines", "\u202etxt.exe"], "a": {"z": 1.5, "y": None}}

    shown = canonical(value)

    assert shown == '{"a": {"y": null, "z": 1.5}, "b": ["two\\nlines", "\\u202etxt.exe"]}'
    assert json.loads(shown) == value


def test_a_text_that_looks_escaped_is_told_from_an_escaped_one():
    assert canonical("\\u202e") != canonical("\u202e")
