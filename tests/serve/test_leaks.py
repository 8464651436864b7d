"""A key, in whatever form, is nowhere but in the request that needs it."""

import base64
import json
import logging
from urllib.parse import quote

import pytest
from django.contrib import admin
from django.db import connection
from django.test import Client

from mlango.agents import Agent
from mlango.agents.providers import OpenAICompatibleProvider, RecordingProvider, get_provider
from mlango.serve import include, path
from tests.fake_model import RESET, STALL, Answer, FakeModel, document, event, fails, texts
from tests.serve.site import make_user

pytestmark = pytest.mark.django_db(transaction=True)

KEY = "cnry/0123+456=789abcdef"
FORMS = [KEY, quote(KEY), quote(KEY, safe=""), base64.b64encode(KEY.encode()).decode()]
TOLD = {"message": f"bad key {KEY} {quote(KEY)}", "code": KEY, "type": KEY, "param": KEY}
FAULTS = {
    "refused": fails(401, TOLD),
    "wrong": fails(400, TOLD),
    "too many": fails(429, TOLD),
    "broken": fails(500, TOLD),
    "cut off": Answer([RESET]),
    "silent": Answer([STALL]),
    "a page": document(f"<html>{KEY}</html>", content_type="text/html"),
    "an error on the way": Answer([*texts("Hi "), event({"error": TOLD})]),
}


class Keyed(OpenAICompatibleProvider):
    name = "keyed"


class Leaky(Agent):
    class Meta:
        app_label = "leaks"
        provider = "keyed"
        model = "one"


urlpatterns = [path("leaky/", include(Leaky.urls)), path("admin/", admin.site.urls)]


@pytest.fixture(scope="module")
def model():
    with FakeModel() as model:
        yield model


@pytest.fixture(autouse=True)
def _site(settings, model):
    url = model.url.replace("//", f"//user:{quote(KEY, safe='')}@")
    options = {"base_url": url, "api_key": KEY, "headers": {"X-Key": KEY}}
    settings.ROOT_URLCONF = __name__
    settings.MLANGO = {
        "PROVIDERS": {"keyed": {"BACKEND": f"{__name__}.Keyed", "OPTIONS": options}},
        "LLM_RETRY_BASE_DELAY": 0,
        "LLM_MAX_RETRIES": 1,
        "LLM_CHUNK_TIMEOUT": 0.2,
    }


def rows():
    """Return all that the tables hold."""
    tables = [name for name in connection.introspection.table_names() if "mlango_" in name]
    with connection.cursor() as cursor:
        for table in tables:
            cursor.execute(f"SELECT * FROM {table}")
            yield from map(repr, cursor.fetchall())


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_a_server_tells_the_key_to_nobody(name, model, caplog, tmp_path):
    caplog.set_level(logging.DEBUG)
    client = Client()
    client.force_login(make_user(is_superuser=True, is_staff=True))

    def ask(url):
        model.clear()
        model.script(*[FAULTS[name]] * 2)
        response = client.post(url, json.dumps({"message": "hi"}), "application/json")
        return b"".join(response) if response.streaming else response.content

    told = [ask("/leaky/run/"), ask("/leaky/stream/")]
    uuid = json.loads(told[0])["id"]
    told += [client.get(f"/leaky/runs/{uuid}/").content]
    told += [client.get(f"/admin/mlango/trace/{uuid}/change/").content]

    model.clear()
    model.script(*[FAULTS[name]] * 2)
    cassette = tmp_path / "cassette.json"
    recording = RecordingProvider(get_provider("keyed"), cassette)
    run = Leaky().run("hi", provider=recording, raise_on_error=False)

    assert run.status == "failed"
    told += [repr(run), cassette.read_text(), caplog.text, *rows()]
    for text in map(str, told):
        assert not any(form in text for form in FORMS)
