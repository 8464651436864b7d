"""What loads when: heavy packages only at first use, and no Django in the core.

Seen in the project of the template, which has an agent, an admin and URLs.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {
    "a2a",
    "aiohttp",
    "celery",
    "channels",
    "genai_prices",
    "google",
    "httpx",
    "litellm",
    "mcp",
    "openai",
}
ROOT = Path(__file__).parents[2]
PATH = os.pathsep.join([str(ROOT), str(ROOT / "project_template")])
DECLARE = """
from mlango.agents import Agent, BufferMemory, tool

@tool
def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b

class Adder(Agent):
    class Meta:
        app_label = "support"
        model = "anthropic/claude-opus-5"
        system = "Add."
        tools = [add]
        memory = BufferMemory(k=2)
        tracing = False
"""
SETUP = "import django; django.setup()"
REPLAY = """
from pathlib import Path
from tempfile import TemporaryDirectory
from mlango.agents.providers import RecordingProvider, ReplayProvider, ScriptedProvider, ToolCall

with TemporaryDirectory() as folder:
    path = Path(folder) / "adder.jsonl"
    scripted = ScriptedProvider([[ToolCall("1", "add", {"a": 2, "b": 3})], "It is 5."])
    recorded = Adder().run("2 + 3?", provider=RecordingProvider(scripted, path))
    replayed = Adder().run("2 + 3?", provider=ReplayProvider(path, strict=True))
assert recorded.text == replayed.text == "It is 5."
"""
COMMAND = """
import sys
from django.core.management import execute_from_command_line
try:
    execute_from_command_line({arguments!r})
except SystemExit as stop:
    assert not stop.code, stop
"""
LOADED = """
import json, sys
print()
print(json.dumps(sorted(sys.modules)))
"""


def modules_after(code, **env):
    """Return the names of all modules loaded by a fresh interpreter that ran ``code``."""
    result = subprocess.run(
        [sys.executable, "-c", f"{code}\n{LOADED}"],
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "config.settings", "PYTHONPATH": PATH} | env,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return set(json.loads(result.stdout.splitlines()[-1]))


def command(*arguments):
    return COMMAND.format(arguments=["manage.py", *arguments])


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("import mlango", id="import mlango"),
        pytest.param("from mlango import Agent, tool", id="from mlango import Agent"),
        pytest.param(f"{SETUP}\n{DECLARE}", id="declare an agent"),
        pytest.param(SETUP, id="django.setup"),
        pytest.param(f"{SETUP}\nimport config.urls", id="the URLconf"),
        pytest.param(command("check"), id="manage.py check"),
        pytest.param(command("agent", "--help"), id="manage.py agent --help"),
    ],
)
def test_heavy_packages_stay_out(code):
    loaded = {name.partition(".")[0] for name in modules_after(code)}

    assert not loaded & HEAVY


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(f"{SETUP}\n{DECLARE}", id="declare an agent"),
        pytest.param(command("agent", "--help"), id="manage.py agent --help"),
        pytest.param(f"{SETUP}\n{DECLARE}\n{REPLAY}", id="a run"),
    ],
)
def test_what_serves_urls_stays_out_where_no_url_is_served(code):
    loaded = {name.partition(".")[0] for name in modules_after(code)}

    assert not loaded & {"rest_framework", "drf_spectacular"}


def test_heavy_packages_stay_out_of_a_replayed_run():
    code = f"{SETUP}\n{DECLARE}\n{REPLAY}"

    loaded = {name.partition(".")[0] for name in modules_after(code)}

    # Prices are looked up in a run, so their table is loaded.
    assert not loaded & (HEAVY - {"genai_prices"})


def test_the_core_loads_neither_settings_nor_the_orm():
    code = """
import importlib, pkgutil
import mlango.core
for module in pkgutil.walk_packages(mlango.core.__path__, "mlango.core."):
    importlib.import_module(module.name)
"""

    loaded = modules_after(code, DJANGO_SETTINGS_MODULE="there.is.none")

    forbidden = ("django.conf", "django.db", "django.apps", "django.http", "mlango.conf")
    assert not [name for name in loaded if name.startswith(forbidden)]
