import io
from contextlib import suppress

import pytest
from django.core.management import CommandError, call_command


class Terminal:
    """Runs commands as a user types them, and keeps what they print."""

    def __init__(self):
        self.out = io.StringIO()
        self.err = io.StringIO()

    def __call__(self, *arguments):
        """Return the stdout, the stderr and the exit code of a command."""
        self.out, self.err, code = io.StringIO(), io.StringIO(), 0
        try:
            call_command(*arguments, stdout=self.out, stderr=self.err)
        except SystemExit as leave:
            code = leave.code
        except CommandError as error:
            # As manage.py does.
            self.err.write(f"CommandError: {error}\n")
            code = error.returncode
        return self.out.getvalue(), self.err.getvalue(), code


@pytest.fixture
def manage():
    return Terminal()


class Tty(io.StringIO):
    """The screen of a terminal."""

    def isatty(self):
        return True


@pytest.fixture
def seen(monkeypatch):
    """Run a command at a terminal of 40 columns, and return what is seen on stderr."""
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)

    def run(*arguments):
        err = Tty()
        with suppress(SystemExit):
            call_command(*arguments, stdout=io.StringIO(), stderr=err)
        return err.getvalue()

    return run


class Stdin(io.StringIO):
    """What is typed at a terminal, or sent to a process."""

    def __init__(self, text, is_terminal):
        super().__init__(text)
        self.is_terminal = is_terminal

    def isatty(self):
        return self.is_terminal


@pytest.fixture
def typed(monkeypatch):
    """Let a user sit at the terminal and type this."""
    return lambda text: monkeypatch.setattr("sys.stdin", Stdin(text, is_terminal=True))


@pytest.fixture
def piped(monkeypatch):
    """Send this to stdin."""
    return lambda text: monkeypatch.setattr("sys.stdin", Stdin(text, is_terminal=False))
