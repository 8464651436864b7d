"""Requests that get no run."""

from django.conf import settings
from django.contrib.auth.models import Permission
from django.test import Client, TestCase, modify_settings, override_settings

from mlango.exceptions import Misused
from mlango.models import Trace
from tests.serve.site import Asked, Posting, served


@served
class RefusalTests(Posting, TestCase):
    def test_nobody_is_refused(self):
        self.client.logout()

        for url in ("/ask/", "/stream/"):
            response = self.post(url)

            self.assert_problem(response, 401, "Log in first.")
            self.assertEqual(response["WWW-Authenticate"], "Session")
        self.assertFalse(Trace.objects.exists())

    @modify_settings(
        MIDDLEWARE={"append": "django.contrib.auth.middleware.LoginRequiredMiddleware"}
    )
    def test_nobody_is_not_sent_to_a_form(self):
        self.client.logout()

        self.assert_problem(self.post(), 401, "Log in first.")

    def test_a_permission_is_asked_for(self):
        self.assert_problem(self.post("/only/"), 403, "'auth.view_group'")

        self.user.user_permissions.add(Permission.objects.get(codename="view_group"))
        self.assertEqual(self.post("/only/").status_code, 200)

    def test_a_post_without_the_csrf_token_is_refused(self):
        client = Client(enforce_csrf_checks=True)
        client.force_login(self.user)

        for url in ("/ask/", "/stream/"):
            self.assert_problem(self.post(url, client=client), 403, "CSRF")
        self.assertFalse(Trace.objects.exists())

    @modify_settings(MIDDLEWARE={"remove": "django.middleware.csrf.CsrfViewMiddleware"})
    def test_the_csrf_token_is_needed_without_its_middleware_too(self):
        client = Client(enforce_csrf_checks=True)
        client.force_login(self.user)

        self.assert_problem(self.post(client=client), 403, "CSRF")

    def test_a_post_from_another_site_is_refused(self):
        client = Client(enforce_csrf_checks=True)
        client.force_login(self.user)
        client.cookies[settings.CSRF_COOKIE_NAME] = "a" * 32
        headers = {"x-csrftoken": "a" * 32, "origin": "https://evil.example"}

        self.assert_problem(self.post(client=client, headers=headers), 403, "Origin checking")

    def test_a_post_with_the_csrf_token_is_answered(self):
        client = Client(enforce_csrf_checks=True)
        client.force_login(self.user)
        token = "a" * 32
        client.cookies[settings.CSRF_COOKIE_NAME] = token

        response = self.post(client=client, headers={"x-csrftoken": token})

        self.assertEqual(response.status_code, 200)

    def test_another_method_is_told_which_one_is_right(self):
        for method in ("get", "put", "delete"):
            response = getattr(self.client, method)("/ask/")

            self.assert_problem(response, 405, "Use POST.")
            self.assertEqual(response["Allow"], "POST, OPTIONS")

    def test_options_tells_the_methods_to_anybody(self):
        self.client.logout()

        response = self.client.options("/ask/")

        self.assertEqual((response.status_code, response["Allow"]), (200, "POST, OPTIONS"))

    def test_another_content_type_is_refused(self):
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/mixed"):
            response = self.client.post("/ask/", "message=hi", content_type=kind)

            self.assert_problem(response, 415, "must be application/json or multipart/form-data")

    def test_a_charset_in_the_content_type_is_fine(self):
        response = self.client.post(
            "/ask/", {"message": "hi"}, content_type="application/json; charset=utf-8"
        )

        self.assertEqual(response.status_code, 200)

    def test_a_body_that_is_no_object_is_refused(self):
        for body, detail in (
            ("{", "cannot be read: not valid JSON"),
            (b"\xff", "not UTF-8"),
            ("[" * 100_000, "nested deeper"),
            ('{"message": NaN}', "cannot be read"),
            ("[]", "must be a JSON object"),
            (" ", "cannot be read"),
        ):
            self.assert_problem(self.post(data=body), 400, detail)

    def test_a_field_that_is_wrong_is_named(self):
        for data, detail in (
            ({"mesage": "hi"}, "no field 'mesage'. Did you mean 'message'? Fields are: message,"),
            ({"message": "hi", "user": "root"}, "no field 'user'."),
            ({}, "'message' must hold the text"),
            ({"message": " \n"}, "'message' must hold the text"),
            ({"message": [{"role": "system", "content": "x"}]}, "'message' must be a string"),
            ({"message": "hi", "session_id": 7}, "'session_id' must be a string"),
            ({"message": "hi", "session_id": "a b"}, "The session id 'a b' must be"),
        ):
            self.assert_problem(self.post(data=data), 400, detail)
            self.assert_problem(self.post("/stream/", data), 400, detail)
        self.assertFalse(Trace.objects.exists())

    @override_settings(MLANGO=settings.MLANGO | {"MAX_INPUT_CHARS": 5})
    def test_a_message_that_is_too_long_is_refused(self):
        self.assert_problem(self.post(data={"message": "123456"}), 400, "MAX_INPUT_CHARS")

    @override_settings(MLANGO=settings.MLANGO | {"MAX_HTTP_BODY_BYTES": 40})
    def test_a_body_that_is_too_large_is_refused(self):
        self.assertEqual(self.post(data={"message": "1" * 20}).status_code, 200)
        self.assert_problem(self.post(data={"message": "1" * 40}), 413, "more than 40 bytes")

    @override_settings(MLANGO=settings.MLANGO | {"MAX_HTTP_BODY_BYTES": 40})
    def test_a_header_that_tells_too_much_is_enough(self):
        response = self.post(headers={"content-length": "41"})

        self.assert_problem(response, 413, "more than 40 bytes")

    @override_settings(MLANGO=settings.MLANGO | {"MAX_HTTP_BODY_BYTES": None})
    def test_without_a_limit_any_header_will_do(self):
        self.assertEqual(self.post(headers={"content-length": "9" * 5000}).status_code, 400)

    @override_settings(DATA_UPLOAD_MAX_MEMORY_SIZE=10)
    def test_the_limit_of_forms_does_not_count(self):
        client = Client(enforce_csrf_checks=True)
        client.force_login(self.user)
        client.cookies[settings.CSRF_COOKIE_NAME] = "a" * 32

        response = self.post(client=client, headers={"x-csrftoken": "a" * 32})

        self.assertEqual(response.status_code, 200)

    def test_an_unknown_field_of_the_agent_is_told_where_the_urls_are_made(self):
        with self.assertRaisesMessage(Misused, "Asked() has no field 'tome'."):
            Asked.as_endpoint(tome="formal")
