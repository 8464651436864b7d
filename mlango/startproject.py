"""``mlango startproject``: a new Django project with an agent in it."""

from __future__ import annotations

import keyword
import re
import shutil
import sys
from pathlib import Path

from django.core.management.utils import get_random_secret_key

from mlango.exceptions import Misused

PLACEHOLDER = "insecure-key-of-the-template"
# It must do for a distribution and for a package that any system can import.
NAME = re.compile(r"[A-Za-z]([A-Za-z0-9_]*[A-Za-z0-9])?")
LITTER = shutil.ignore_patterns("__pycache__", "*.pyc", "*.sqlite3*", ".pytest_cache")


def template() -> Path:
    """Return the template's folder: in the package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent
    packed = package / "project_template"
    return packed if packed.is_dir() else package.parent / "project_template"


def start_project(name: str, folder: str | None = None) -> Path:
    """Write a new project and return its folder. Raise Misused where that cannot be."""
    if not NAME.fullmatch(name) or keyword.iskeyword(name):
        raise Misused(
            f"{name!r} cannot name a project. Use ASCII letters, digits and underscores: "
            f"a letter first, no underscore last, and no keyword of Python."
        )
    target = Path(folder or name).resolve()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise Misused(f"{str(target)!r} is not an empty folder. Choose another name or folder.")
    shutil.copytree(template(), target, ignore=LITTER, dirs_exist_ok=True)
    _replace(target / "config" / "settings.py", PLACEHOLDER, get_random_secret_key())
    _replace(target / "pyproject.toml", '"helpdesk"', f'"{name}"')
    return target


def _replace(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text().replace(old, new))


def main(arguments: list[str]) -> int:
    """Run ``mlango startproject NAME [FOLDER]`` and return the exit code."""
    if len(arguments) not in (2, 3) or arguments[0] != "startproject":
        sys.stderr.write("Usage: mlango startproject NAME [FOLDER]\n")
        return 2
    try:
        target = start_project(*arguments[1:])
    except (Misused, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(
        f"Wrote {target}. Next:\n"
        f"  cd {target}\n"
        f"  python manage.py migrate\n"
        f'  python manage.py agent support.Support "Where is order 1002?"\n'
    )
    return 0
