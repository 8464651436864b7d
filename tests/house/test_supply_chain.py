"""What a stolen release would bring, and what would lead a reader to the wrong one."""

import re
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Files that Python runs at every start, and whose they are.
KNOWN = {
    "_django_mlango.pth",  # this checkout
    "_virtualenv.pth",  # uv's and virtualenv's
    "a1_coverage.pth",  # coverage, for subprocesses
    "distutils-precedence.pth",  # setuptools
}
WRONG = re.compile(r"\b(?:install|add)\s+(?:-\S+\s+)*['\"]?mlango\b(?!_)")


def test_nothing_unknown_runs_at_every_start_of_python():
    folders = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}

    found = {path.name for folder in folders for path in Path(folder).glob("*.pth")}

    assert found <= KNOWN


def test_nobody_is_told_to_install_the_distribution_of_another_project():
    folders = ("docs", "mlango", "project_template")
    files = [*ROOT.glob("*.md"), *ROOT.glob("*.toml"), ROOT / "Makefile"]
    files += [
        path for folder in folders for path in (ROOT / folder).rglob("*.*") if path.is_file()
    ]

    texts = {
        path: path.read_text(errors="replace")
        for path in files
        if path.suffix in {".md", ".py", ".toml", ".txt", ".html", ".yml", ""}
    }

    assert texts
    assert not [str(path) for path, text in texts.items() if WRONG.search(text)]
    assert WRONG.search("pip install -U 'mlango[litellm]'")
    assert not WRONG.search("pip install 'django-mlango[litellm]'")


def test_no_pinned_version_names_where_it_comes_from():
    files = sorted((ROOT / "constraints").glob("*.txt"))

    assert len(files) == 3
    for file in files:
        text = file.read_text()
        assert "://" not in text
        assert not re.search(r"^\s*(-|/|\.)(?!-hash=sha256:)", text, re.MULTILINE)
        assert "--hash=sha256:" in text
