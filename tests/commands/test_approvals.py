"""Approvals in the terminal: found, shown, decided, and the runs gone on with."""

import json
from datetime import timedelta

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.utils import timezone

from mlango.models import Approval, Trace
from tests.commands.desk import Desk, Office, refunds, signed_in

User = get_user_model()

pytestmark = pytest.mark.django_db(transaction=True)

DESK = "commands.Desk"
REFUND = 'refund {"order": 7}'


@pytest.fixture(autouse=True)
def _no_refunds():
    refunds.clear()
    signed_in.clear()


@pytest.fixture
def ann():
    return User.objects.create_user("ann")


@pytest.fixture
def boss():
    user = User.objects.create_user("boss")
    user.user_permissions.set(Permission.objects.filter(codename="decide_approval"))
    return user


@pytest.fixture
def ref(ann):
    """Return the id of an approval that waits for Ann."""
    return wait(ann, REFUND)[:8]


def wait(user, message, agent=Desk):
    """Have a run wait, and return the id of what it waits for."""
    return agent().run(message, user=user).approvals[0]["approval"]


class TestLooking:
    def test_what_waits_is_listed(self, manage, ref):
        out, _, code = manage("approvals", "list")

        assert out.startswith(ref)
        line = 'pending   commands.Desk  tool call  refund {"order": 7, "reason": ""}'
        assert line in out
        assert code == 0

    def test_a_list_tells_what_is_asked_and_of_what_kind(self, manage, ann):
        wait(ann, 'ask_question {"question": "Which?", "options": ["S", "M"]}')
        wait(ann, 'ticket {"number": 7}')

        out = manage("approvals", "list")[0]

        assert "commands.Desk  question  Which? / S / M\n" in out
        assert "commands.Desk  sign-in  the tracker\n" in out
        assert "https://" not in out

    def test_what_is_decided_or_late_is_listed_only_with_all(self, manage, ann, ref):
        Approval.objects.get().approve(by=ann)
        wait(ann, 'pay {"amount": 1}')
        Approval.objects.filter(tool="pay").update(expires_at=timezone.now())

        assert manage("approvals", "list")[0] == ""
        out = manage("approvals", "list", "--all")[0]
        assert [line.split()[3] for line in out.splitlines()] == ["expired", "approved"]

    def test_they_are_listed_as_json_and_by_agent(self, manage, ref):
        out = manage("approvals", "list", "--json", "--agent", DESK)[0]

        assert json.loads(out)["arguments"] == {"order": 7, "reason": ""}
        assert manage("approvals", "list", "--agent", "commands.Other")[0] == ""

    def test_one_is_shown_in_full_with_how_to_decide_it(self, manage, ref):
        out, err, _ = manage("approvals", "show", ref)

        assert "commands.Desk asks to call refund:\n  order = 7\n" in out
        assert f"manage.py approvals approve {ref} --user NAME" in err
        assert "It takes the run's user or somebody with the permission" in err
        assert json.loads(manage("approvals", "show", ref, "--json")[0])["tool"] == "refund"

    def test_who_decided_and_how_is_shown(self, manage, ann, ref):
        Approval.objects.get().edit(by=ann, note="half of it", order=8)

        out = manage("approvals", "show", ref)[0]

        assert "order = 8  (was 7)" in out
        assert "by:         ann" in out
        assert "note:       half of it" in out

    def test_what_is_hidden_in_an_argument_is_seen(self, manage, ann):
        hidden = json.dumps({"order": 7, "reason": "ok\u202e\u200b\x1b[2J\nfine"})
        ref = wait(ann, f"refund {hidden}")[:8]

        shown = manage("approvals", "show", ref)[0] + manage("approvals", "list")[0]

        assert shown.count('"ok\\u202e\\u200b\\u001b[2J\\nfine"') == 2
        assert not {"\u202e", "\u200b", "\x1b", "\ufffd"} & set(shown)

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            ("abc", "'abc' is not the id of an approval. Give at least the first 8"),
            ("%%%%%%%%", "is not the id of an approval"),
            ("0" * 8, "No approval has an id that begins with '00000000'."),
        ],
    )
    def test_an_id_that_is_none_is_told(self, manage, wrong, message):
        _, err, code = manage("approvals", "show", wrong)

        assert message in err
        assert code == 1

    def test_an_id_of_several_lists_them(self, manage, ann):
        for end in ("1", "2"):
            row = Approval.objects.get(pk=wait(ann, REFUND))
            row.pk = f"{'a' * 31}{end}"
            row.save(force_insert=True)

        _, err, code = manage("approvals", "show", "aaaaaaaa")

        assert f"Several approvals begin with 'aaaaaaaa': {'a' * 31}2 (refund)" in err
        assert code == 1


