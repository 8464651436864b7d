"""Runs of the terminal that begin where others were."""

import pytest
from django.contrib.auth import get_user_model

from mlango.models import Approval, Trace
from tests.commands.desk import Desk, refunds
from tests.commands.shouting import script

pytestmark = pytest.mark.django_db(transaction=True)

SHOUTER, SCRIPTED, DESK = "commands.Shouter", "commands.Scripted", "commands.Desk"


@pytest.fixture(autouse=True)
def _no_refunds():
    refunds.clear()


def newest():
    return Trace.objects.order_by("-started_at").first()


def test_the_last_session_of_a_user_goes_on(manage):
    get_user_model().objects.create_user("ann")
    manage("agent", SHOUTER, "one", "--session", "first", "--user", "ann")
    manage("agent", SHOUTER, "two", "--session", "second", "--user", "ann")
    manage("agent", SHOUTER, "three", "--session", "nobodys")

    manage("agent", SHOUTER, "four", "--continue", "--user", "ann")

    assert newest().session_key == "second"
    assert "two" in str(newest().history)
    manage("agent", SHOUTER, "five", "--continue")
    assert newest().session_key == "nobodys"


def test_a_chat_goes_on_with_the_last_session(manage, typed):
    manage("agent", SHOUTER, "one", "--session", "first")
    typed("/session\n")

    assert "The session is 'first'." in manage("agent", SHOUTER, "--continue")[1]


def test_there_must_have_been_a_session(manage):
    _, err, code = manage("agent", SHOUTER, "one", "--continue")

    assert f"{SHOUTER} has no session of nobody; name the user by --user." in err
    assert code == 2


def test_a_run_that_failed_goes_on(manage):
    script(ValueError("no"))
    manage("agent", SCRIPTED, "hello")
    script("Yes.")

    out, _, code = manage("agent", "--resume", "last-failed")

    assert (out, code) == ("Yes.\n", 0)
    assert newest().status == "finished"


def test_a_run_that_waits_goes_on_once_all_is_decided(manage):
    Desk().run('refund {"order": 7}')

    _, err, code = manage("agent", DESK, "--resume", "last")
    assert "must be decided" in err
    assert (code, refunds) == (3, [])

    approval = Approval.objects.get()
    Approval.objects.filter(pk=approval.pk).update(status="approved")
    out, _, code = manage("agent", "--resume", approval.trace_id[:8])
    assert (out, code, refunds) == ("Done: refunded 7\n", 0, [(7, "")])


@pytest.mark.parametrize("named", [[], [SHOUTER]])
def test_a_copy_of_a_run_goes_on_from_a_step(manage, named):
    manage("agent", SHOUTER, "hello")
    first = newest()

    out, _, code = manage("agent", *named, "--fork", f"{first.pk[:8]}:1")

    assert (out, code) == ("HELLO\n", 0)
    assert newest().metadata["forked_from"] == first.pk
    assert newest().metadata["from_step"] == 1
    manage("agent", "--fork", first.pk)
    assert newest().metadata["from_step"] == first.steps == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Which agent? Name it by its label"),
        (["--resume", ""], "--resume needs a value"),
        (["--fork", "last:two"], "--fork 'last:two' is not RUN:STEP, such as last:2."),
        (["--fork", "last:9"], "from_step must be a step from 1 to 3, not 9."),
        ([SHOUTER, "more", "--resume", "last"], "give no message and no file"),
        (["--resume", "last", "--file", "x"], "give no message and no file"),
        (["--resume", "last", "--session", "x"], "not allowed with argument"),
    ],
)
def test_a_wrong_usage_is_told(manage, arguments, message):
    manage("agent", SHOUTER, "hello")

    _, err, code = manage("agent", *arguments)

    assert message in err
    assert code != 0
    assert Trace.objects.count() == 1


def test_a_run_that_has_finished_does_not_go_on(manage):
    manage("agent", SHOUTER, "hello")

    _, err, code = manage("agent", "--resume", "last")

    assert "is finished. Only one that is waiting" in err
    assert code == 1
