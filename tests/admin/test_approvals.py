"""Approvals in the admin: what waits is seen first, and decided by whoever may."""

from datetime import timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.db import connection
from django.test import Client
from django.utils import timezone

from mlango.models import Approval, Trace
from tests.admin.conftest import html_of, make_trace, page_of

User = get_user_model()

pytestmark = pytest.mark.django_db

LIST = "/admin/mlango/approval/"


@pytest.fixture
def approval():
    return make_approval()


@pytest.fixture
def decider(client, staff):
    """Return the browser of somebody who may look and decide."""
    client.force_login(staff("view_approval", "decide_approval"))
    return client


def make_approval(**fields):
    values = {
        "trace": make_trace(uuid=f"abcdef{Trace.objects.count():02}", status="waiting"),
        "agent": "shop.Support",
        "tool": "refund",
        "tool_call_id": "c1",
        "arguments_json": '{"order": 7}',
        "arguments_hash": "a" * 64,
    }
    return Approval.objects.create(**values | fields)


def make_question(**fields):
    arguments = '{"question": "Which?", "options": null}'
    return make_approval(kind="question", tool="ask_question", arguments_json=arguments, **fields)


def make_sign_in(**fields):
    arguments = '{"label": "GitHub", "url": "https://github.test/login?state=s3cret"}'
    return make_approval(kind="sign_in", tool="issues", arguments_json=arguments, **fields)


def decide(client, approval, decision, note="", **sent):
    """Press a button of the page, and return the text of the page that comes then."""
    address = page_of(approval).replace("change", "decide")
    sent = {"decision": decision, "note": note, "arguments_hash": "a" * 64} | sent
    response = client.post(address, sent, follow=True)
    approval.refresh_from_db()
    return response.content.decode()


class TestLooking:
    def test_what_can_be_decided_is_first_and_what_is_late_is_said_to_be(self, decider):
        now = timezone.now()
        make_approval(tool="old")
        make_approval(tool="decided", status="used")
        make_approval(tool="late", expires_at=now - timedelta(seconds=1))
        make_approval(tool="new", expires_at=now + timedelta(hours=1))

        html = html_of(decider, LIST)

        places = [html.index(f"shop.Support {tool}") for tool in ("new", "old", "late", "decided")]
        assert places == sorted(places)
        assert 'mlango-status expired">expired<' in html

    def test_a_list_needs_no_query_per_row(self, decider, django_assert_max_num_queries):
        for _ in range(5):
            make_approval(decided_by=User.objects.get(), status="used")

        most = 9 + connection.settings_dict["ATOMIC_REQUESTS"]  # a transaction takes one
        with django_assert_max_num_queries(most):
            html_of(decider, LIST)

    def test_a_list_tells_what_is_asked_and_of_what_kind(self, decider):
        make_approval()
        make_question()
        make_sign_in()
        make_approval(kind="unknown", arguments_json=f'{{"text": "{"x" * 200}"}}')

        html = html_of(decider, LIST)

        for cells in (
            ("tool call", "refund {&quot;order&quot;: 7}"),
            ("question", "Which?"),
            ("sign-in", "GitHub"),
            ("unknown call", "refund {&quot;text&quot;: &quot;xxx"),
        ):
            kind, subject = cells
            assert (
                f'<td class="field-kind">{kind}</td><td class="field-shown_subject">{subject}'
                in html
            )
        assert "s3cret" not in html
        assert "x" * 100 not in html

    def test_a_page_shows_a_question_with_its_answers(self, decider):
        arguments = '{"question": "Which?", "options": ["S", "M"]}'

        html = html_of(decider, page_of(make_approval(kind="question", arguments_json=arguments)))

        assert "<pre>Which?\n1. S\n2. M</pre>" in html

    def test_a_page_shows_the_call_and_who_asked(self, decider):
        bob = User.objects.create_user("bob")
        approval = make_approval(permission="shop.pay", owner_key=str(bob.pk))
        Trace.objects.update(user=bob, owner_key=bob.pk)

        html = html_of(decider, page_of(approval))

        assert "<pre>order = 7</pre>" in html
        assert "bob" in html
        assert "shop.pay" in html
        assert f"/admin/mlango/trace/{approval.trace_id}/change/" in html

    def test_what_is_hidden_is_seen_and_what_is_html_is_text(self, decider):
        approval = make_approval(
            arguments_json='{"text": "ok\\u202e\\u200b<script>alert(1)</script>\\nfine"}'
        )

        html = html_of(decider, page_of(approval))

        assert "ok\\u202e\\u200b&lt;script&gt;alert(1)&lt;/script&gt;\\nfine" in html
        assert "<script>alert" not in html
        assert "\u202e" not in html

    def test_long_arguments_are_shown_in_full(self, decider):
        approval = make_approval(arguments_json=f'{{"text": "{"x" * 9000}END"}}')

        assert "xEND" in html_of(decider, page_of(approval))

    def test_buttons_are_there_as_long_as_something_can_be_decided(self, decider, approval):
        assert 'value="approve"' in html_of(decider, page_of(approval))
        assert 'value="answer"' in html_of(decider, page_of(make_question()))
        for closed in (
            make_approval(status="rejected"),
            make_approval(expires_at=timezone.now()),
        ):
            assert 'name="decision"' not in html_of(decider, page_of(closed))


