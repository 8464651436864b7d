"""``manage.py startagent`` adds an agent and harms nothing."""

import sys
from types import SimpleNamespace

import pytest
from django.apps import AppConfig, apps
from django.core.management import CommandError, call_command

from mlango.management.commands import startagent
from mlango.runtime.registry import registry
from mlango.startproject import start_project
from tests.project.test_startproject import run

HEAD = '"""The agents of notes."""\n\nfrom mlango.agents import Agent\n'
GREETER = '''

class Greeter(Agent):
    """Answers questions."""

    class Meta:
        system = "Answer in one short paragraph."
'''


@pytest.fixture
def notes(tmp_path, monkeypatch):
    """Return an installed app with no agents, whose agents module is imported afresh."""
    name = f"notes_{tmp_path.name}".replace("-", "_")
    folder = tmp_path / name
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(registry, "_agents", dict(registry._agents))
    app = AppConfig(name, SimpleNamespace(__file__=str(folder / "__init__.py")))
    app.label = "notes"
    app.agents = folder / "agents.py"
    monkeypatch.setitem(apps.app_configs, "notes", app)
    yield app
    for module in [each for each in sys.modules if each.partition(".")[0] == name]:
        del sys.modules[module]


def start(name, app="notes"):
    call_command("startagent", name, app=app)


def refusal(name, app="notes"):
    with pytest.raises(CommandError) as caught:
        start(name, app)
    return str(caught.value)


def test_an_app_without_agents_gets_a_file(notes, capsys):
    start("Greeter")

    assert notes.agents.read_text() == HEAD + GREETER
    assert capsys.readouterr().out == (
        f"Wrote the agent notes.Greeter in {notes.agents}. Next:\n"
        f'  python manage.py agent notes.Greeter "Hello"\n'
    )


def test_what_a_file_holds_is_kept(notes, capsys):
    own = '"""Mine."""\n\nimport os\n\nHOME = os.sep  # mine'
    notes.agents.write_text(own)

    start("Greeter")

    assert notes.agents.read_text() == (
        '"""Mine."""\n\nimport os\nfrom mlango.agents import Agent\n\nHOME = os.sep  # mine\n'
        + GREETER
    )
    assert capsys.readouterr().out.startswith("Added the agent notes.Greeter")


def test_an_import_that_is_there_is_not_written_again(notes):
    notes.agents.write_text(HEAD)

    start("Greeter")

    assert notes.agents.read_text() == HEAD + GREETER


def test_the_future_stays_first(notes):
    notes.agents.write_text("# Mine.\nfrom __future__ import annotations\n\nx: int = 1\n")

    start("Greeter")

    text = notes.agents.read_text()
    assert text.startswith("# Mine.\nfrom __future__ import annotations\nfrom mlango.agents")
    compile(text, "agents.py", "exec")


@pytest.mark.parametrize("text", ["", "\n", "# Mine.", '"""Mine."""', "import os", "x = 1"])
def test_whatever_a_file_holds_it_can_be_imported_after(notes, text):
    notes.agents.write_text(text)

    start("Greeter")

    written = notes.agents.read_text()
    scope = {"__name__": f"{notes.name}.agents"}
    exec(compile(written, "agents.py", "exec"), scope)
    assert text.strip() in written
    assert scope["Greeter"]._meta.object_name == "Greeter"


def test_windows_lines_stay_windows_lines(notes):
    notes.agents.write_bytes(b'"""Mine."""\r\n\r\nimport os\r\n')

    start("Greeter")

    written = notes.agents.read_bytes()
    assert written.count(b"\n") == written.count(b"\r\n") == 11


def test_a_package_of_agents_gets_it_in_its_first_file(notes):
    package = notes.agents.parent / "agents"
    package.mkdir()
    (package / "__init__.py").write_text(HEAD)

    start("Greeter")

    assert (package / "__init__.py").read_text() == HEAD + GREETER
    assert not notes.agents.exists()


@pytest.mark.parametrize("name", ["class", "2fast", "a-b", ""])
def test_a_name_that_is_no_identifier_is_refused(notes, name):
    assert refusal(name) == (f"{name!r} cannot name an agent: it must be a Python identifier.")
    assert not notes.agents.exists()


@pytest.mark.parametrize("name", ["Agent", "Helper", "find"])
def test_a_name_that_the_module_has_is_refused(notes, name):
    own = "class Helper: ...\ndef find(): ...\n"
    notes.agents.write_text(own)

    assert f"has a {name!r} already. Choose another name." in refusal(name)
    assert notes.agents.read_text() == own


def test_a_label_that_an_agent_has_is_refused(notes, monkeypatch):
    taken = SimpleNamespace(_meta=SimpleNamespace(label="notes.Greeter"))
    monkeypatch.setitem(registry._agents, "notes.Greeter", taken)

    assert refusal("Greeter") == ("There is an agent notes.Greeter already. Choose another name.")
    assert not notes.agents.exists()


def test_another_class_called_agent_is_not_taken_for_ours(notes):
    own = "class Agent: ...\n"
    notes.agents.write_text(own)

    assert "'Agent' is not that of mlango.agents" in refusal("Greeter")
    assert notes.agents.read_text() == own


def test_an_unknown_app_is_told_with_the_closest(notes):
    message = refusal("Greeter", "note")

    assert message.startswith("There is no app 'note'. Did you mean 'notes'? Apps are: ")


def test_the_only_app_of_the_project_need_not_be_named(notes, monkeypatch):
    monkeypatch.chdir(notes.agents.parent.parent)

    start("Greeter", app=None)

    assert notes.agents.exists()


@pytest.mark.parametrize(
    ("own", "listed"), [(("auth", "contenttypes"), "auth, contenttypes"), ((), "none")]
)
def test_an_app_must_be_named_unless_there_is_exactly_one(own, listed, monkeypatch):
    monkeypatch.setattr(startagent, "_is_own", lambda app: app.label in own)

    assert refusal("Greeter", app=None) == (
        f"Say by --app which app the agent is for. Apps of this project are: {listed}."
    )


def test_a_new_project_can_ask_the_agent_that_was_started(tmp_path):
    folder = start_project("shop", str(tmp_path / "shop"))

    run(folder, "migrate", "--verbosity", "0")
    run(folder, "startagent", "Greeter")

    assert run(folder, "agent", "support.Greeter", "Hello").stdout == "echo: Hello\n"
    assert "support.Greeter\n" in run(folder, "agents").stdout
