"""The OpenAPI document says what the endpoints do, and the browsable API shows them."""

import json
from types import ModuleType

import jsonschema
import pytest
from django.core.management import call_command
from django.test import Client
from django.urls import URLPattern, get_resolver
from drf_spectacular.management.commands.spectacular import Command

from mlango.agents import Agent, tool
from mlango.serve import include, path
from mlango.serve.operations import COMPONENTS, OPERATIONS
from tests.serve.site import Asked, make_user

pytestmark = pytest.mark.django_db(transaction=True)


@tool(approval=True)
def erase(order: int) -> str:
    """Erase an order."""
    return "erased"


class Careful(Agent):
    """Asks first."""

    class Meta:
        app_label = "served"
        tools = [erase]


urlpatterns = [
    path("asked/", include(Asked.urls)),
    path("careful/", include(Careful.urls)),
    path("api/", include("mlango.urls")),
]
AUTO = "drf_spectacular.openapi.AutoSchema"


@pytest.fixture(autouse=True)
def _site(settings):
    settings.ROOT_URLCONF = __name__


@pytest.fixture
def document(tmp_path, settings):
    settings.REST_FRAMEWORK = {"DEFAULT_SCHEMA_CLASS": AUTO}
    file = tmp_path / "openapi.json"
    call_command(Command(), fail_on_warn=True, validate=True, format="openapi-json", file=file)
    return json.loads(file.read_text())


@pytest.fixture
def client():
    client = Client()
    client.force_login(make_user())
    return client


def views(patterns=None):
    for pattern in get_resolver(__name__).url_patterns if patterns is None else patterns:
        if not isinstance(pattern, URLPattern):
            yield from views(pattern.url_patterns)
        elif "kind" in getattr(pattern.callback, "initkwargs", {}):
            yield pattern.callback.initkwargs


def test_every_method_of_every_endpoint_is_described():
    methods = {
        (view["kind"], method.upper())
        for view in views()
        for method in view["http_method_names"]
        if method != "options"
    }

    assert methods - set(OPERATIONS) == set()


def test_the_document_is_valid_and_names_types_errors_and_ways_to_log_in(document):
    run = document["paths"]["/asked/run/"]["post"]
    stream = document["paths"]["/asked/stream/"]["post"]

    assert {"application/json", "multipart/form-data"} == set(run["requestBody"]["content"])
    assert run["requestBody"]["content"]["application/json"]["example"]["message"]
    assert set(stream["responses"]["200"]["content"]) == {"text/event-stream"}
    assert set(run["responses"]["401"]["content"]) == {"application/problem+json"}
    assert run["security"] == [{"bearerAuth": []}, {"cookieAuth": []}]
    assert document["components"]["securitySchemes"]["bearerAuth"]["scheme"] == "bearer"
    assert set(COMPONENTS) <= set(document["components"]["schemas"])


@pytest.mark.parametrize("kind", ["run", "stream"])
def test_the_header_that_makes_a_request_one_run_is_described(document, kind):
    [header] = document["paths"][f"/asked/{kind}/"]["post"]["parameters"]

    assert (header["name"], header["in"], header.get("required")) == (
        "Idempotency-Key",
        "header",
        None,
    )
    assert header["schema"]["maxLength"] == 255


def test_every_operation_has_an_id_of_its_own(document):
    ids = [
        operation["operationId"]
        for each in document["paths"].values()
        for operation in each.values()
    ]

    assert len(ids) == len(set(ids)) > 10


