"""Pages of other sites."""

from django.conf import settings
from django.test import TestCase, override_settings

from tests.serve.site import Posting, served

APP = "https://app.example.com"


def allowing(*origins, credentials=False):
    keys = {"CORS_ORIGINS": [*origins], "CORS_ALLOW_CREDENTIALS": credentials}
    return override_settings(MLANGO=settings.MLANGO | keys)


@served
class CorsTests(Posting, TestCase):
    def test_a_page_of_an_allowed_origin_reads_the_answer(self):
        with allowing("https://other.example.com", APP):
            for url in ("/ask/", "/stream/"):
                response = self.post(url, headers={"origin": APP})

                self.assertEqual(response["Access-Control-Allow-Origin"], APP)
                self.assertIn("Retry-After", response["Access-Control-Expose-Headers"])
                self.assertIn("Origin", response["Vary"])
                self.assertNotIn("Access-Control-Allow-Credentials", response)

    def test_it_reads_what_is_wrong_too(self):
        self.client.logout()

        with allowing(APP):
            response = self.post(headers={"origin": APP})

        self.assert_problem(response, 401, "Log in first.")
        self.assertEqual(response["Access-Control-Allow-Origin"], APP)

    def test_another_origin_reads_nothing(self):
        with allowing(APP):
            for origin in (
                "https://evil.example",
                f"{APP}.evil.example",
                APP.upper(),
                "null",
                "*",
            ):
                response = self.post(headers={"origin": origin})

                self.assertNotIn("Access-Control-Allow-Origin", response)
                self.assertIn("Origin", response["Vary"])

    def test_no_origin_reads_anything_unless_the_site_says_so(self):
        response = self.post(headers={"origin": APP})

        self.assertNotIn("Access-Control-Allow-Origin", response)

    def test_a_preflight_is_answered_without_a_login(self):
        self.client.logout()
        headers = {"origin": APP, "access-control-request-method": "POST"}

        with allowing(APP):
            response = self.client.options("/ask/", headers=headers)

        self.assertEqual(response.status_code, 204)
        self.assertEqual(response["Access-Control-Allow-Origin"], APP)
        self.assertIn("POST", response["Access-Control-Allow-Methods"])
        self.assertIn("Authorization", response["Access-Control-Allow-Headers"])
        self.assertIn("Idempotency-Key", response["Access-Control-Allow-Headers"])

    def test_a_preflight_of_another_origin_allows_nothing(self):
        headers = {"origin": "https://evil.example", "access-control-request-method": "POST"}

        with allowing(APP):
            response = self.client.options("/ask/", headers=headers)

        self.assertFalse([name for name in response.headers if name.startswith("Access-")])

    def test_cookies_are_for_those_origins_that_are_named(self):
        with allowing(APP, credentials=True):
            response = self.post(headers={"origin": APP})

        self.assertEqual(response["Access-Control-Allow-Credentials"], "true")

    def test_any_origin_reads_without_cookies_only(self):
        with allowing("*"):
            response = self.post(headers={"origin": APP})

        self.assertEqual(response["Access-Control-Allow-Origin"], "*")
        self.assertNotIn("Access-Control-Allow-Credentials", response)

    def test_any_origin_with_cookies_is_refused(self):
        with allowing("*", credentials=True), self.assertLogs("mlango.serve", "ERROR") as logs:
            response = self.post(headers={"origin": APP})

        self.assertFalse([name for name in response.headers if name.startswith("Access-")])
        self.assertIn("CORS_ALLOW_CREDENTIALS", logs.output[0])
