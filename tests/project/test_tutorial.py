"""The tutorial says what happens."""

import re
import shlex
from pathlib import Path

from mlango.startproject import main
from tests.project.test_startproject import run

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial" / "first-agent.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Reader:
    """Does what the tutorial says, step by step, and compares what it prints."""

    def __init__(self, folder):
        self.home = self.folder = folder
        self.commands = []

    def follow(self, text):
        for language, block in BLOCK.findall(text):
            getattr(self, language)(block)

    def console(self, block):
        printed = expected = ""
        for line in block.splitlines():
            if line.startswith("$ "):
                printed, expected = self.typed(line.removeprefix("$ ")), ""
            else:
                expected += f"{line}\n"
        if expected:
            assert printed == expected

    def typed(self, line):
        self.commands.append(line)
        program, *arguments = shlex.split(line)
        if program == "mlango":
            name = arguments[-1]
            assert main([*arguments, str(self.home / name)]) == 0
            return ""
        if program == "cd":
            self.folder = self.home / arguments[0]
            return ""
        assert [program, arguments[0]] == ["python", "manage.py"], line
        return run(self.folder, *arguments[1:]).stdout

    def python(self, block):
        if block.startswith("@tool"):
            self.edit("support/agents.py", r"class Returns\(Agent\):.*", block)
        elif block.startswith("class ReturnsTests"):
            self.edit("support/tests.py", r"import Support\n", "import Returns, Support\n")
            self.edit("support/tests.py", r"\Z", f"\n\n{block}")
        else:
            self.edit("config/settings.py", r"^MLANGO = .*?$", block.rstrip(), only_check=True)

    def edit(self, name, pattern, text, *, only_check=False):
        path = self.folder / name
        written, count = re.subn(
            pattern, lambda _: text, path.read_text(), count=1, flags=re.DOTALL | re.MULTILINE
        )
        assert count == 1, f"{name} has no {pattern}"
        compile(written, name, "exec")
        if not only_check:
            path.write_text(written)


def test_the_tutorial_works_as_it_is_written(tmp_path):
    reader = Reader(tmp_path)

    reader.follow(TUTORIAL.read_text())

    trace = run(reader.folder, "traces", "show", "last").stdout
    assert "tool return_policy" in trace
    assert reader.commands[-1] == "python manage.py test"
