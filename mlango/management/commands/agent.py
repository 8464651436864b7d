"""``manage.py agent``: ask an agent once, or chat with it."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError, CommandParser

from mlango.agents.agent import Agent
from mlango.agents.providers.routing import resolve
from mlango.agents.resume import FIXED
from mlango.agents.streams import RunStream
from mlango.conf import settings
from mlango.core.options import UNSET
from mlango.core.run import WAITING
from mlango.exceptions import MlangoError
from mlango.management.asking import Asker
from mlango.management.base import TerminalCommand, count, user_named
from mlango.management.beginnings import (
    add_beginnings,
    fork,
    fork_point,
    last_session,
    trace_named,
)
from mlango.management.chat import Chat
from mlango.management.decisions import awaited_by, tell_what_waits
from mlango.management.endings import APPROVAL, USAGE, Left
from mlango.management.resuming import resumed
from mlango.management.running import add_printing, follow
from mlango.management.steering import Steering
from mlango.models import Approval
from mlango.runtime.registry import registry

STDIN = "-"


class MixedParser(CommandParser):
    """Lets options stand anywhere among the words of a message."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        return self.parse_intermixed_args(args, namespace)


class Command(TerminalCommand):
    """Runs one agent. The answer goes to stdout, everything else to stderr."""

    # In a chat only: whoever asks once types ahead for his shell.
    steering: Steering | None = None

    help = "Ask an agent once, or without a message chat with it."

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        parser = super().create_parser(prog_name, subcommand, **kwargs)
        # BaseCommand names the class of its parser, and offers no way to choose another.
        parser.__class__ = MixedParser
        return parser

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.usage = "%(prog)s [options] [LABEL] [MESSAGE ...]"
        parser.add_argument(
            "words",
            nargs="*",
            metavar="LABEL [MESSAGE ...]",
            help="the agent, then the message; - reads the message from stdin",
        )
        add_beginnings(parser)
        parser.add_argument("--max-steps", metavar="N", type=count, help="the most model calls")
        parser.add_argument("--provider", metavar="ALIAS", help="ask another provider")
        parser.add_argument("--model", metavar="NAME", help="ask another model")
        parser.add_argument("--user", metavar="NAME", help="the user to work for")
        add_printing(parser)
        parser.add_argument(
            "--file", action="append", metavar="PATH", help="attach a file; may be repeated"
        )
        cassette = parser.add_mutually_exclusive_group()
        cassette.add_argument("--record", metavar="FILE", help="record the model to a cassette")
        cassette.add_argument(
            "--replay", metavar="FILE", help="play a cassette instead of a model"
        )

    def perform(self, options: dict[str, Any]) -> int:
        _refuse_empty(options)
        if options["resume"] or options["fork"]:
            return self._go_on(options)
        if not options["words"]:
            raise CommandError(
                "Which agent? Name it by its label; manage.py agents lists them.", returncode=USAGE
            )
        label, *words = options["words"]
        agent, chosen = _chosen(label, options)
        if options["last_session"]:
            chosen["session_id"] = last_session(agent, chosen.get("user"))
        message = _message(words)
        if message is None and options["json"]:
            raise CommandError("--json needs a message: a chat is for people.", returncode=USAGE)
        if message is None:
            return self._chat(agent, chosen, options)
        try:
            return self._ask(agent, message, chosen, options)
        except Left as left:
            return left.code

    def _ask(
        self, agent: Agent, message: str, chosen: dict[str, Any], options: dict[str, Any]
    ) -> int:
        """Run the agent once, print the run, and return the exit code.

        At a terminal, whoever sits there is asked about what the run waits for.
        """
        try:
            stream = agent.stream(message, **chosen)
        except MlangoError as error:
            raise CommandError(str(error), returncode=USAGE) from error
        return self._follow(agent, stream, chosen, options)

    def _go_on(self, options: dict[str, Any]) -> int:
        """Go on with a run that is recorded, or with a copy of it, and return the exit code."""
        is_fork = bool(options["fork"])
        trace = fork_point(options["fork"])[0] if is_fork else trace_named(options["resume"]).root
        label, *words = options["words"] or [trace.agent]
        if words or options["file"]:
            raise CommandError(
                "A run goes on with what it was asked: give no message and no file.",
                returncode=USAGE,
            )
        agent, chosen = _chosen(label, options)
        try:
            if is_fork:
                trace = fork(agent, options["fork"], _further(chosen))
            waits_for = list(Approval.objects.open_in(trace))
            if waits_for and not self._decide(waits_for, options, chosen):
                return APPROVAL
            stream = resumed(agent, trace, **_further(chosen))
            return self._follow(agent, stream, chosen, options)
        except Left as left:
            return left.code

    def _follow(
        self, agent: Agent, stream: RunStream, chosen: dict[str, Any], options: dict[str, Any]
    ) -> int:
        ended = follow(stream, options, self.out, self.err, self.steering)
        while ended.run.status == WAITING and self._decide(
            list(awaited_by(ended.run)), options, chosen
        ):
            stream = resumed(agent, ended.run, **_further(chosen))
            ended = follow(stream, options, self.out, self.err, self.steering)
        return ended.code

    def _decide(
        self, approvals: list[Approval], options: dict[str, Any], chosen: dict[str, Any]
    ) -> bool:
        """Return whether all that a run waits for was decided; tell how if it was not."""
        if self._can_ask(options):
            return Asker(chosen.get("user"), self.err, self.stderr).decide(approvals)
        if not options["json"]:
            tell_what_waits(approvals, self.err)
        return False

    def _can_ask(self, options: dict[str, Any]) -> bool:
        is_there = sys.stdin is not None and sys.stdin.isatty()
        return is_there and self.err.is_terminal and not options["json"]

    def _chat(self, agent: Agent, chosen: dict[str, Any], options: dict[str, Any]) -> int:
        def ask(message: str, chosen: dict[str, Any]) -> int:
            return self._ask(agent, message, chosen, options)

        self.steering = Steering(self.out, self.err)
        return Chat(agent, ask, chosen, self.err, self.stderr, self.steering).run()


