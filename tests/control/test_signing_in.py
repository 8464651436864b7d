"""Sign-in: a tool that needs its user to sign in somewhere, and the run that waits for that."""

import asyncio
import json
from datetime import timedelta

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.core.exceptions import PermissionDenied
from django.utils import timezone

from mlango.agents import (
    Agent,
    ApprovalDecided,
    ApprovalRequested,
    Context,
    SignInRequired,
    tool,
)
from mlango.agents.providers import ScriptedProvider, ToolCall
from mlango.exceptions import AlreadyDecided, Misused
from mlango.models import Approval, Attempt, Session
from mlango.models.approval import Operator

pytestmark = pytest.mark.django_db(transaction=True)

URL = "https://github.test/login?state=s3cret"

signed_in = set()
keys = []


def _list_issues(context, project):
    keys.append(context.idempotency_key)
    if context.user not in signed_in:
        raise SignInRequired(URL, label="GitHub", expires=timedelta(hours=1))
    return f"no issues in {project}"


@tool
def issues(project: str, context: Context) -> str:
    """List the issues of a project."""
    return _list_issues(context, project)


@tool(name="issues", thread_sensitive=False, effect="read", retries=2)
def pooled_issues(project: str, context: Context) -> str:
    """List the issues of a project."""
    return _list_issues(context, project)


@tool(name="issues")
async def async_issues(project: str, context: Context) -> str:
    """List the issues of a project."""
    return _list_issues(context, project)


@tool(name="issues")
def generated_issues(project: str, context: Context):
    """List the issues of a project."""
    yield "looking"
    return _list_issues(context, project)


@tool(name="issues", effect="transactional")
def transactional_issues(project: str, context: Context) -> str:
    """List the issues of a project."""
    Session.objects.create(agent="a", key=f"{len(keys)}")
    return _list_issues(context, project)


@tool(name="issues", approval=True)
def approved_issues(project: str, context: Context) -> str:
    """List the issues of a project."""
    return _list_issues(context, project)


KINDS = [issues, pooled_issues, async_issues, generated_issues, transactional_issues]


@pytest.fixture(autouse=True)
def _nobody_is_signed_in():
    signed_in.clear()
    keys.clear()


@pytest.fixture
def ann():
    return get_user_model().objects.create_user("ann")


def agent_with(*tools_, **options):
    meta = type("Meta", (), {"app_label": "signing", "tools": tools_, **options})
    return type("Desk", (Agent,), {"Meta": meta, "__module__": __name__, "__doc__": "Helps."})


def script(*turns):
    return ScriptedProvider(list(turns))


CALL = [ToolCall("c1", "issues", {"project": "mlango"})]


def wait(user, agent=None, **options):
    agent = agent or agent_with(issues)
    return agent().run("List them.", user=user, provider=script(CALL, "Asked."), **options)


def go_on(run, agent=None, provider=None, **options):
    agent = agent or agent_with(issues)
    return agent().resume(run, provider=provider or script("Done."), **options)


def sign_in(user):
    signed_in.add(user)
    Approval.objects.get(status="pending").signed_in(by=user)


@pytest.mark.parametrize("needing", KINDS)
def test_the_run_waits_and_the_call_is_made_again_with_the_same_key(ann, needing):
    agent = agent_with(needing)
    run = wait(ann, agent)
    row = Approval.objects.get()
    assert (run.status, run.stop_reason) == ("waiting", "awaiting_approval")
    assert (row.kind, row.tool, row.status) == ("sign_in", "issues", "pending")
    assert row.arguments == {"url": URL, "label": "GitHub"}
    assert row.expires_at > timezone.now()
    assert run.approvals == [row.describe()]

    sign_in(ann)
    done = go_on(run, agent)

    assert (done.status, done.text) == ("finished", "Done.")
    assert done.tool_results[-1].content == "no issues in mlango"
    assert len(keys) == 2
    assert len(set(keys)) == 1
    assert Approval.objects.get().status == "used"


