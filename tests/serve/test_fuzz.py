"""Whatever is sent to an endpoint, the answer is no fault of the server."""

import json
from unittest import mock

from django.test import Client, override_settings
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.django import TestCase

from mlango.models import Trace
from mlango.serve import include, path
from tests.serve.site import Asked, leave, make_user

urlpatterns = [
    path("agent/", include(Asked.urls)),
    path("site/", include("mlango.urls")),
]

TEXTS = st.text(max_size=40) | st.sampled_from(
    ["hi", "use who", "use make_groups {", "\0", "data:,"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(
    ["message", "session_id", "files", "images", "approval", "decision", "note", "arguments"]
)
FILES = st.fixed_dictionaries(
    {}, optional={"name": TEXTS, "data": TEXTS | st.just("aGk="), "type": TEXTS}
)
FIELDS = st.dictionaries(NAMES, TEXTS | st.lists(FILES | TEXTS, max_size=3) | VALUES, max_size=4)
BODIES = (
    FIELDS.map(json.dumps).map(str.encode)
    | VALUES.map(json.dumps).map(str.encode)
    | st.binary(max_size=60)
    | st.sampled_from([b"[" * 5000, b"{" * 5000, b'{"message":' * 300, b"1" * 5000, b'"\\ud800"'])
)
KINDS = st.sampled_from(
    [
        "application/json",
        "application/json; charset=utf-16",
        "multipart/form-data; boundary=x",
        "multipart/form-data",
        "text/plain",
        "",
    ]
)
FORMS = st.builds(
    b"--x\r\nContent-Disposition: form-data; %s\r\n\r\n%s\r\n--x--\r\n".__mod__,
    st.tuples(
        st.sampled_from(
            [b'name="message"', b'name="files"; filename="a.txt"', b'name="\xff"', b"name", b""]
        ),
        st.binary(max_size=20),
    ),
)
RUN = "0" * 32
POSTED = st.sampled_from(
    ["agent/run/", "agent/stream/", "agent/approvals/", "site/approvals/"]
    + [
        f"{site}/runs/{RUN}/{verb}/"
        for site in ("agent", "site")
        for verb in ("steer", "follow-up", "cancel")
    ]
)
READ = st.sampled_from(
    ["runs/", f"runs/{RUN}/", f"runs/{RUN}/events/", "runs/\0/", "runs/é/artifacts/x/"]
)


@override_settings(ROOT_URLCONF=__name__)
class FuzzTests(TestCase):
    @classmethod
    def setUpTestData(cls):
        cls.ann = make_user()

    def setUp(self):
        self.client = Client(raise_request_exception=False)
        self.client.force_login(self.ann)

    def assert_no_fault(self, response):
        content = response.getvalue() if response.streaming else response.content
        leave(response)
        self.assertLess(response.status_code, 500, content)
        if response.status_code >= 400:
            self.assertEqual(json.loads(content)["status"], response.status_code)
        self.assertFalse(Trace.objects.filter(status="running").exists())

    @settings(max_examples=150, deadline=None)
    @given(POSTED, BODIES, KINDS)
    def test_any_body_of_any_type(self, url, body, kind):
        self.assert_no_fault(self.client.generic("POST", f"/{url}", body, content_type=kind))

    @settings(max_examples=50, deadline=None)
    @given(FORMS | st.binary(max_size=60))
    def test_any_form(self, body):
        kind = "multipart/form-data; boundary=x"

        self.assert_no_fault(self.client.generic("POST", "/agent/run/", body, content_type=kind))

    @settings(max_examples=60, deadline=None)
    @given(
        READ,
        st.dictionaries(
            st.sampled_from(["limit", "before", "session_id", "status", "after"]), TEXTS
        ),
    )
    def test_any_query(self, url, query):
        with mock.patch(
            "mlango.serve.events.GRACE", 0.0
        ):  # runs that come later are not waited for
            self.assert_no_fault(self.client.get(f"/site/{url}", query))
            self.assert_no_fault(self.client.get(f"/agent/{url}", query))

    @settings(max_examples=30, deadline=None)
    @given(st.binary(max_size=30).map(lambda value: value.decode("latin-1")))
    def test_any_header(self, value):
        for name in (
            "last-event-id",
            "accept",
            "authorization",
            "content-length",
            "origin",
            "x-csrftoken",
        ):
            self.assert_no_fault(self.client.get("/site/runs/", headers={name: value}))
