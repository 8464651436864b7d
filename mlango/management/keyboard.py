"""What a user types at the terminal."""

from __future__ import annotations

import sys
from contextlib import suppress

from django.core.management.base import OutputWrapper


def ask_line(prompt: str, stderr: OutputWrapper) -> str:
    """Return the line that the user types. Raise EOFError for Ctrl-D."""
    if sys.stdout.isatty():
        return input(prompt)
    # input() would write the prompt to stdout, which is kept for the answer.
    stderr.write(prompt, ending="")
    stderr.flush()
    if line := sys.stdin.readline():
        return line.rstrip("\n")
    raise EOFError


def forget_typed_ahead() -> None:
    """Drop what was typed before there was something to answer to."""
    try:
        import termios
    except ImportError:  # on Windows
        return
    with suppress(OSError, termios.error):  # stdin is no terminal of the system's
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
