"""Who may do what: every URL × verb × role. A URL without a line here is a failure."""

import json

from django.conf import settings
from django.contrib.auth.models import Permission
from django.db import transaction
from django.test import Client, TestCase, modify_settings, override_settings
from django.urls import URLPattern, get_resolver

from mlango.agents import Agent, tool
from mlango.models import Approval, Artifact
from mlango.runtime.tokens import new_secret
from mlango.serve import include, path
from tests.serve.site import make_user

OWNERS, PROGRAMS = new_secret(), new_secret()
TOKENS = [
    {"token": OWNERS, "user": "owner"},
    {"token": PROGRAMS, "permissions": ["auth.view_group"]},
]


@tool(approval=True)
def erase(order: int) -> str:
    """Erase an order."""
    return "erased"


class Guarded(Agent):
    """Is for some only."""

    class Meta:
        app_label = "served"
        tools = [erase]
        permission = "auth.view_group"


urlpatterns = [
    path("agent/", include(Guarded.urls)),
    path("site/", include("mlango.urls")),
]

VERBS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
# Only "unpermitted" lacks the agent's permission; "token" is the owner's, "program" has its own.
ROLES = ("anonymous", "unpermitted", "other", "staff", "superuser", "owner", "token", "program")

ANYBODY = (200,) * 8
USERS = (401, 403, 200, 200, 200, 200, 200, 200)
OWNER = (401, 403, 404, 404, 404, 200, 200, 404)
# The run waits, so it is the owner's to stop or steer, but it does not go on.
OWNER_TOO_LATE = (401, 403, 404, 404, 404, 409, 409, 404)
DECIDER = (401, 403, 404, 404, 200, 200, 200, 404)
NOT_ALLOWED = (401, 403, 405, 405, 405, 405, 405, 405)


def site(line):
    """Return the line of a page of the site, which asks for the permission of no agent."""
    return (line[0], line[2], *line[2:])


TABLE = {
    ("agent/run/", "POST"): USERS,
    ("agent/stream/", "POST"): USERS,
    ("agent/approvals/", "GET"): USERS,
    ("agent/approvals/", "POST"): DECIDER,
    ("agent/runs/", "GET"): USERS,
    ("agent/runs/<str:trace>/", "GET"): OWNER,
    ("agent/runs/<str:trace>/events/", "GET"): OWNER,
    ("agent/runs/<str:trace>/cancel/", "POST"): OWNER_TOO_LATE,
    ("agent/runs/<str:trace>/steer/", "POST"): OWNER_TOO_LATE,
    ("agent/runs/<str:trace>/follow-up/", "POST"): OWNER_TOO_LATE,
    ("agent/runs/<str:trace>/artifacts/<str:artifact>/", "GET"): OWNER,
    ("site/approvals/", "GET"): site(USERS),
    ("site/approvals/", "POST"): site(DECIDER),
    ("site/runs/", "GET"): site(USERS),
    ("site/runs/<str:trace>/", "GET"): site(OWNER),
    ("site/runs/<str:trace>/events/", "GET"): site(OWNER),
    ("site/runs/<str:trace>/cancel/", "POST"): site(OWNER_TOO_LATE),
    ("site/runs/<str:trace>/steer/", "POST"): site(OWNER_TOO_LATE),
    ("site/runs/<str:trace>/follow-up/", "POST"): site(OWNER_TOO_LATE),
    ("site/runs/<str:trace>/artifacts/<str:artifact>/", "GET"): site(OWNER),
}
# Health is told to load balancers, which have no login.
OPEN = {"site/health", "site/healthz"}


def routes(patterns=None, prefix=""):
    for pattern in get_resolver(__name__).url_patterns if patterns is None else patterns:
        route = f"{prefix}{pattern.pattern}"
        if isinstance(pattern, URLPattern):
            yield route
        else:
            yield from routes(pattern.url_patterns, route)


def expected(route, verb):
    """Return the line of a route and a verb; a verb without one is not allowed."""
    if verb == "OPTIONS":
        return ANYBODY
    line = NOT_ALLOWED if route.startswith("agent/") else site(NOT_ALLOWED)
    return TABLE.get((route, verb), line)


