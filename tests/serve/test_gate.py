"""The classes of Django REST framework that an endpoint is given, under ASGI and WSGI alike."""

import json
from types import ModuleType
from unittest import mock

from django.core.cache import cache
from django.test import AsyncClient, TestCase, override_settings
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import APIException, AuthenticationFailed
from rest_framework.permissions import AllowAny, BasePermission
from rest_framework.throttling import AnonRateThrottle, UserRateThrottle

from mlango.models import Trace
from mlango.serve import path
from tests.serve.site import SECRET, Asked, Posting, make_user, served


class Key(BaseAuthentication):
    """Takes the name of a user for a key."""

    def authenticate(self, request):
        name = request.headers.get("X-Key")
        if name == "wrong":
            raise AuthenticationFailed("There is no such key.")
        return (make_user(name), name) if name else None

    def authenticate_header(self, request):
        return "Key"


class Weekdays(BasePermission):
    message = "Not on a Sunday."

    def has_permission(self, request, view):
        return "sunday" not in request.query_params


class Twice(UserRateThrottle):
    rate = "2/min"


class Once(AnonRateThrottle):
    rate = "1/hour"


class Odd(BasePermission):
    def has_permission(self, request, view):
        raise APIException({"why": ["because"]})


class Faulty(BasePermission):
    def has_permission(self, request, view):
        raise LookupError(SECRET)


urlpatterns = [
    path("key/", Asked.as_endpoint(authentication_classes=[Key])),
    path("key/stream/", Asked.as_stream_endpoint(authentication_classes=[Key])),
    path("weekdays/", Asked.as_endpoint(permission_classes=[Weekdays])),
    path("open/", Asked.as_endpoint(permission_classes=[AllowAny])),
    path("needed/", Asked.as_endpoint(permission_classes=[AllowAny], permission="auth.x")),
    path("twice/", Asked.as_endpoint(throttle_classes=[Twice])),
    path("once/", Asked.as_endpoint(permission_classes=[AllowAny], throttle_classes=[Once])),
    path("odd/", Asked.as_endpoint(permission_classes=[Odd])),
    path("faulty/", Asked.as_endpoint(permission_classes=[Faulty])),
]


class GateTests(Posting, TestCase):
    """What holds whatever the server is."""

    def setUp(self):
        super().setUp()
        cache.clear()
        self.enterContext(override_settings(ROOT_URLCONF=__name__))

    def test_an_authentication_class_tells_who_asks(self):
        self.client.logout()

        self.assertEqual(self.post("/key/", headers={"x-key": "eve"}).status_code, 200)
        self.assertEqual(Trace.objects.get().user.username, "eve")

    def test_a_class_that_refuses_is_a_401_with_its_own_scheme(self):
        self.client.logout()

        for url in ("/key/", "/key/stream/"):
            wrong = self.post(url, headers={"x-key": "wrong"})
            none = self.post(url)

            self.assert_problem(wrong, 401, "There is no such key.")
            self.assert_problem(none, 401, "Log in first.")
            self.assertEqual((wrong["WWW-Authenticate"], none["WWW-Authenticate"]), ("Key",) * 2)

    def test_a_session_is_not_asked_where_other_classes_are_given(self):
        self.assert_problem(self.post("/key/"), 401, "Log in first.")

    def test_a_permission_class_says_why_not(self):
        self.assertEqual(self.post("/weekdays/").status_code, 200)
        self.assert_problem(self.post("/weekdays/?sunday"), 403, "Not on a Sunday.")

    def test_an_open_endpoint_takes_anybody_but_gives_nobody_a_session(self):
        self.client.logout()

        self.assertEqual(self.post("/open/").status_code, 200)
        self.assertEqual(Trace.objects.get().owner_key, "")
        named = self.post("/open/", {"message": "hi", "session_id": "s1"})
        self.assert_problem(named, 400, "A session belongs to a user.")

    def test_the_permission_is_needed_whatever_the_classes_say(self):
        self.assert_problem(self.post("/needed/"), 403, "'auth.x'")
        self.client.logout()
        self.assert_problem(self.post("/needed/"), 401, "Log in first.")

    def test_who_asks_too_often_is_told_when_to_come_again(self):
        with mock.patch.object(Twice, "timer", return_value=1000.5):
            statuses = [self.post("/twice/").status_code for _ in range(2)]
            response = self.post("/twice/")

        self.assertEqual(statuses, [200, 200])
        self.assert_problem(response, 429, "throttled")
        self.assertEqual(response["Retry-After"], "60")

    def test_details_of_any_shape_are_told(self):
        self.assert_problem(self.post("/odd/"), 500, '{"why": ["because"]}')

    def test_a_fault_is_told_to_the_log_only(self):
        self.client.raise_request_exception = False

        with self.assertLogs("mlango.serve", "ERROR") as logs:
            response = self.post("/faulty/")

        problem = self.assert_problem(response, 500, "The server failed; its log tells why.")
        self.assertNotIn("s3cret", response.content.decode())
        self.assertIn("s3cret", logs.output[0])
        self.assertIn(problem["id"], logs.output[0])

    @override_settings(DEBUG=True)
    def test_a_fault_is_raised_under_debug(self):
        with self.assertRaisesMessage(LookupError, SECRET):
            self.post("/faulty/")


