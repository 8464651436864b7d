"""What ``manage.py check --deploy`` says of what a site runs on."""

from decimal import Decimal
from types import ModuleType

import pytest
from django.core.checks import run_checks
from django.db import connections
from django.http import HttpResponse
from django.test import override_settings
from django.views.decorators.csrf import csrf_exempt

from mlango.agents import Agent, Limits
from mlango.runtime.registry import registry
from mlango.serve import deployment, path
from tests.serve.site import Asked, own_view

IDS = [f"mlango.W05{number}" for number in range(6)]


@pytest.fixture
def found(settings, monkeypatch):
    """Return a function that returns the ids and the texts of the checks."""
    monkeypatch.setattr(registry, "_agents", {"served.Asked": Asked})
    monkeypatch.setattr(deployment, "_installed", lambda package: "")
    settings.ROOT_URLCONF = site(path("ask/", Asked.as_endpoint()))

    def find(*patterns):
        if patterns:
            settings.ROOT_URLCONF = site(*patterns)
        messages = run_checks(include_deployment_checks=True)
        return {each.id: f"{each.msg} {each.hint}" for each in messages if each.id in IDS}

    return find


def site(*patterns):
    module = ModuleType("urls")
    module.urlpatterns = [*patterns]
    return module


def test_a_good_site_is_told_nothing(found):
    assert found() == {}


def test_an_async_view_in_atomic_requests(found, monkeypatch):
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)

    assert found() == {}
    assert found(path("own/", own_view)) == {}  # it asks for none

    async def view(request):
        return HttpResponse()

    assert "'/own/'" in found(path("own/", csrf_exempt(view)))["mlango.W050"]


def test_lasting_connections_under_asgi(found, monkeypatch, settings):
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", None)
    settings.ASGI_APPLICATION = "config.asgi.application"
    assert "'default' has CONN_MAX_AGE" in found()["mlango.W051"]

    settings.ASGI_APPLICATION = None
    assert found() == {}


def test_streams_under_wsgi(found, settings):
    settings.WSGI_APPLICATION = "config.wsgi.application"
    assert found() == {}
    assert "'/s/'" in found(path("s/", Asked.as_stream_endpoint()))["mlango.W052"]

    settings.ASGI_APPLICATION = "config.asgi.application"
    assert found() == {}


@pytest.mark.parametrize(
    ("version", "is_told"), [("4.2.1", True), ("4.2.2", False), ("4.10", False)]
)
def test_a_server_with_a_known_hole(found, monkeypatch, version, is_told):
    monkeypatch.setattr(deployment, "_installed", {"daphne": version, "mcp": ""}.get)

    assert ("mlango.W053" in found()) is is_told


def test_a_model_without_a_price_under_a_cost_limit(found, monkeypatch):
    class Costly(Agent):
        class Meta:
            app_label = "served"
            model = "openai/unheard-of"
            limits = Limits(max_cost_usd=Decimal(1))

    class Careless(Costly):
        class Meta:
            app_label = "served"
            limits = Limits(max_cost_usd=Decimal(1), allow_unpriced=True)

    monkeypatch.setattr(registry, "_agents", {"served.Careless": Careless})
    assert found() == {}

    monkeypatch.setattr(registry, "_agents", {"served.Costly": Costly})
    assert "openai/unheard-of" in found()["mlango.W054"]
    with override_settings(MLANGO={"PRICES": {"openai/*": {"input": 1, "output": 1}}}):
        assert found() == {}


def test_files_that_anybody_may_read(found, settings):
    settings.MEDIA_ROOT, settings.MEDIA_URL = "/srv/media", "/media/"
    assert "MEDIA_URL" in found()["mlango.W055"]

    memory = {"BACKEND": "django.core.files.storage.InMemoryStorage"}
    settings.STORAGES = {**settings.STORAGES, "mlango": memory}
    assert found() == {}
