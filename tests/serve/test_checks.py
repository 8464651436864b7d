"""What ``manage.py check`` says of serving."""

from types import ModuleType

from django.conf import settings
from django.core.checks import run_checks
from django.test import SimpleTestCase, override_settings
from rest_framework.permissions import AllowAny, IsAuthenticated

from mlango.agents import Agent
from mlango.runtime.tokens import hashed, new_secret
from mlango.serve import include, path
from tests.serve.site import Asked, served


def found(deploy=False, **keys):
    """Return the ids and the texts of our messages about serving."""
    with override_settings(MLANGO=settings.MLANGO | keys):
        messages = run_checks(include_deployment_checks=deploy)
    return {
        each.id: each.msg
        for each in messages
        if (each.id or "").startswith(("mlango.E04", "mlango.W04"))
    }


def urls(*patterns):
    module = ModuleType("urls")
    module.urlpatterns = [*patterns]
    return override_settings(ROOT_URLCONF=module)


class SettingTests(SimpleTestCase):
    def test_nothing_is_wrong_with_nothing(self):
        self.assertEqual(found(), {})

    def test_a_token_that_is_wrong(self):
        self.assertIn("[0] must have 64", found(API_BEARER_TOKENS=["sha256:x"])["mlango.E040"])

    def test_an_origin_that_is_none(self):
        for origin in ("app.example.com", "https://a.example/", "https://a.example/x", "//a", 7):
            with self.subTest(origin=origin):
                self.assertIn(repr(origin), found(CORS_ORIGINS=[origin])["mlango.E041"])
        self.assertEqual(found(CORS_ORIGINS=["https://a.example:8443", "http://[::1]"]), {})

    def test_any_origin_with_cookies(self):
        self.assertIn("mlango.E042", found(CORS_ORIGINS=["*"], CORS_ALLOW_CREDENTIALS=True))
        self.assertEqual(found(CORS_ORIGINS=["*"]), {})

    def test_a_public_url_that_is_none(self):
        self.assertIn("'example.com'", found(PUBLIC_URL="example.com")["mlango.E043"])

    def test_a_list_that_is_none_is_not_shown(self):
        with override_settings(MLANGO={"API_BEARER_TOKENS": "s3cret"}):
            messages = [each for each in run_checks() if each.id == "mlango.E003"]

        self.assertEqual(messages[0].msg, "MLANGO['API_BEARER_TOKENS'] must be a list, not a str.")


class DeploymentTests(SimpleTestCase):
    def found(self, **keys):
        return found(True, **{"PUBLIC_URL": "https://a.example"} | keys)

    def test_endpoints_as_they_come_are_fine(self):
        with urls(path("a/", include(Asked.urls))):
            self.assertEqual(self.found(API_BEARER_TOKENS=[hashed(new_secret())]), {})

    def test_tokens_that_are_short_or_plain(self):
        with urls():
            ids = self.found(API_BEARER_TOKENS=["short", new_secret()])

        self.assertIn("[0] has 5 characters", ids["mlango.W040"])
        self.assertIn("[1] is a secret in plain text", ids["mlango.W041"])

    def test_any_origin(self):
        self.assertIn("mlango.W042", self.found(CORS_ORIGINS=["*"]))

    def test_an_open_endpoint(self):
        for classes, is_open in (([AllowAny], True), ([], True), ([IsAuthenticated], False)):
            view = Asked.as_endpoint(permission_classes=classes)
            with urls(path("in/", include([path("a/", view)]))):
                self.assertEqual("'/in/a/'" in self.found().get("mlango.W043", ""), is_open)

    def test_an_endpoint_that_tells_errors(self):
        class Open(Agent):
            class Meta:
                app_label = "checked"
                disclose_errors = True

        with urls(path("a/", Open.as_endpoint())):
            self.assertIn("'/a/'", self.found()["mlango.W044"])

    def test_an_endpoint_that_takes_no_token(self):
        view = Asked.as_endpoint(authentication_classes=[])
        with urls(path("a/", view)):
            self.assertIn("mlango.W045", self.found(API_BEARER_TOKENS=[hashed("x")]))
            self.assertEqual(self.found(), {})

    @served
    def test_a_site_that_is_not_ready(self):
        with override_settings(DEBUG=True):
            ids = self.found(PUBLIC_URL="")

        self.assertIn("mlango.W046", ids)
        self.assertIn("mlango.W047", ids)