def _message(words: list[str]) -> str | None:
    """Return the message that was given, or None for a chat."""
    is_terminal = sys.stdin is not None and sys.stdin.isatty()
    if not words and is_terminal:
        return None
    message = " ".join(words)
    if message == STDIN or not words:
        message = _read_stdin()
    if not message.strip():
        raise CommandError(
            "The message is empty. Write it after the agent's label, or send it to stdin.",
            returncode=USAGE,
        )
    return message


def _read_stdin() -> str:
    try:
        return sys.stdin.read().rstrip("\n") if sys.stdin is not None else ""
    except UnicodeDecodeError as error:
        raise CommandError(
            f"The message on stdin is not text in {error.encoding}. Attach other files by --file.",
            returncode=USAGE,
        ) from error


def _run_options(agent: Agent, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of ``stream()`` that were given on the command line."""
    given = {
        "session_id": options["session"],
        "max_steps": options["max_steps"],
        "provider": _provider(agent, options),
        "model": options["model"],
        "user": options["user"] and user_named(options["user"]),
        "files": options["file"],
    }
    return {name: value for name, value in given.items() if value is not None}


def _chosen(label: str, options: dict[str, Any]) -> tuple[Agent, dict[str, Any]]:
    """Return an agent and the options of its run. Raise CommandError for what is wrong."""
    try:
        agent: Agent = registry.get(label)()
        return agent, _run_options(agent, options)
    except MlangoError as error:
        raise CommandError(str(error), returncode=USAGE) from error


def _further(chosen: dict[str, Any]) -> dict[str, Any]:
    """Return the options that can be given anew to a run that goes on."""
    return {name: value for name, value in chosen.items() if name not in FIXED}


def _refuse_empty(options: dict[str, Any]) -> None:
    for name in ("session", "resume", "fork", "provider", "model", "user", "record", "replay"):
        if options[name] == "":
            raise CommandError(f"--{name} needs a value, not ''.", returncode=USAGE)


def _provider(agent: Agent, options: dict[str, Any]) -> Any:
    """Return the provider to ask instead of the agent's own, or None."""
    if not (options["replay"] or options["record"]):
        return options["provider"]
    # Other runs need not wait for their import.
    from mlango.agents.providers import RecordingProvider, ReplayProvider

    if options["replay"]:
        return ReplayProvider(options["replay"])
    if os.path.exists(options["record"]):
        raise CommandError(
            f"The file {options['record']!r} is already there. Delete it, or record to another.",
            returncode=USAGE,
        )
    own = agent._meta.provider
    provider = options["provider"] or (None if own is UNSET else own)
    model = options["model"] or agent._meta.model or settings.DEFAULT_AGENT_MODEL
    return RecordingProvider(resolve(model, provider)[0], options["record"])