class AsyncGateTests(TestCase):
    """The same classes are asked on the event loop's side."""

    def setUp(self):
        self.enterContext(override_settings(ROOT_URLCONF=__name__))
        cache.clear()

    async def post(self, url, **headers):
        data = {"message": "hi"}
        return await AsyncClient().post(
            url, data, content_type="application/json", headers=headers
        )

    async def test_authentication(self):
        self.assertEqual((await self.post("/key/")).status_code, 401)
        answer = await self.post("/key/", **{"x-key": "eve"})
        self.assertEqual(json.loads(answer.content)["output"], "echo: hi")

    async def test_permission(self):
        self.assertEqual((await self.post("/open/")).status_code, 200)
        self.assertEqual((await self.post("/weekdays/?sunday")).status_code, 401)

    async def test_throttle(self):
        statuses = [(await self.post("/once/")).status_code for _ in range(2)]

        self.assertEqual(statuses, [200, 429])


class SiteTests(Posting, TestCase):
    """What a site says in REST_FRAMEWORK."""

    def site(self, **options):
        urls = ModuleType("urls")
        with override_settings(REST_FRAMEWORK=options):
            urls.urlpatterns = [path("", Asked.as_endpoint())]
        return override_settings(ROOT_URLCONF=urls)

    def test_the_classes_of_the_site_are_those_of_an_endpoint(self):
        with self.site(
            DEFAULT_AUTHENTICATION_CLASSES=["rest_framework.authentication.BasicAuthentication"]
        ):
            response = self.post("/")

        self.assert_problem(response, 401, "Log in first.")
        self.assertEqual(response["WWW-Authenticate"], 'Basic realm="api"')

    def test_a_site_that_is_open_has_no_open_endpoints(self):
        self.client.logout()

        with self.site(DEFAULT_PERMISSION_CLASSES=["rest_framework.permissions.AllowAny"]):
            self.assert_problem(self.post("/"), 401, "Log in first.")

    def test_a_site_with_a_permission_asks_for_it(self):
        with self.site(DEFAULT_PERMISSION_CLASSES=[f"{__name__}.Weekdays"]):
            self.assert_problem(self.post("/?sunday"), 403, "Not on a Sunday.")


@served
class NegotiationTests(Posting, TestCase):
    def test_an_answer_that_the_client_does_not_take_is_refused(self):
        for url, accept in (("/ask/", "image/png"), ("/stream/", "application/json")):
            response = self.post(url, headers={"accept": accept})

            self.assert_problem(response, 406, "Accept header")
        self.assertFalse(Trace.objects.exists())

    def test_the_usual_headers_are_fine(self):
        for url, accept in (
            ("/ask/", "application/json"),
            ("/ask/", "application/json, text/plain, */*"),
            ("/stream/", "text/event-stream"),
            ("/stream/", "*/*"),
        ):
            self.assertEqual(self.post(url, headers={"accept": accept}).status_code, 200)
