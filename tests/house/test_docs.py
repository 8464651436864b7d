"""Whatever a user can name stands in the reference."""

import inspect
import re
from dataclasses import fields
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"


def settings_keys():
    from mlango.conf import DEFAULTS

    return set(DEFAULTS)


def event_classes():
    from mlango.core.events import Event

    return {event.__name__ for event in Event.__subclasses__()}


def meta_options():
    from mlango.core.options import ALIASES, NAMES

    return {*NAMES, *ALIASES}


def check_ids():
    texts = [path.read_text() for path in (ROOT / "mlango").rglob("*.py")]
    return {found for text in texts for found in re.findall(r"mlango\.[EWI]\d{3}", text)}


def commands():
    folder = ROOT / "mlango" / "management" / "commands"
    return {path.stem for path in folder.glob("[!_]*.py")}


def exceptions():
    import mlango.exceptions

    return {name for name in mlango.exceptions.__all__ if name[0].isupper()}


def arguments_of_providers():
    from mlango.core.provider import Provider

    return {*inspect.signature(Provider.complete).parameters} - {"self"}


def fields_of_completions():
    from mlango.core.provider import Completion

    return {field.name for field in fields(Completion)}


def fields_of_approvals():
    from mlango.models import Approval

    own = {"arguments_json", "edited_json", "arguments_hash", "tool_digest", "owner_key"}
    return {field.name for field in Approval._meta.fields} - own


@pytest.mark.parametrize(
    "names",
    [
        settings_keys,
        event_classes,
        meta_options,
        check_ids,
        commands,
        exceptions,
        arguments_of_providers,
        fields_of_completions,
        fields_of_approvals,
    ],
)
def test_the_reference_names_them_all(names):
    reference = "\n".join(path.read_text() for path in sorted(REFERENCE.glob("*.md")))
    wanted = names()

    missing = {
        name for name in wanted if not re.search(rf"`[^`\n]*\b{name}\b|^{name}\b", reference)
    }

    assert wanted, f"No {names.__name__} were found at all."
    assert not missing, f"docs/reference does not name these {names.__name__}: {sorted(missing)}"


@pytest.mark.parametrize("page", sorted(REFERENCE.glob("*.md")), ids=lambda page: page.stem)
def test_no_row_of_a_page_is_there_twice(page):
    rows = [line for line in page.read_text().splitlines() if line.startswith("| `")]

    assert sorted(set(rows)) == sorted(rows)
