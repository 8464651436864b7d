"""What ``as_endpoint()`` answers."""

import json
from unittest import mock

from django.conf import settings
from django.contrib.auth.models import Group
from django.db import connection
from django.test import (
    Client,
    TestCase,
    TransactionTestCase,
    modify_settings,
    override_settings,
)

from mlango.models import Session, Trace
from tests.serve.site import Posting, events_of, make_user, served


@served
class AnswerTests(Posting, TestCase):
    def test_an_answer_tells_how_the_run_ended(self):
        response = self.post(data={"message": "hi", "session_id": "s1"})

        answer = response.json()
        trace = Trace.objects.get()
        self.assertEqual(response.status_code, 200)
        self.assertEqual(response["Content-Type"], "application/json")
        usage = answer.pop("usage")
        self.assertEqual(usage["output_tokens"], 2)
        self.assertEqual(
            answer,
            {
                "agent": "served.Asked",
                "output": "echo: hi",
                "status": "finished",
                "stop_reason": "end_turn",
                "steps": 1,
                "trace": trace.uuid,
                "session_id": "s1",
                "tools_used": [],
                "cost": "0",
                "error": "",
                "approvals": [],
                "artifacts": [],
            },
        )
        self.assertEqual(trace.user, self.user)

    def test_tools_get_the_user_and_the_request(self):
        self.post(data={"message": "use who"})

        (span,) = Trace.objects.get().spans.filter(kind="tool")
        self.assertIn("ann of ann at /ask/", json.dumps(span.output))

    def test_tools_see_the_data_of_the_caller(self):
        Group.objects.create(name="staff")

        response = self.post(data={"message": "use count_groups"})

        self.assertEqual(response.json()["output"], "tool results: 1")

    def test_the_agent_is_made_with_what_the_endpoint_was_given(self):
        self.post("/formal/")

        self.assertEqual(Trace.objects.get().opening["system"], "Be formal.")

    def test_a_view_in_a_route_with_arguments_answers_too(self):
        self.assertEqual(self.post("/in/acme/ask/").status_code, 200)

    def test_sessions_of_one_id_belong_to_their_users(self):
        other = Client()
        other.force_login(make_user("bob"))

        self.post(data={"message": "the code is 42", "session_id": "same"})
        self.post(data={"message": "what?", "session_id": "same"}, client=other)

        trace = Trace.objects.get(user__username="bob")
        self.assertEqual(trace.history, [])
        self.assertEqual(Session.objects.filter(key="same").count(), 2)

    def test_a_session_goes_on_for_its_owner(self):
        self.post(data={"message": "the code is 42", "session_id": "same"})
        self.post(data={"message": "what?", "session_id": "same"})

        history = Trace.objects.get(input="what?").history
        self.assertEqual(history[0]["content"], "the code is 42")


@served
@modify_settings(MIDDLEWARE={"append": "django.contrib.auth.middleware.LoginRequiredMiddleware"})
class AtomicRequestsTests(Posting, TransactionTestCase):
    """A site that wraps views in transactions and asks for a login everywhere."""

    def setUp(self):
        super().setUp()
        self.enterContext(mock.patch.dict(connection.settings_dict, {"ATOMIC_REQUESTS": True}))

    def test_runs_are_outside_of_the_transaction(self):
        answer = self.post(data={"message": 'use make_groups {"count": 1}'})
        body = self.post("/stream/", {"message": "use count_groups"}).getvalue()

        self.assertEqual(answer.json()["output"], "tool results: 1")
        self.assertEqual(events_of(body)[-1][2]["output"], "tool results: 1")
        self.assertTrue(Group.objects.exists())


@served
class FailureTests(Posting, TestCase):
    def test_a_failed_run_names_its_trace_and_nothing_else(self):
        for url, status, detail in (
            ("/broken/", 500, "The run failed with ValueError."),
            ("/limited/", 502, "The model did not answer (RateLimited)."),
        ):
            with self.assertLogs("mlango.serve", "ERROR") as logs:
                response = self.post(url)

            problem = self.assert_problem(response, status, detail)
            self.assertNotIn("s3cret", response.content.decode())
            self.assertEqual(Trace.objects.get(uuid=problem["id"]).status, "failed")
            self.assertIn("s3cret", logs.output[0])

    def test_a_busy_session_is_a_conflict(self):
        Session.objects.create(
            agent="served.Asked", owner=self.user, owner_key=str(self.user.pk), key="s1"
        )
        Session.objects.filter(key="s1").take_turn("other", 60)

        with override_settings(MLANGO=settings.MLANGO | {"SESSION_WAIT": 0}):
            response = self.post(data={"message": "hi", "session_id": "s1"})

        self.assert_problem(response, 409, "Another run has the turn of the session 's1'")

    @override_settings(MLANGO={"DEFAULT_PROVIDER": "no-such-provider"})
    def test_an_agent_that_is_not_set_up_is_told_to_the_log_only(self):
        for url in ("/plain/", "/plain/stream/"):
            with self.assertLogs("mlango.serve", "ERROR") as logs:
                response = self.post(url)

            problem = self.assert_problem(response, 500, "The agent is not set up")
            self.assertNotIn("no-such-provider", response.content.decode())
            self.assertIn("no-such-provider", logs.output[0])
            self.assertIn(problem["id"], logs.output[0])
