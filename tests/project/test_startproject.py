"""A new project works as it is written."""

import os
import shlex
import subprocess
import sys
import tomllib

import pytest

from mlango.exceptions import Misused
from mlango.startproject import main, start_project


def run(folder, *arguments, program=("manage.py",)):
    environment = {k: v for k, v in os.environ.items() if k != "DJANGO_SETTINGS_MODULE"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    return subprocess.run(
        [sys.executable, *program, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )


def test_a_new_project_checks_migrates_answers_and_passes_its_tests(tmp_path):
    folder = start_project("shop", str(tmp_path / "shop"))

    run(folder, "check")
    run(folder, "migrate", "--verbosity", "0")
    answer = run(folder, "agent", "support.Support", "Where is order 1002?")
    run(folder, "test")

    assert answer.stdout == "Order 1002 is on its way, shipped on 28 November 2026.\n"
    assert "insecure-key-of-the-template" not in (folder / "config" / "settings.py").read_text()


def test_the_cassette_of_a_new_project_is_what_its_readme_records(tmp_path):
    folder = start_project("shop", str(tmp_path / "shop"))
    cassette = folder / "support" / "cassettes" / "returns.jsonl"
    recorded = cassette.read_text()
    cassette.unlink()
    command = next(
        line for line in (folder / "README.md").read_text().splitlines() if "--record" in line
    )

    run(folder, "migrate", "--verbosity", "0")
    run(folder, *shlex.split(command)[2:])

    assert cassette.read_text() == recorded


def test_pytest_runs_the_tests_of_a_new_project_without_a_warning(tmp_path):
    folder = start_project("shop", str(tmp_path / "shop"))

    done = run(folder, program=["-m", "pytest", "-q", "-p", "no:cacheprovider"])

    assert "4 passed" in done.stdout
    assert "arning" not in done.stdout + done.stderr


SPEAK = """
import asyncio
from config.asgi import application

async def speak(kind, path, method=None):
    incoming, sent = asyncio.Queue(), asyncio.Queue()
    incoming.put_nowait({"type": "websocket.connect" if kind == "websocket" else "http.request"})
    scope = {"type": kind, "path": path, "query_string": b"", "headers": [(b"host", b"localhost")]}
    await application(scope | {"method": method}, incoming.get, sent.put)
    first = sent.get_nowait()
    print(first.get("status") or first["type"])

asyncio.run(speak("http", "/support/stream/", "POST"))
asyncio.run(speak("http", "/health", "GET"))
asyncio.run(speak("websocket", "/ws/support/"))
asyncio.run(speak("websocket", "/ws/nowhere/"))
"""


def test_a_new_project_answers_requests_streams_and_sockets(tmp_path):
    folder = start_project("shop", str(tmp_path / "shop"))
    run(folder, "migrate", "--verbosity", "0")

    done = run(folder, program=["-c", SPEAK])

    # Nobody is logged in, and there is no socket at the last address.
    assert done.stdout.split() == ["401", "200", "websocket.close", "websocket.close"]
    assert "Traceback" not in done.stderr


def test_a_new_project_has_its_own_name(tmp_path):
    folder = start_project("shop", str(tmp_path / "shop"))

    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]

    assert project["name"] == "shop"
    assert project["dependencies"] == ["django-mlango[channels,server]"]


@pytest.mark.parametrize("name", ["class", "2fast", "a-b", "", "é", "_x", "x_", "a b", "x\n", "µ"])
def test_a_name_that_no_package_can_have_is_refused(name, tmp_path):
    with pytest.raises(Misused, match="cannot name a project"):
        start_project(name, str(tmp_path / "x"))


def test_a_folder_with_something_in_it_is_refused(tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("keep")

    assert main(["startproject", "shop", str(tmp_path)]) == 1
    assert "not an empty folder" in capsys.readouterr().err
    assert (tmp_path / "mine.txt").read_text() == "keep"