class TestDeciding:
    def test_an_approved_call_is_kept_and_not_run(self, decider, approval):
        html = decide(decider, approval, "approve", "called them")

        assert (approval.status, approval.note) == ("approved", "called them")
        assert approval.decided_by.username == "maria"
        assert "Approved. The run goes on with the next “manage.py approvals resume”" in html
        assert Trace.objects.get().status == "waiting"

    def test_a_rejected_call_needs_a_reason(self, decider, approval):
        assert "Say why." in decide(decider, approval, "reject", "  ")
        assert approval.status == "pending"
        decide(decider, approval, "reject", "too late")
        assert (approval.status, approval.note) == ("rejected", "too late")

    def test_a_question_is_answered_and_not_approved(self, decider):
        question = make_question()

        assert "cannot be decided here" in decide(decider, question, "approve")
        assert "Write an answer." in decide(decider, question, "answer")
        assert question.status == "pending"
        decide(decider, question, "answer", "blue")
        assert (question.status, question.note) == ("approved", "blue")

    def test_the_user_of_the_run_signs_in_and_says_so(self, decider):
        asked = make_sign_in(owner_key=str(User.objects.get().pk))

        html = html_of(decider, page_of(asked))
        assert '<a href="https://github.test/login?state=s3cret" target="_blank"' in html
        assert "Sign in at GitHub" in html
        assert "cannot be decided here" in decide(decider, asked, "approve")
        assert "Signed in. The run goes on" in decide(decider, asked, "signed_in")
        assert asked.status == "approved"

    def test_nobody_else_sees_where_to_sign_in_or_decides(self, decider):
        asked = make_sign_in(owner_key="0")

        html = html_of(decider, page_of(asked))
        assert "GitHub" in html
        assert "s3cret" not in html
        assert 'name="decision"' not in html
        decide(decider, asked, "signed_in")
        assert asked.status == "pending"

    def test_the_second_to_decide_is_told_and_changes_nothing(self, decider, approval):
        decide(decider, approval, "approve")

        html = decide(decider, approval, "reject", "no")

        assert "This is approved already. Nothing was changed." in html
        assert (approval.status, approval.note) == ("approved", "")

    def test_too_late_is_told(self, decider):
        approval = make_approval(expires_at=timezone.now() - timedelta(seconds=1))

        assert "This is expired already." in decide(decider, approval, "approve")
        assert approval.status == "expired"

    def test_only_the_call_that_was_seen_is_decided(self, decider, approval):
        html = decide(decider, approval, "approve", arguments_hash="b" * 64)

        assert "another call. Nothing was changed." in html
        assert approval.status == "pending"

    def test_a_decision_stands_in_the_log_of_the_admin(self, decider, approval):
        decide(decider, approval, "reject", "too late")

        entry = LogEntry.objects.get()
        assert (entry.object_id, entry.user.username) == (approval.pk, "maria")
        assert entry.change_message == "reject: too late"

    def test_one_that_is_not_there_is_not_found(self, decider):
        assert decider.post(f"{LIST}nothing/decide/").status_code == 404


class TestWhoMay:
    def test_to_look_is_not_to_decide(self, client, staff, approval):
        client.force_login(staff("view_approval"))

        html = html_of(client, page_of(approval))
        decide(client, approval, "approve")

        assert "You may look at this, but not decide about it." in html
        assert 'name="decision"' not in html
        assert approval.status == "pending"

    @pytest.mark.parametrize(
        ("codenames", "page", "post"),
        [
            ((), 403, 403),
            (("decide_approval", "change_trace"), 403, 403),
            (("view_approval", "change_approval"), 200, 403),
            (("view_approval", "decide_approval"), 200, 302),
        ],
    )
    def test_what_the_address_of_a_decision_answers(self, client, staff, codenames, page, post):
        client.force_login(staff(*codenames))
        approval = make_approval()
        address = page_of(approval).replace("change", "decide")

        assert client.post(address, {"decision": "approve"}).status_code == post
        assert client.get(address).status_code == 405
        assert client.get(page_of(approval)).status_code == page

    def test_somebody_who_is_not_logged_in_is_sent_to_the_login(self, client, approval):
        for address in (LIST, page_of(approval), page_of(approval).replace("change", "decide")):
            assert client.post(address).url.startswith("/admin/login/")

    def test_a_page_of_another_site_decides_nothing(self, staff, approval):
        client = Client(enforce_csrf_checks=True)
        client.force_login(staff("view_approval", "decide_approval"))

        decide(client, approval, "approve")

        assert approval.status == "pending"

    def test_a_permission_that_was_taken_away_meanwhile_counts(self, decider, approval):
        assert 'value="approve"' in html_of(decider, page_of(approval))
        User.objects.get().user_permissions.set(
            Permission.objects.filter(codename="view_approval")
        )

        decide(decider, approval, "approve")

        assert approval.status == "pending"

    def test_not_even_a_superuser_has_four_eyes(self, client):
        root = User.objects.create_superuser("root")
        client.force_login(root)
        approval = make_approval(four_eyes=True, owner_key=str(root.pk))

        decide(client, approval, "approve")

        assert approval.status == "pending"

    def test_not_even_a_superuser_writes_to_the_row(self, client, approval):
        client.force_login(User.objects.create_superuser("root"))
        page = page_of(approval)

        answers = [
            client.post(address, {"status": "approved", "post": "yes"}).status_code
            for address in (f"{LIST}add/", page, page.replace("change", "delete"))
        ]

        assert answers == [403, 403, 403]
        assert Approval.objects.get().status == "pending"


@pytest.mark.parametrize("decision", ["happened", "did_not_happen", "run_again"])
def test_somebody_says_what_became_of_a_call_that_was_cut_off(decider, decision):
    asked = make_approval(kind="unknown")
    assert f'value="{decision}"' in html_of(decider, page_of(asked))
    assert "cannot be decided here" in decide(decider, asked, "approve")

    decide(decider, asked, decision, "I looked.")

    assert asked.status == "approved"
    assert decision.startswith(asked.choice) or asked.choice == "again"
    assert asked.note == "I looked."