def test_what_a_transactional_call_wrote_before_is_undone(ann):
    wait(ann, agent_with(transactional_issues))
    assert not Session.objects.filter(agent="a").exists()


def test_async_code_waits_and_goes_on(ann):
    agent = agent_with(async_issues)
    run = asyncio.run(agent().arun("List.", user=ann, provider=script(CALL)))
    assert run.status == "waiting"
    sign_in(ann)
    done = asyncio.run(agent().aresume(run, provider=script("Done.")))
    assert (done.status, len(keys)) == ("finished", 2)


def test_streams_tell_where_to_sign_in_and_that_it_was_done(ann):
    agent = agent_with(issues)
    stream = agent().stream("List.", user=ann, provider=script(CALL))
    [asked] = [event for event in stream if isinstance(event, ApprovalRequested)]
    assert (asked.asks, asked.name, asked.arguments["url"]) == ("sign_in", "issues", URL)
    sign_in(ann)
    events = list(agent().resume_stream(stream.run, provider=script("Done.")))
    [decided] = [event for event in events if isinstance(event, ApprovalDecided)]
    assert (decided.approval, decided.decision) == (asked.approval, "approved")
    assert events[-1].result.text == "Done."


def test_the_model_reads_nothing_of_the_url(ann):
    provider = script(CALL, "Done.")
    agent = agent_with(issues)
    run = agent().run("List.", user=ann, provider=provider)
    sign_in(ann)
    done = go_on(run, agent, provider)
    assert done.ok
    assert "s3cret" not in repr([(call.system, call.messages) for call in provider.calls])
    spans = [(s.input, s.output, s.error, s.attributes) for s in done.trace.spans.all()]
    assert "s3cret" not in json.dumps([spans, done.messages])


def test_other_calls_of_the_turn_are_made(ann):
    @tool
    def look() -> str:
        """Look."""
        return "seen"

    agent = agent_with(issues, look)
    turn = [*CALL, ToolCall("c2", "look", {})]
    run = agent().run("List.", user=ann, provider=script(turn))
    assert [each.content for each in run.tool_results] == ["seen"]
    assert run.status == "waiting"


def test_a_call_that_is_still_not_signed_in_asks_again(ann):
    run = wait(ann)
    Approval.objects.get().signed_in(by=ann)
    again = go_on(run)
    assert again.status == "waiting"
    assert sorted(row.status for row in Approval.objects.all()) == ["pending", "used"]
    sign_in(ann)
    assert go_on(again).text == "Done."


def test_a_run_goes_on_waiting_until_it_is_done_and_calls_nothing(ann):
    again = go_on(wait(ann))
    assert (again.status, len(keys)) == ("waiting", 1)
    assert Approval.objects.get().status == "pending"


def test_who_does_not_sign_in_has_the_model_told_why(ann):
    run = wait(ann)
    Approval.objects.get().reject(by=ann, reason="not today")
    done = go_on(run)
    assert done.tool_results[-1].content == "The user did not sign in: not today"
    assert len(keys) == 1


def test_who_is_too_late_is_not_asked_again(ann):
    run = wait(ann)
    Approval.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    with pytest.raises(AlreadyDecided):
        Approval.objects.get().signed_in(by=ann)
    done = go_on(run)
    assert "did not sign in in time" in done.tool_results[-1].content
    assert len(keys) == 1


def test_only_the_user_of_the_run_decides(ann):
    boss = get_user_model().objects.create_superuser("boss")
    boss.user_permissions.add(Permission.objects.get(codename="decide_approval"))
    wait(ann)
    row = Approval.objects.get()
    assert row.may_decide(ann)
    for other in (boss, Operator(), None):
        assert not row.may_decide(other)
    for decide in (row.signed_in, row.reject):
        with pytest.raises(PermissionDenied, match=r"It takes the run's user\."):
            decide(by=boss)


def test_a_sign_in_is_not_approved_and_a_call_not_signed_in(ann):
    wait(ann)
    row = Approval.objects.get()
    for decide in (row.approve, row.edit, row.run_again):
        with pytest.raises(Misused, match=r"is a sign-in. Use signed_in\(\) or reject\(\)"):
            decide(by=ann)
    with pytest.raises(Misused, match="is a call of a tool"):
        Approval(kind="tool").signed_in(by=ann)


