"""What the pages on HTTP show works."""

import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from django.test import Client, override_settings

from mlango.models import Trace
from tests.serve.site import Asked, events_of, make_user

DOCS = Path(__file__).parents[2] / "docs"
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
pytestmark = pytest.mark.django_db


@pytest.fixture
def shop(monkeypatch):
    """The app that the pages speak of."""
    monkeypatch.setitem(sys.modules, "support", ModuleType("support"))
    monkeypatch.setitem(sys.modules, "support.agents", SimpleNamespace(Support=Asked))


def defined(page):
    """Return the names that a page's Python defines."""
    module = ModuleType("urls")
    for block in PYTHON.findall((DOCS / page).read_text()):
        exec(block, vars(module))
    return module


@pytest.mark.parametrize("page", ["howto/http.md", "reference/serving.md"])
def test_the_urls_answer(shop, page):
    client = Client()
    client.force_login(make_user(is_superuser=True))

    with override_settings(ROOT_URLCONF=defined(page)):
        answer = client.post("/support/", {"message": "hi"}, content_type="application/json")
        stream = client.post(
            "/support/stream/", {"message": "hi"}, content_type="application/json"
        )

    assert answer.json()["output"] == "echo: hi"
    assert answer.json()["trace"] in Trace.objects.values_list("uuid", flat=True)
    assert events_of(stream.getvalue())[-1][1] == "finished"


def test_every_field_of_the_answer_is_in_the_reference():
    from mlango.serve import body, json

    text = (DOCS / "reference" / "serving.md").read_text()

    assert [name for name in (*body.FIELDS, *json.FIELDS) if f"`{name}`" not in text] == []
