"""Bearer tokens."""

from io import StringIO

from django.conf import settings
from django.contrib.auth.models import Permission
from django.core.management import call_command
from django.test import Client, SimpleTestCase, TestCase, override_settings

from mlango.exceptions import Misconfigured
from mlango.models import Approval, Session, Trace
from mlango.runtime.tokens import Service, hashed, new_secret, program_with, token_of, token_with
from tests.serve.site import Posting, make_user, served

NEW, OLD, ANNS, BILLINGS = (new_secret() for _ in range(4))
TOKENS = [
    hashed(NEW),
    OLD,
    {"token": hashed(ANNS), "user": "ann"},
    {"token": hashed(BILLINGS), "name": "billing", "permissions": ["auth.view_group"]},
]


def with_tokens(*tokens, **keys):
    return override_settings(MLANGO=settings.MLANGO | {"API_BEARER_TOKENS": [*tokens], **keys})


@served
class TokenTests(Posting, TestCase):
    def setUp(self):
        super().setUp()
        self.client = Client(enforce_csrf_checks=True)
        self.enterContext(with_tokens(*TOKENS))

    def bearing(self, token, url="/ask/", **data):
        headers = {"authorization": f"Bearer {token}"}
        return self.post(url, {"message": "hi", **data}, headers=headers)

    def test_every_token_of_a_rotation_is_the_same_client(self):
        for token in (NEW, OLD):
            self.assertEqual(self.bearing(token, session_id="s1").status_code, 200)

        self.assertEqual(Session.objects.get().owner_key, "service:api")
        self.assertEqual({trace.owner_key for trace in Trace.objects.all()}, {"service:api"})

    def test_a_token_of_a_user_is_that_user(self):
        self.assertEqual(self.bearing(ANNS).status_code, 200)
        self.assertEqual(Trace.objects.get().user, self.user)

    def test_a_stream_takes_tokens_too(self):
        self.assertIn(b"event: finished", self.bearing(NEW, "/stream/").getvalue())

    def test_a_program_with_several_tokens_may_do_what_each_of_them_says(self):
        both = [
            {"token": token, "name": "both", "permissions": list(permissions)}
            for token, permissions in ((NEW, "ab"), (OLD, "bc"))
        ]
        with with_tokens(*both, {"token": ANNS, "user": "ann"}):
            self.assertEqual(program_with("service:both").permissions, {"b"})
            self.assertIsNone(program_with("service:api"))
            self.assertIsNone(program_with(str(self.user.pk)))

    def test_a_token_may_do_what_it_says(self):
        self.assertEqual(self.bearing(BILLINGS, "/only/").status_code, 200)
        self.assert_problem(self.bearing(NEW, "/only/"), 403, "'auth.view_group'")
        self.assert_problem(self.bearing(ANNS, "/only/"), 403, "'auth.view_group'")

        self.user.user_permissions.add(Permission.objects.get(codename="view_group"))
        self.assertEqual(self.bearing(ANNS, "/only/").status_code, 200)

    def test_programs_do_not_meet(self):
        self.bearing(NEW, session_id="same")
        self.bearing(BILLINGS, session_id="same")

        self.assertEqual(Session.objects.filter(key="same").count(), 2)

    def test_any_other_token_is_refused(self):
        for token in ("", "x", NEW[:-1], NEW + "x", hashed(NEW), "é", "\u0430", "a b", "a" * 9999):
            response = self.bearing(token)

            self.assert_problem(response, 401, "The token is not valid.")
            self.assertEqual(
                response["WWW-Authenticate"],
                'Bearer realm="mlango", error="invalid_token", Session',
            )
        self.assertFalse(Trace.objects.exists())

    def test_a_wrong_token_is_refused_whatever_the_cookies_say(self):
        self.client.force_login(self.user)

        self.assert_problem(self.bearing("wrong"), 401, "The token is not valid.")

    def test_a_right_token_counts_whatever_the_cookies_say(self):
        self.client.force_login(make_user("eve"))

        self.assertEqual(self.bearing(ANNS).status_code, 200)
        self.assertEqual(Trace.objects.get().user, self.user)

    def test_the_scheme_is_written_in_any_case(self):
        self.assertEqual(self.post(headers={"authorization": f"bearer {NEW}"}).status_code, 200)

    def test_another_scheme_is_no_token(self):
        response = self.post(headers={"authorization": f"Basic {NEW}"})

        self.assert_problem(response, 401, "Log in first.")

    def test_nobody_is_told_that_a_token_would_do(self):
        response = self.post()

        self.assert_problem(response, 401, "Log in first.")
        self.assertEqual(response["WWW-Authenticate"], 'Bearer realm="mlango", Session')

    def test_a_user_who_left_takes_his_token_with_him(self):
        self.user.is_active = False
        self.user.save()

        with self.assertLogs("mlango.serve", "WARNING") as logs:
            self.assert_problem(self.bearing(ANNS), 401, "The token is not valid.")
        self.assertIn("'ann'", logs.output[0])

    def test_no_token_is_taken_where_none_is_set(self):
        with with_tokens():
            self.assert_problem(self.bearing(NEW), 401, "The token is not valid.")

    def test_a_program_decides_about_its_own_calls_only(self):
        rows = [
            Approval.objects.create(
                trace_id="a" * 32, tool_call_id=owner, agent="a", tool="t", owner_key=owner
            )
            for owner in ("service:api", "service:billing")
        ]
        program = Service(token_with(NEW))

        rows[0].approve(by=program)

        self.assertEqual((rows[0].status, rows[0].decided_by), ("approved", None))
        self.assertFalse(rows[1].may_decide(program))


class SettingTests(SimpleTestCase):
    def test_what_is_wrong_is_told_without_the_secret(self):
        for given, message in (
            (7, "must be a string or a dict, not a int"),
            ("", "must hold a secret"),
            ({}, "must hold a secret"),
            ({"token": 7}, "must hold a secret"),
            ("sha256:s3cret", "must have 64 hexadecimal digits"),
            ({"token": "s3cret", "usr": "ann"}, "has no key 'usr'. Did you mean 'user'?"),
            ({"token": "s3cret", "user": ""}, "['user'] must be a string"),
            ({"token": "s3cret", "name": 7}, "['name'] must be a string"),
            ({"token": "s3cret", "user": "ann", "name": "x"}, "has a 'user', whose name"),
            ({"token": "s3cret", "permissions": "a.b"}, "['permissions'] must be a list"),
        ):
            with self.assertRaisesMessage(Misconfigured, message) as caught:
                token_of(3, given)

            self.assertIn("MLANGO['API_BEARER_TOKENS'][3]", str(caught.exception))
            self.assertNotIn("s3cret", str(caught.exception))

    def test_the_command_makes_a_secret_and_its_hash(self):
        out = StringIO()

        call_command("apitoken", stdout=out)

        _, secret, _, _, digest = out.getvalue().splitlines()
        self.assertEqual(digest, hashed(secret))
        self.assertEqual(len(secret), 50)
        self.assertEqual(token_of(0, digest).digest, token_of(0, secret).digest)