def test_a_run_of_nobody_is_for_whoever_runs_the_process(ann):
    run = wait(None)
    row = Approval.objects.get()
    assert not row.may_decide(ann)
    with pytest.raises(PermissionDenied, match="whoever runs the process"):
        row.signed_in(by=ann)
    signed_in.add(None)
    row.signed_in(by=Operator())
    assert go_on(run).text == "Done."


def test_an_approval_of_the_call_holds_after_the_sign_in(ann):
    agent = agent_with(approved_issues)
    run = wait(ann, agent)
    assert keys == []
    Approval.objects.get().approve(by=ann)
    waiting = go_on(run, agent)
    kinds = {row.kind: row.status for row in Approval.objects.all()}
    assert kinds == {"tool": "approved", "sign_in": "pending"}
    sign_in(ann)
    done = go_on(waiting, agent)
    assert done.tool_results[-1].content == "no issues in mlango"
    assert {row.status for row in Approval.objects.all()} == {"used"}


def test_a_durable_run_does_not_take_the_call_for_one_that_a_crash_cut_off(ann):
    agent = agent_with(issues, durable=True, provider=script(CALL, "Done."))
    run = agent().run("List.", user=ann)
    assert run.status == "waiting"
    assert not Attempt.objects.filter(kind="tool").exists()
    sign_in(ann)
    done = agent().resume(run)
    assert done.tool_results[-1].content == "no issues in mlango"
    assert {row.kind for row in Approval.objects.all()} == {"sign_in"}
    assert len(set(keys)) == 1


def test_a_call_of_a_sub_agent_is_made_again_and_its_lead_goes_on(ann):
    turns = script(CALL, "There are none.")
    desk = agent_with(issues, provider=turns)
    lead = agent_with(desk.as_tool(name="desk"))
    ask = [ToolCall("a1", "desk", {"message": "List."})]
    run = lead().run("hi", user=ann, provider=script(ask))
    row = Approval.objects.get()
    assert (run.status, row.trace) == ("waiting", run.trace.children.get())
    assert [each["kind"] for each in run.approvals] == ["sign_in"]
    sign_in(ann)
    done = lead().resume(run, provider=script("Done."))
    assert (done.text, done.tool_results[-1].content) == ("Done.", "There are none.")
    assert len(set(keys)) == 1


def test_where_nobody_can_be_asked_the_model_is_told_without_the_url(ann):
    run = wait(ann, agent_with(issues, tracing=False))
    assert run.text == "Asked."
    assert run.tool_results[0].content == (
        "The user must sign in somewhere first, and cannot be asked here."
    )


def test_what_a_run_asked_that_is_aborted_is_closed(ann):
    stream = agent_with(issues)().stream("List.", user=ann, provider=script(CALL))
    for event in stream:
        if isinstance(event, ApprovalRequested):
            stream.abort()
    assert stream.run.status == "cancelled"
    assert Approval.objects.get().status == "expired"


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        "/accounts/login/",
        "//github.test",
        "ftp://github.test",
        "https://",
        "https://github.test@evil.test",
        "https://github.test/a b",
        "https://github.test/\n",
        "https://[",
        "https://gith\u00fcb.test",
        "",
        None,
    ],
)
def test_a_url_that_is_no_page_is_refused_and_not_repeated(url):
    with pytest.raises(Misused, match="must be absolute") as raised:
        SignInRequired(url)
    assert "evil" not in str(raised.value)


@pytest.mark.parametrize("wrong", [{"expires": 5}, {"expires": timedelta()}, {"label": None}])
def test_a_wrong_option_is_named(wrong):
    with pytest.raises(Misused, match=next(iter(wrong))):
        SignInRequired(URL, **wrong)


def test_the_host_names_the_place_where_no_label_does():
    assert SignInRequired("http://localhost:8000/login").label == "localhost"
    assert URL not in str(SignInRequired(URL))