class TestDeciding:
    def test_an_approved_call_runs_and_the_answer_is_printed(self, manage, ref):
        out, err, code = manage("approvals", "approve", ref, "--user", "ann", "--note", "fine")

        assert out == "Done: refunded 7\n"
        assert "Approved by ann." in err
        assert code == 0
        assert refunds == [(7, "")]
        assert Approval.objects.get().note == "fine"

    def test_a_rejected_call_does_not_run_and_the_agent_is_told_why(self, manage, ref):
        out, _, code = manage("approvals", "reject", ref, "--user", "ann", "--reason", "too late")

        assert out == "Done: The call was refused: too late\n"
        assert (refunds, code) == ([], 0)

    def test_a_reason_is_needed_to_reject(self, manage, ref):
        assert "--reason" in manage("approvals", "reject", ref, "--user", "ann")[1]
        assert Approval.objects.get().status == "pending"

    def test_an_edited_call_runs_as_edited(self, manage, ref):
        manage("approvals", "edit", ref, "--user", "ann", "order=8", 'reason="a=b"')

        assert refunds == [(8, "a=b")]

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ("order", "'order' is not name=value"),
            ("ordr=8", "ordr: Unknown parameter. Did you mean 'order'?"),
            ('order="soon"', "order: Input should be a valid integer"),
            ("order=7", "would change nothing"),
            ("reason=because", "is not JSON: because. Text stands in double quotes"),
        ],
    )
    def test_an_edit_that_cannot_be_changes_nothing(self, manage, ref, change, message):
        _, err, code = manage("approvals", "edit", ref, "--user", "ann", change)

        assert message in err
        assert code == 2
        assert Approval.objects.get().status == "pending"

    def test_a_question_is_answered_by_text_or_number(self, manage, ann):
        question = 'ask_question {"question": "Which?", "options": ["red", "blue"]}'
        for answer, read in ((["2"], "blue"), (["a", "dark", "red"], "a dark red")):
            ref = wait(ann, question)
            out = manage("approvals", "answer", ref, "--user", "ann", *answer)[0]
            assert out == f"Done: {read}\n"

    def test_an_empty_answer_decides_nothing(self, manage, ann):
        ref = wait(ann, 'ask_question {"question": "Which?"}')

        _, err, code = manage("approvals", "answer", ref, "--user", "ann", " ")

        assert "The answer is empty." in err
        assert code == 2
        assert Approval.objects.get().status == "pending"

    def test_a_call_is_not_answered_and_a_question_not_approved(self, manage, ann, ref):
        question = wait(ann, 'ask_question {"question": "Which?"}')

        _, err, code = manage("approvals", "approve", question, "--user", "ann")
        assert "is a question. Use answer" in err
        assert code == 2
        assert "is a call of a tool" in manage("approvals", "answer", ref, "--user", "ann", "x")[1]
        assert {row.status for row in Approval.objects.all()} == {"pending"}

    def test_a_sign_in_is_shown_and_said_to_be_done_by_its_user(self, manage, ann, boss):
        ref = wait(ann, 'ticket {"number": 7}')[:8]
        out, err, _ = manage("approvals", "show", ref)
        assert "asks to sign in at the tracker:\n  https://tracker.test/login?state=1\n" in out
        assert f"manage.py approvals signed-in {ref} --user NAME" in err
        assert "It takes the run's user." in err

        _, err, code = manage("approvals", "signed-in", ref, "--user", boss.username)
        assert "You may not decide" in err
        _, err, code = manage("approvals", "approve", ref, "--user", "ann")
        assert "is a sign-in. Use signed-in, or reject." in err
        assert code == 2
        out, err, code = manage("approvals", "signed-in", ref, "--user", "ann", "--note", "done")
        assert (out, code) == ("Done: ticket 7\n", 0)
        assert "Signed in, says ann.\n" in err
        assert Approval.objects.get().note == "done"

    def test_without_going_on_the_run_keeps_waiting(self, manage, ref):
        out, _, code = manage("approvals", "approve", ref, "--user", "ann", "--no-resume")

        assert (out, code, refunds) == ("", 0, [])
        assert Trace.objects.get().status == "waiting"

    def test_a_run_goes_on_when_the_last_of_several_is_decided(self, manage, ann):
        wait(ann, f'{REFUND} and {{"order": 8}}')
        first, second = Approval.objects.order_by("created_at")

        _, err, code = manage("approvals", "approve", first.pk, "--user", "ann")
        assert f"{second.pk[:8]} must be decided" in err
        assert (code, refunds) == (3, [])
        manage("approvals", "approve", second.pk, "--user", "ann")
        assert sorted(refunds) == [(7, ""), (8, "")]

    def test_a_call_of_a_subagent_goes_on_in_the_run_that_waits_for_it(self, manage, ann):
        ref = wait(ann, f"desk {json.dumps({'message': REFUND})}", Office)

        out, _, code = manage("approvals", "approve", ref, "--user", "ann")

        assert out == "Done: Done: refunded 7\n"
        assert code == 0
        assert {trace.status for trace in Trace.objects.all()} == {"finished"}

    def test_a_second_decision_changes_nothing(self, manage, ann, ref):
        Approval.objects.get().reject(by=ann, reason="no")

        _, err, code = manage("approvals", "approve", ref, "--user", "ann")

        assert "is rejected already. Nothing was changed." in err
        assert (code, refunds) == (1, [])

    def test_nothing_is_decided_if_the_agent_is_gone(self, manage, ref):
        Trace.objects.update(agent="commands.Gone")

        _, err, code = manage("approvals", "approve", ref, "--user", "ann")

        assert "No agent is labelled 'commands.Gone'." in err
        assert code == 1
        assert Approval.objects.get().status == "pending"

    def test_nothing_is_decided_if_the_run_is_gone(self, manage, ref):
        Trace.objects.all()._raw_delete("default")

        _, err, code = manage("approvals", "approve", ref, "--user", "ann")

        assert "is not recorded any more." in err
        assert (code, Approval.objects.get().status) == (1, "pending")

    def test_the_run_goes_on_as_its_own_user(self, manage, ann, boss, ref):
        manage("approvals", "approve", ref, "--user", "boss")

        assert Trace.objects.get().user == ann
        assert Approval.objects.get().decided_by == boss