def plain(schema):
    """Return a schema of OpenAPI 3.0 as one of JSON Schema."""
    if isinstance(schema, list):
        return [plain(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result = {name: plain(value) for name, value in schema.items() if name != "nullable"}
    if schema.get("nullable"):
        return {"anyOf": [result, {"type": "null"}]}
    return result


def check(document, url, method, response):
    """Raise unless a response is one that the document tells of."""
    told = document["paths"][url][method]["responses"][str(response.status_code)]["content"]
    schema = plain(told[response["Content-Type"]]["schema"])
    root = {**schema, "components": plain(document["components"])}
    jsonschema.validate(json.loads(response.content), root)


def post(client, url, data):
    return client.post(url, data, content_type="application/json")


def test_answers_are_as_the_document_says(document, client):
    run = post(client, "/careful/run/", {"message": 'use erase {"order": 7}'})
    check(document, "/careful/run/", "post", run)
    trace, approval = run.json()["trace"], run.json()["approvals"][0]["approval"]
    for url in ("/api/runs/", "/careful/approvals/", "/api/approvals/"):
        check(document, url, "get", client.get(url))
    check(document, "/api/runs/{trace}/", "get", client.get(f"/api/runs/{trace}/"))
    stopped = post(client, f"/api/runs/{trace}/cancel/", {})
    check(document, "/api/runs/{trace}/cancel/", "post", stopped)
    decision = {"approval": approval, "decision": "approve"}
    decided = post(client, "/api/approvals/", decision)
    check(document, "/api/approvals/", "post", decided)
    check(document, "/api/approvals/", "post", post(client, "/api/approvals/", decision))
    check(document, "/asked/run/", "post", post(client, "/asked/run/", {"mesage": "hi"}))
    check(document, "/asked/run/", "post", post(Client(), "/asked/run/", {"message": "hi"}))


@pytest.mark.parametrize(
    ("file", "is_valid"),
    [
        ({"data": "aGk=", "name": "a.txt"}, True),
        ({"data": "data:text/plain;charset=utf-8;base64,aGk="}, True),
        ("data:;base64,aGk=", True),
        ({"data": "hi!"}, False),
        ({"data": "aGk"}, False),
        ("aGk=", False),
        ("data:text/plain,hi", False),
    ],
)
def test_files_are_as_the_document_says(document, client, file, is_valid):
    body = {"message": "hi", "files": [file]}

    response = client.post("/asked/run/", body, content_type="application/json")

    schema = {"$ref": "#/components/schemas/AgentRequest", "components": document["components"]}
    assert jsonschema.Draft202012Validator(schema).is_valid(body) == is_valid
    assert response.status_code == (200 if is_valid else 400)


# -- the browsable API ------------------------------------------------------------------------

HTML = "text/html,application/xhtml+xml,*/*;q=0.8"


@pytest.fixture
def _browsable(settings):
    """A site with the browsable API, whose views are made when it is there."""
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "rest_framework"]
    settings.ROOT_URLCONF = ModuleType("urls")
    settings.ROOT_URLCONF.urlpatterns = [path("asked/", include(Asked.urls))]


@pytest.mark.usefixtures("_browsable")
def test_a_browser_sees_a_form_with_an_example(client):
    page = client.get("/asked/run/", headers={"accept": HTML})

    text = page.content.decode()
    assert page["Content-Type"].startswith("text/html")
    assert "Where is my order?" in text
    assert 'name="_content_type"' in text
    assert "Answers over HTTP." in text


@pytest.mark.usefixtures("_browsable")
def test_the_form_runs_the_agent(client):
    page = client.post(
        "/asked/run/",
        {"message": "<b>hi</b>"},
        content_type="application/json",
        headers={"accept": "text/html; q=1.0, */*"},
    )

    text = page.content.decode()
    assert page.status_code == 200
    assert "echo: &lt;b&gt;hi&lt;/b&gt;" in text
    assert "<b>hi</b>" not in text


@pytest.mark.usefixtures("_browsable")
def test_a_browser_of_nobody_sees_the_problem(client):
    page = Client().get("/asked/runs/", headers={"accept": HTML})

    assert page.status_code == 401
    assert "Log in first." in page.content.decode()
    assert 'name="_content_type"' not in page.content.decode()


@pytest.mark.usefixtures("_browsable")
def test_programs_of_the_same_site_read_json(client):
    for accept in ("*/*", "application/json"):
        answer = client.get("/asked/runs/", headers={"accept": accept})

        assert answer.json() == {"runs": [], "next": None}
