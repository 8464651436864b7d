"""A chat with an agent in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Any
from uuid import uuid4

from django.core.management.base import CommandError, OutputWrapper

from mlango.agents.agent import Agent
from mlango.exceptions import did_you_mean
from mlango.management.endings import INTERRUPTED, OK, Left
from mlango.management.keyboard import ask_line
from mlango.management.steering import LATER, Steering
from mlango.management.terminal import RED, Screen

LEAVE = ("exit", "quit", ":q", "/quit")
PROMPT = "you> "
IMPATIENCE = 1.5  # seconds between two Ctrl-C that leave; one alone gives up what was typed
COMMANDS = {
    "/help": "what can be typed here",
    "/new": "begin a new session",
    "/session": "tell or change the session: /session ID",
    "/model": "tell or change the model: /model NAME",
    "/tools": "what the agent can call",
    "/quit": "leave; so do exit, quit, :q and Ctrl-D",
}


class Chat:
    """Asks for messages until the user leaves; what goes wrong is told, and no end.

    ``ask`` runs the agent on a message with the run options ``chosen``.
    """

    def __init__(
        self,
        agent: Agent,
        ask: Callable[[str, dict[str, Any]], object],
        chosen: dict[str, Any],
        err: Screen,
        stderr: OutputWrapper,
        steering: Steering,
    ) -> None:
        self._agent = agent
        self._ask = ask
        self._chosen = {"session_id": "cli"} | chosen
        self._err = err
        self._stderr = stderr
        self._steering = steering

    def run(self) -> int:
        """Chat, and return the exit code."""
        self._err.line(f"{self._agent._meta.label}. /help tells what can be typed, Ctrl-D leaves.")
        _edit_lines()
        try:
            while True:
                self._answer(self._prompt())
        except Left as left:
            return left.code

    def _answer(self, message: str) -> None:
        word = message.split()[0]
        if word.startswith("/") and "/" not in word[1:]:
            self._obey(word, message[len(word) :].strip())
            return
        try:
            self._ask(message.removeprefix("/") if message[:2] == "//" else message, self._chosen)
        except CommandError as error:
            self._err.line(str(error), RED)
        # They belong to the first message and are in the session from then on.
        self._chosen.pop("files", None)

    # -- commands -----------------------------------------------------------------------------

    def _obey(self, word: str, rest: str) -> None:
        if word not in COMMANDS:
            self._err.line(
                f"There is no command {word!r}.{did_you_mean(word, COMMANDS)} "
                f"/help lists them; a message that begins with / is typed with //.",
                RED,
            )
            return
        getattr(self, f"_{word[1:]}")(rest)

    def _help(self, rest: str) -> None:
        for word, meaning in COMMANDS.items():
            self._err.line(f"{word:<10}{meaning}")
        self._err.line("What is typed while a run goes on is told to it after the running tool,")
        self._err.line(f"or with {LATER} TEXT when it would be done.")
        self._err.line("Ctrl-C stops a run, gives up what is typed, and leaves if pressed twice.")

    def _new(self, rest: str) -> None:
        self._session(f"cli-{uuid4().hex[:8]}")

    def _session(self, rest: str) -> None:
        self._chosen["session_id"] = rest or self._chosen["session_id"]
        self._err.line(f"The session is {self._chosen['session_id']!r}.")

    def _model(self, rest: str) -> None:
        if rest:
            self._chosen["model"] = rest
        model = self._chosen.get("model") or self._agent._meta.model or "the default"
        self._err.line(f"The model is {model}.")

    def _tools(self, rest: str) -> None:
        meta = self._agent._meta
        names = [
            getattr(each, "name", type(each).__name__) for each in (*meta.tools, *meta.methods)
        ]
        self._err.line(f"The tools are {', '.join(names) or 'none'}.")

    def _quit(self, rest: str) -> None:
        raise Left(OK)

    # -- the prompt ---------------------------------------------------------------------------

    def _prompt(self) -> str:
        """Return what the user types next, which is not empty."""
        last = -inf
        while True:
            try:
                typed, self._steering.typed = self._steering.typed, ""
                message = ask_line(PROMPT, self._stderr, typed).strip()
            except EOFError:
                self._err.line("")
                raise Left(OK) from None
            except KeyboardInterrupt:
                self._err.line("")
                if monotonic() - last < IMPATIENCE:
                    raise Left(INTERRUPTED) from None
                last = monotonic()
                self._err.line("Press Ctrl-C again or Ctrl-D to leave.")
                continue
            if message in LEAVE:
                raise Left(OK)
            if message:
                return message


def _edit_lines() -> None:
    """Let lines be edited, and former ones recalled, where Python has readline."""
    if not sys.stdout.isatty():
        return
    try:
        import readline  # importing it is what makes input() use it
    except ImportError:
        return
    readline.set_completer_delims(" ")
    readline.set_completer(_completed)
    readline.parse_and_bind("tab: complete")


def _completed(text: str, state: int) -> str | None:
    found = [word for word in COMMANDS if text.startswith("/") and word.startswith(text)]
    return found[state] if state < len(found) else None