class TestWhoMayDecide:
    def test_somebody_has_to_be_named(self, manage, ref):
        assert "--user" in manage("approvals", "approve", ref)[1]
        _, err, code = manage("approvals", "approve", ref, "--user", "eve")
        assert "There is no user 'eve'." in err
        assert code == 2

    @pytest.mark.parametrize(
        ("message", "name", "needed"),
        [
            (REFUND, "eve", "the run's user or somebody with the permission 'mlango.decide_"),
            ('erase {"user": "x"}', "ann", "somebody with the permission 'auth.delete_user'"),
            ('erase {"user": "x"}', "boss", "somebody with the permission 'auth.delete_user'"),
            ('pay {"amount": 1}', "ann", "'mlango.decide_approval' who is not the run's user"),
        ],
    )
    def test_who_may_not_is_told_what_is_needed(self, manage, ann, boss, message, name, needed):
        User.objects.create_user("eve")

        _, err, code = manage("approvals", "approve", wait(ann, message), "--user", name)

        assert needed in err
        assert code == 5
        assert Approval.objects.get().status == "pending"

    def test_who_may_decides(self, manage, ann, boss):
        ref = wait(ann, 'pay {"amount": 1}')

        assert manage("approvals", "approve", ref, "--user", "boss")[0] == "Done: paid 1\n"


