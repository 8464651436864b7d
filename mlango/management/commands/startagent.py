"""``manage.py startagent``: a small agent in an app's ``agents.py``."""

from __future__ import annotations

import ast
import io
import keyword
from argparse import ArgumentParser
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from django.apps import AppConfig, apps
from django.core.management.base import CommandError

from mlango.agents.agent import Agent
from mlango.exceptions import did_you_mean
from mlango.management.base import TerminalCommand
from mlango.management.endings import OK
from mlango.runtime.registry import registry

HEAD = '"""The agents of {app}."""\n'
IMPORT = "from mlango.agents import Agent\n"
AGENT = '''
class {name}(Agent):
    """Answers questions."""

    class Meta:
        system = "Answer in one short paragraph."
'''


class Command(TerminalCommand):
    """Writes an agent and says where."""

    help = "Write a small agent into an app's agents.py."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", metavar="NAME", help="the agent's class, such as Support")
        parser.add_argument(
            "--app", metavar="APP", help="the app's label; may be left out if there is only one"
        )

    def perform(self, options: dict[str, Any]) -> int:
        name = options["name"]
        app = _own_app() if options["app"] is None else _app(options["app"])
        _check_name(name, app)
        path = _path(app)
        done = "Added" if path.exists() else "Wrote"
        try:
            _write(path, name, app)
        except OSError as error:
            raise CommandError(f"{str(path)!r} cannot be written: {error}.") from error
        self.out.line(f"{done} the agent {app.label}.{name} in {path}. Next:")
        self.out.line(f'  python manage.py agent {app.label}.{name} "Hello"')
        return OK


def _app(label: str) -> AppConfig:
    try:
        return apps.get_app_config(label)
    except LookupError:
        labels = sorted(app.label for app in apps.get_app_configs())
        raise CommandError(
            f"There is no app {label!r}.{did_you_mean(label, labels)} "
            f"Apps are: {', '.join(labels)}."
        ) from None


def _own_app() -> AppConfig:
    """Return the only app that is the project's own: below this folder, and not installed."""
    own = [app for app in apps.get_app_configs() if _is_own(app)]
    if len(own) == 1:
        return own[0]
    labels = ", ".join(sorted(app.label for app in own))
    raise CommandError(
        f"Say by --app which app the agent is for. Apps of this project are: {labels or 'none'}."
    )


def _is_own(app: AppConfig) -> bool:
    path = Path(app.path).resolve()
    is_here = path.is_relative_to(Path.cwd())
    return is_here and app.name != "mlango" and "site-packages" not in path.parts


def _check_name(name: str, app: AppConfig) -> None:
    if not name.isidentifier() or keyword.iskeyword(name):
        raise CommandError(f"{name!r} cannot name an agent: it must be a Python identifier.")
    if any(agent._meta.label == f"{app.label}.{name}" for agent in registry.all()):
        raise CommandError(f"There is an agent {app.label}.{name} already. Choose another name.")
    if name == "Agent" or hasattr(_module(app), name):
        raise CommandError(f"{app.name}.agents has a {name!r} already. Choose another name.")


def _module(app: AppConfig) -> Any:
    """Return the app's module of agents, or None."""
    return import_module(f"{app.name}.agents") if find_spec(f"{app.name}.agents") else None


def _path(app: AppConfig) -> Path:
    """Return the file that agents go into; of a package, its ``__init__.py``."""
    origin = getattr(_module(app), "__file__", None)
    return Path(origin) if origin else Path(app.path) / "agents.py"


def _write(path: Path, name: str, app: AppConfig) -> None:
    text = path.read_bytes().decode() if path.exists() else HEAD.format(app=app.label)
    imported = getattr(_module(app), "Agent", None)
    if imported not in (None, Agent):
        raise CommandError(
            f"In {str(path)!r}, 'Agent' is not that of mlango.agents. Write the agent by hand."
        )
    newline = "\r\n" if "\r\n" in text else "\n"
    whole = text if imported else _with_import(text, newline)
    agent = f"\n{AGENT.format(name=name)}".replace("\n", newline)
    path.write_bytes(f"{whole.rstrip()}{newline}{agent}".encode())


def _with_import(text: str, newline: str) -> str:
    """Return a module with the import of Agent after its docstring and its own imports."""
    lines = io.StringIO(text, newline="").readlines()
    head = [node for node in ast.parse(text).body if _is_head(node)]
    end = max((node.end_lineno or 0 for node in head), default=0)
    new = IMPORT.replace("\n", newline)
    if not any(isinstance(node, ast.Import | ast.ImportFrom) for node in head) and end:
        new = newline + new
    if end and not lines[end - 1].endswith(("\n", "\r")):
        new = newline + new
    return "".join([*lines[:end], new, *lines[end:]])


def _is_head(node: ast.stmt) -> bool:
    is_docstring = isinstance(node, ast.Expr) and node.lineno == 1
    return is_docstring or isinstance(node, ast.Import | ast.ImportFrom)
