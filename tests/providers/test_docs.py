"""What the page on providers shows works."""

import re
from pathlib import Path
from types import ModuleType

import pytest

from mlango.agents import Agent

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "providers.md"
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.django_db


def test_the_provider_that_it_writes_answers():
    module = ModuleType("page")
    for block in PYTHON.findall(PAGE.read_text()):
        exec(block, vars(module))

    class Loud(Agent):
        class Meta:
            app_label = "providers"
            provider = module.Shouting()

    run = Loud().run("hello")

    assert run.text == "HELLO"
    assert run.usage.estimated
