"""Approvals in a run at the terminal: whoever sits there is asked, and nobody else."""

import io

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.core.management import call_command

from mlango.models import Approval, Trace
from tests.commands.conftest import Tty
from tests.commands.desk import refunds, signed_in

User = get_user_model()

pytestmark = pytest.mark.django_db(transaction=True)

DESK = "commands.Desk"
REFUND = 'refund {"order": 7}'
ERASE = 'erase {"user": "x"}'


@pytest.fixture(autouse=True)
def _no_refunds():
    refunds.clear()
    signed_in.clear()


@pytest.fixture
def ann():
    return User.objects.create_user("ann")


@pytest.fixture
def at_terminal(typed, monkeypatch):
    """Run an agent with these lines typed; return its stdout, its stderr and its exit code."""
    monkeypatch.setenv("TERM", "dumb")

    def run(*arguments, lines=()):
        typed("".join(f"{line}\n" for line in lines))
        out, err = io.StringIO(), Tty()
        code = 0
        try:
            call_command("agent", DESK, *arguments, stdout=out, stderr=err)
        except SystemExit as leave:
            code = leave.code
        return out.getvalue(), err.getvalue(), code

    return run


def test_a_call_is_shown_allowed_and_run(at_terminal):
    out, err, code = at_terminal(REFUND, lines=["y"])

    assert 'commands.Desk asks to call refund:\n  order = 7\n  reason = ""\n[y]es' in err
    assert (out, code, refunds) == ("Done: refunded 7\n", 0, [(7, "")])
    assert Approval.objects.get().decided_by is None


def test_a_named_user_decides(at_terminal, ann):
    at_terminal(REFUND, "--user", "ann", lines=["yes"])

    assert Approval.objects.get().decided_by == ann


def test_a_call_is_refused_with_a_reason(at_terminal):
    out, _, code = at_terminal(REFUND, lines=["n", "", "not today"])

    assert (out, code, refunds) == ("Done: The call was refused: not today\n", 0, [])


def test_a_call_is_edited_shown_again_and_allowed(at_terminal):
    _, err, _ = at_terminal(REFUND, lines=["e", "ordr=8", "e", "order=8", "y"])

    assert "Did you mean 'order'?" in err
    assert "  order = 8  (was 7)" in err
    assert refunds == [(8, "")]


def test_a_change_of_the_wrong_type_is_told_and_asked_for_again(at_terminal):
    _, err, _ = at_terminal(REFUND, lines=["e", 'order="soon"', "e", "order=8", "y"])

    assert "order: Input should be a valid integer" in err
    assert refunds == [(8, "")]


def test_a_change_that_is_taken_back_is_none(at_terminal):
    at_terminal(REFUND, lines=["e", "order=8", "e", "order=7", "y"])

    assert Approval.objects.get().edited is None
    assert refunds == [(7, "")]


def test_an_empty_line_or_another_word_decides_nothing(at_terminal):
    _, err, _ = at_terminal(REFUND, lines=["", "perhaps", "y"])

    assert err.count("[y]es") == 3
    assert refunds == [(7, "")]


@pytest.mark.parametrize("lines", [["q"], [], ["n"]])
def test_what_is_left_keeps_waiting(at_terminal, lines):
    _, err, code = at_terminal(REFUND, lines=lines)

    assert "It is left waiting." in err
    assert f"manage.py approvals approve {Approval.objects.get().pk[:8]}" in err
    assert (code, refunds) == (3, [])
    assert Trace.objects.get().status == "waiting"


def test_a_question_is_answered(at_terminal):
    question = 'ask_question {"question": "Which?", "options": ["red", "blue"]}'

    out, err, _ = at_terminal(question, lines=["2"])

    assert "commands.Desk asks: Which?\n  1. red\n  2. blue\n" in err
    assert out == "Done: blue\n"


def test_a_sign_in_is_shown_and_said_to_be_done(at_terminal):
    out, err, _ = at_terminal('ticket {"number": 7}', lines=["", "y"])

    assert "asks to sign in at the tracker:\n  https://tracker.test/login?state=1\n" in err
    assert out == "Done: ticket 7\n"


@pytest.mark.parametrize(
    ("lines", "status"), [(["n", "not now"], "rejected"), (["q"], "pending"), (["e"], "pending")]
)
def test_a_sign_in_is_refused_or_left(at_terminal, lines, status):
    at_terminal('ticket {"number": 7}', lines=lines)

    assert Approval.objects.get().status == status


def test_every_call_that_waits_is_asked_about(at_terminal):
    at_terminal(f'{REFUND} and {{"order": 8}}', lines=["y", "n", "no"])

    assert [row.status for row in Approval.objects.order_by("created_at")] == ["used", "rejected"]
    assert refunds == [(7, "")]


@pytest.mark.parametrize("user", [(), ("--user", "ann")])
def test_a_permission_is_not_bypassed_at_the_terminal(at_terminal, ann, user):
    _, err, code = at_terminal(ERASE, *user, lines=["y"])

    assert "It takes somebody with the permission 'auth.delete_user'." in err
    assert "[y]es" not in err
    assert (code, Approval.objects.get().status) == (3, "pending")


def test_four_eyes_are_not_those_of_the_user(at_terminal, ann):
    ann.user_permissions.set(Permission.objects.filter(codename="decide_approval"))

    _, err, code = at_terminal('pay {"amount": 1}', "--user", "ann", lines=["y"])

    assert "who is not the run's user" in err
    assert (code, Approval.objects.get().status) == (3, "pending")


def test_a_chat_asks_and_goes_on(at_terminal):
    out, err, code = at_terminal(lines=[REFUND, "y", REFUND, "n", "why", "/quit"])

    assert out == "Done: refunded 7\nDone: The call was refused: why\n"
    assert err.count("you> ") == 3
    assert code == 0


def test_a_session_goes_on_with_what_was_decided(at_terminal):
    at_terminal(REFUND, "--session", "s1", lines=["y"])

    assert Trace.objects.get().session_key == "s1"
    assert Trace.objects.get().status == "finished"


@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_a_process_without_a_terminal_is_never_asked(manage, piped, arguments):
    piped("y\n")

    out, err, code = manage("agent", DESK, REFUND, *arguments)

    assert code == 3
    assert "[y]es" not in out + err
    assert refunds == []
    if arguments:
        assert '"approval_requested"' in out
    else:
        assert f"manage.py approvals approve {Approval.objects.get().pk[:8]} --user NAME" in err


def test_json_is_never_asked_for_even_at_a_terminal(at_terminal):
    _, err, code = at_terminal(REFUND, "--json", lines=["y"])

    assert (code, refunds) == (3, [])
    assert "[y]es" not in err


def test_a_prompt_that_nobody_sees_is_not_written(manage, typed):
    typed("y\n")

    assert manage("agent", DESK, REFUND)[2] == 3
    assert refunds == []


def test_the_steps_tell_what_is_asked_and_decided(at_terminal):
    _, err, _ = at_terminal(REFUND, "--show-steps", lines=["n", "too late"])

    assert "? refund waits for an approval\n" in err
    assert "· refund rejected too late\n" in err