@override_settings(
    ROOT_URLCONF=__name__,
    MLANGO=settings.MLANGO | {"API_BEARER_TOKENS": TOKENS},
    STORAGES={"default": {"BACKEND": "django.core.files.storage.InMemoryStorage"}},
)
class MatrixTests(TestCase):
    @classmethod
    def setUpTestData(cls):
        permission = Permission.objects.get(codename="view_group")
        cls.users = {
            "unpermitted": make_user("unpermitted"),
            "other": make_user("other"),
            "staff": make_user("staff", is_staff=True),
            "superuser": make_user("superuser", is_superuser=True),
            "owner": make_user("owner"),
        }
        for name in ("other", "staff", "owner"):
            cls.users[name].user_permissions.add(permission)
        cls.run_of_owner = Guarded().run('use erase {"order": 7}', user=cls.users["owner"])
        cls.trace = cls.run_of_owner.trace_uuid
        cls.approval = Approval.objects.get().pk
        kept = {
            "uuid": "a" * 32,
            "trace_id": cls.trace,
            "name": "a.txt",
            "mime_type": "text/plain",
        }
        cls.artifact = Artifact.objects.keep(b"a", **kept).pk

    def ask(self, role, route, verb):
        client, headers = Client(), {"accept-encoding": "gzip"}
        if role in self.users:
            client.force_login(self.users[role])
        elif role in ("token", "program"):
            token = OWNERS if role == "token" else PROGRAMS
            headers["authorization"] = f"Bearer {token}"
        url = "/" + route.replace("<str:trace>", self.trace).replace(
            "<str:artifact>", self.artifact
        )
        body = {"message": "hi"}
        if "approvals" in route:
            body = {"approval": self.approval, "decision": "reject"}
        if route.endswith("cancel/"):
            body = {}
        with transaction.atomic():
            response = client.generic(
                verb, url, json.dumps(body), content_type="application/json", headers=headers
            )
            content = response.getvalue() if response.streaming else response.content
            transaction.set_rollback(True)
        return response, content

    def test_every_url_has_a_line(self):
        lines = {route for route, _ in TABLE} | OPEN

        self.assertEqual(set(routes()), lines)

    def test_every_verb_of_every_url_answers_every_role_as_the_table_says(self):
        wrong = []
        for route in set(routes()) - OPEN:
            for verb in VERBS:
                for role, status in zip(ROLES, expected(route, verb), strict=True):
                    response, content = self.ask(role, route, verb)
                    if response.status_code != status:
                        wrong.append((route, verb, role, response.status_code, status))
                    if role not in ("owner", "token", "superuser"):
                        self.assertNotIn(self.approval.encode(), content)

        self.assertEqual(wrong, [])

    @modify_settings(MIDDLEWARE={"prepend": "django.middleware.gzip.GZipMiddleware"})
    def test_nothing_holds_back_the_events_of_any_url(self):
        streams = set()
        for route in set(routes()) - OPEN:
            for verb in ("GET", "POST"):
                response, content = self.ask("owner", route, verb)
                if response["Content-Type"] == "text/event-stream":
                    streams.add(route)
                    self.assertEqual(response["Content-Encoding"], "identity")
                    self.assertEqual(response["Cache-Control"], "no-cache")
                    self.assertEqual(response["X-Accel-Buffering"], "no")
                    self.assertIn(b"event: finished", content)

        ends = ("stream/", "events/")
        self.assertEqual(streams, {route for route in routes() if route.endswith(ends)})

    def test_health_is_told_to_anybody(self):
        for route in OPEN:
            for role in ROLES:
                self.assertEqual(self.ask(role, route, "GET")[0].status_code, 200)

    def test_lists_hold_what_is_ones_own(self):
        for route in ("agent/runs/", "site/runs/"):
            for role in ROLES[1:]:
                response, content = self.ask(role, route, "GET")
                if response.status_code == 200:
                    is_own = role in ("owner", "token")
                    self.assertEqual(self.trace.encode() in content, is_own, (route, role))

    def test_what_is_unknown_and_what_is_foreign_look_the_same(self):
        client = Client()
        client.force_login(self.users["other"])

        for url in ("/agent/runs/{}/", "/site/runs/{}/"):
            bodies = [
                client.get(url.format(trace)).json() | {"id": ""}
                for trace in (self.trace, "f" * 32, "nonsense", "%00", "a b", self.trace.upper())
            ]
            self.assertEqual([body for body in bodies if body != bodies[0]], [])
            self.assertEqual(bodies[0]["status"], 404)

    def test_a_permission_that_is_taken_away_is_missed_at_once(self):
        self.users["owner"].user_permissions.clear()

        for route, verb in TABLE:
            is_agents = route.startswith("agent/")
            status = self.ask("owner", route, verb)[0].status_code
            if is_agents or (route, verb) == ("site/approvals/", "POST"):
                self.assertEqual(status, 403, (route, verb))
            else:
                self.assertIn(status, (200, 409), (route, verb))

    def test_a_session_asks_for_the_csrf_token_wherever_something_changes(self):
        client = Client(enforce_csrf_checks=True)
        client.force_login(self.users["owner"])

        for route, verb in TABLE:
            if verb == "POST":
                url = "/" + route.replace("<str:trace>", self.trace).replace(
                    "<str:artifact>", self.artifact
                )
                response = client.post(url, {"message": "hi"}, content_type="application/json")
                self.assertEqual(response.status_code, 403, route)
                self.assertIn("CSRF", response.json()["detail"])
