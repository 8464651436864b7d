"""``manage.py agent``: ask an agent once, or chat with it."""

from __future__ import annotations

import json
import os
import signal
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError, CommandParser

from mlango.agents.providers import get_provider
from mlango.core.events import Event, Retrying, TextChunk, ToolCalled, ToolFinished
from mlango.core.run import AgentRun
from mlango.exceptions import (
    AuthenticationFailed,
    Misconfigured,
    MlangoError,
    ProviderTimeout,
    ProviderUnavailable,
    UnknownAgent,
)
from mlango.management.terminal import Sanitizer, sanitize
from mlango.runtime.registry import registry

OK, FAILED, USAGE, STOPPED, UNAVAILABLE, TIMEOUT, INTERRUPTED = 0, 1, 2, 4, 69, 124, 130
LEAVE = ("exit", "quit", ":q")


class MixedParser(CommandParser):
    """Lets options stand anywhere among the words of a message."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        return self.parse_intermixed_args(args, namespace)


class Command(BaseCommand):
    """Runs one agent. The answer goes to stdout, everything else to stderr."""

    help = "Ask an agent once, or without a message chat with it."
    requires_system_checks: list[str] = []

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        parser = super().create_parser(prog_name, subcommand, **kwargs)
        # BaseCommand names the class of its parser, and offers no way to choose another.
        parser.__class__ = MixedParser
        return parser

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "words",
            nargs="+",
            metavar="LABEL [MESSAGE…]",
            help="the agent, then the message; - reads it from stdin",
        )
        parser.add_argument("--session", default="", help="go on with this session")
        parser.add_argument("--max-steps", type=int, help="the most model calls")
        parser.add_argument("--show-steps", action="store_true", help="tell what the agent does")
        parser.add_argument("--provider", help="an alias of MLANGO['PROVIDERS']")
        parser.add_argument("--model", help="another model")
        parser.add_argument("--user", help="the name of the user to work for")
        parser.add_argument("--json", action="store_true", help="print events, one JSON a line")
        parser.add_argument("--record", metavar="FILE", help="record the model to a cassette")
        parser.add_argument("--replay", metavar="FILE", help="play a cassette instead of a model")
        parser.add_argument("--file", action="append", metavar="PATH", help="attach a file")

    def handle(self, *args: Any, **options: Any) -> None:
        label, *words = options["words"]
        try:
            agent = registry.get(label)()
            run_options = self._run_options(options)
        except (UnknownAgent, Misconfigured, MlangoError) as error:
            raise CommandError(str(error), returncode=USAGE) from error
        message = " ".join(words)
        if message == "-" or (not message and not sys.stdin.isatty()):
            message = sys.stdin.read()
        try:
            code = (
                self._once(agent, message, run_options, options)
                if message.strip()
                else self._chat(agent, run_options, options)
            )
        except BrokenPipeError:
            # The reader has what it wanted; the interpreter must not complain at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = OK
        if code:
            sys.exit(code)

    def _run_options(self, options: dict[str, Any]) -> dict[str, Any]:
        chosen = {
            "session_id": options["session"],
            "max_steps": options["max_steps"],
            "provider": self._provider(options),
            "model": options["model"],
            "user": self._user(options["user"]),
            "files": options["file"],
        }
        return {name: value for name, value in chosen.items() if value}

    def _provider(self, options: dict[str, Any]) -> Any:
        from mlango.agents.providers import RecordingProvider, ReplayProvider
        from mlango.conf import settings

        if options["replay"]:
            return ReplayProvider(options["replay"])
        if options["record"]:
            alias = options["provider"] or settings.DEFAULT_PROVIDER
            return RecordingProvider(get_provider(alias), options["record"])
        return options["provider"]

    def _user(self, name: str | None) -> Any:
        if not name:
            return None
        model = get_user_model()
        try:
            return model._default_manager.get_by_natural_key(name)
        except model.DoesNotExist:
            raise CommandError(f"There is no user {name!r}.", returncode=USAGE) from None

    def _once(
        self, agent: Any, message: str, run_options: dict[str, Any], options: dict[str, Any]
    ) -> int:
        try:
            stream = agent.stream(message, **run_options)
        except MlangoError as error:
            raise CommandError(str(error), returncode=USAGE) from error
        show = self._show_json if options["json"] else self._show
        previous = self._on_interrupt(stream)
        try:
            for _ in show(stream, options):
                pass
        except KeyboardInterrupt:
            stream.close()
            return INTERRUPTED
        finally:
            signal.signal(signal.SIGINT, previous)
        result = stream.run
        if not options["json"]:
            self._tell_end(result)
        return exit_code(result, stream._run.exception)

    def _on_interrupt(self, stream: Any) -> Any:
        """Stop the run at the first Ctrl-C, and leave at the second."""

        def handle(number: int, frame: Any) -> None:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self.stderr.write("Stopping. Press Ctrl-C again to leave now.")
            stream.abort()

        return signal.signal(signal.SIGINT, handle)

    def _show(self, stream: Any, options: dict[str, Any]) -> Iterator[Event]:
        sanitizer, said = Sanitizer(), False
        for event in stream:
            if isinstance(event, TextChunk):
                self.stdout.write(sanitizer.feed(event.text), ending="")
                self.stdout.flush()
                said = True
            elif options["show_steps"] and (line := step_line(event)):
                self.stderr.write(sanitize(line))
            yield event
        if said:
            self.stdout.write("")

    def _show_json(self, stream: Any, options: dict[str, Any]) -> Iterator[Event]:
        for event in stream:
            self.stdout.write(json.dumps(event.describe()))
            self.stdout.flush()
            yield event

    def _tell_end(self, result: AgentRun) -> None:
        if result.error:
            self.stderr.write(sanitize(result.error))
        self.stderr.write(
            f"{result.steps} steps · {result.usage.total_tokens} tokens · "
            f"trace {result.trace_uuid[:8]}"
        )

    def _chat(self, agent: Any, run_options: dict[str, Any], options: dict[str, Any]) -> int:
        run_options = {"session_id": "cli"} | run_options
        self.stderr.write("Write a message; exit, quit, :q or Ctrl-D leaves.")
        while True:
            try:
                message = input("you> ").strip()
            except (EOFError, KeyboardInterrupt):
                self.stderr.write("")
                return OK
            if message in LEAVE:
                return OK
            if message:
                try:
                    self._once(agent, message, run_options, options)
                except CommandError as error:
                    self.stderr.write(str(error))


def exit_code(result: AgentRun, error: BaseException | None) -> int:
    """Return the exit code that tells how a run ended."""
    if result.status == "failed":
        if isinstance(error, ProviderTimeout):
            return TIMEOUT
        unavailable = isinstance(error, ProviderUnavailable | AuthenticationFailed)
        return UNAVAILABLE if unavailable else FAILED
    if result.status == "cancelled":
        return INTERRUPTED
    if result.status == "stopped":
        return TIMEOUT if result.stop_reason == "timeout" else STOPPED
    return OK


def step_line(event: Event) -> str:
    """Return one line about what the agent does, or an empty string."""
    if isinstance(event, ToolCalled):
        arguments = event.arguments
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        return f"→ {event.name} {text[:200]}"
    if isinstance(event, ToolFinished):
        mark = "✗" if event.is_error else "✓"
        return f"{mark} {event.name} {event.duration_s:.2f}s {str(event.content)[:200]}"
    if isinstance(event, Retrying):
        return f"… {event.error} Trying again in {event.delay:.1f}s."
    return ""
