"""What a user types at the terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from django.core.management.base import OutputWrapper


def ask_line(prompt: str, stderr: OutputWrapper, typed: str = "") -> str:
    """Return the line that the user types. Raise EOFError for Ctrl-D.

    ``typed`` is what he has typed of it already, where lines can be edited.
    """
    if sys.stdout.isatty():
        with _prefilled(typed):
            return input(prompt)
    # input() would write the prompt to stdout, which is kept for the answer.
    stderr.write(prompt, ending="")
    stderr.flush()
    if line := sys.stdin.readline():
        return line.rstrip("\n")
    raise EOFError


@contextmanager
def _prefilled(typed: str) -> Iterator[None]:
    readline = sys.modules.get("readline")  # who edits lines has imported it
    if readline is None or not typed:
        yield
        return
    readline.set_startup_hook(lambda: readline.insert_text(typed))
    try:
        yield
    finally:
        readline.set_startup_hook()


@contextmanager
def raw_keys() -> Iterator[bool]:
    """Have the terminal hand over each key and echo none; give whether it does.

    Ctrl-C stays what it is. There is none where stdin is no terminal, or that of another job.
    """
    try:
        import termios
        import tty

        keyboard = sys.stdin.fileno()
        before = termios.tcgetattr(keyboard)
        is_ours = os.tcgetpgrp(keyboard) == os.getpgrp()
    except (ImportError, AttributeError, OSError, termios.error):  # Windows, or no terminal
        yield False
        return
    if not is_ours:  # to change its modes would stop the process
        yield False
        return
    tty.setcbreak(keyboard, termios.TCSADRAIN)
    try:
        yield True
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def forget_typed_ahead() -> None:
    """Drop what was typed before there was something to answer to."""
    try:
        import termios
    except ImportError:  # on Windows
        return
    with suppress(OSError, termios.error):  # stdin is no terminal of the system's
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