class TestResuming:
    def test_every_run_goes_on_about_which_all_is_decided(self, manage, ann):
        for order in (1, 2):
            wait(ann, f'refund {{"order": {order}}}')
        Approval.objects.earliest("created_at").approve(by=ann)

        out, err, code = manage("approvals", "resume")

        assert (out, code, refunds) == ("Done: refunded 1\n", 0, [(1, "")])
        assert f"commands.Desk {Trace.objects.earliest('started_at').pk[:8]}" in err
        assert "No run is ready to go on." in manage("approvals", "resume")[1]

    def test_what_nobody_decided_in_time_goes_on_too(self, manage, ann):
        wait(ann, 'pay {"amount": 1}')
        Approval.objects.update(expires_at=timezone.now() - timedelta(seconds=1))

        out = manage("approvals", "resume")[0]

        assert out == "Done: Nobody decided in time, so the call was not made.\n"

    @pytest.mark.parametrize("of", ["trace", "approval"])
    def test_one_run_goes_on(self, manage, ann, ref, of):
        row = Approval.objects.get()
        row.approve(by=ann)

        assert manage("approvals", "resume", row.trace_id if of == "trace" else ref)[2] == 0
        assert refunds == [(7, "")]
        _, err, code = manage("approvals", "resume", ref)
        assert "is finished and does not wait" in err
        assert code == 1

    def test_one_that_still_waits_says_for_what(self, manage, ref):
        _, err, code = manage("approvals", "resume", ref)

        assert f"manage.py approvals approve {ref}" in err
        assert code == 3

    def test_a_run_that_cannot_go_on_does_not_keep_the_others(self, manage, ann):
        for order in (1, 2):
            wait(ann, f'refund {{"order": {order}}}')
        for row in Approval.objects.all():
            row.approve(by=ann)
        first = Trace.objects.earliest("started_at")
        Trace.objects.filter(pk=first.pk).update(agent="commands.Gone")

        out, err, code = manage("approvals", "resume")

        assert "No agent is labelled 'commands.Gone'." in err
        assert (out, code) == ("Done: refunded 2\n", 1)

    def test_an_unknown_one_is_told(self, manage):
        _, err, code = manage("approvals", "resume", "0" * 8)

        assert "No trace has an id that begins with '00000000'." in err
        assert code == 1


SAID = {
    "happened": "It happened",
    "did-not-happen": "It did not happen",
    "run-again": "To be run again",
}


@pytest.mark.parametrize("action", SAID)
def test_somebody_says_what_became_of_a_call_that_was_cut_off(manage, ref, action):
    Approval.objects.update(kind="unknown")
    _, err, _ = manage("approvals", "show", ref)
    assert f"manage.py approvals {action} {ref} --user NAME" in err
    _, err, code = manage("approvals", "approve", ref, "--user", "ann", "--no-resume")
    assert "is a call that a crash cut off. Use happened, did-not-happen, run-again" in err
    assert code == 2

    said = ("--user", "ann", "--note", "I looked.", "--no-resume")
    _, err, code = manage("approvals", action, ref, *said)

    approval = Approval.objects.get()
    assert "A crash cut off this call of refund by commands.Desk." in err
    assert f"{SAID[action]}, says ann.\n" in err
    shown = manage("approvals", "show", ref)[0]
    assert "kind:       unknown call\n" in shown
    assert f"decision:   {approval.get_choice_display()}\n" in shown
    assert (approval.status, approval.note, code) == ("approved", "I looked.", 0)
    assert action.replace("-", "_").startswith(approval.choice) or approval.choice == "again"
