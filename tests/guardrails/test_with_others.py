"""Guardrails beside other controls, in sub-agents, after handoffs, over HTTP, in a terminal."""

import io
import json
from dataclasses import dataclass

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.test import RequestFactory

from mlango.agents import (
    Agent,
    Block,
    DenyTopics,
    Guardrail,
    MaxLength,
    MetastoreMemory,
    Regex,
    Rewrite,
    TextChunk,
    tool,
)
from mlango.agents.providers import Completion, ScriptedProvider, ToolCall
from mlango.core.provider import Provider
from mlango.exceptions import ProviderUnavailable
from mlango.models import Approval, Trace

pytestmark = pytest.mark.django_db(transaction=True)

NEVER_TOLD = "swordfish"
NO_FISH = DenyTopics([NEVER_TOLD], on=("input", "output", "tools"))
sent = []


@pytest.fixture(autouse=True)
def _nothing_sent():
    sent.clear()


@tool(approval=True)
def send(to: str) -> str:
    """Send a letter."""
    sent.append(to)
    return f"sent to {to}"


def call(name, **arguments):
    return [ToolCall("", name, arguments)]


def agent(name="Clerk", *, turns=(), **options):
    meta = {"app_label": "guarded", "provider": ScriptedProvider(turns), **options}
    return type(name, (Agent,), {"Meta": type("Meta", (), meta), "__module__": __name__})


class Masking(Guardrail):
    """Rewrites whom a letter goes to."""

    def check_tool_call(self, name, arguments):
        return Rewrite(arguments | {"to": "[gone]"})


def test_people_are_asked_about_the_arguments_that_will_run():
    turns = [call("send", to=NEVER_TOLD), "done"]
    clerk = agent(turns=turns, tools=[send], guardrails=[Masking()])()
    waiting = clerk.run("hi")
    row = Approval.objects.get()

    assert row.arguments == {"to": "[gone]"}
    row.approve(by=get_user_model().objects.create_superuser("ann"))
    run = clerk.resume(waiting)

    assert (run.text, sent) == ("done", ["[gone]"])
    assert run.trace.messages == run.messages


def test_nobody_is_asked_about_a_call_that_is_refused():
    clerk = agent(turns=[call("send", to=NEVER_TOLD), "done"], tools=[send], guardrails=[NO_FISH])
    run = clerk().run("hi")

    assert run.text == "done"
    assert not Approval.objects.exists()


def test_what_was_said_is_checked_once_and_not_again_when_a_run_goes_on():
    seen = []

    class Counting(Guardrail):
        def check_input(self, text):
            seen.append(text)

    turns = [call("send", to="b"), "done"]
    clerk = agent(turns=turns, tools=[send], guardrails=[Counting()])()
    waiting = clerk.run("hi")
    Approval.objects.get().approve(by=get_user_model().objects.create_superuser("ann"))

    assert clerk.resume(waiting).text == "done"
    assert seen == ["hi"]


@dataclass
class Answer:
    word: str


def test_a_typed_answer_is_checked_as_text():
    turns = [json.dumps({"word": NEVER_TOLD})]
    run = agent(turns=turns, output=Answer, guardrails=[NO_FISH])().run("hi")
    assert run.stop_reason == "guardrail"

    rewrite = Regex(NEVER_TOLD, action="rewrite", replacement="trout", on="output")
    run = agent(turns=turns, output=Answer, guardrails=[rewrite])().run("hi")
    assert run.output == Answer("trout")
    assert run.trace.messages == run.messages


def test_a_sub_agent_has_guardrails_of_its_own():
    child = agent("Child", turns=[NEVER_TOLD], guardrails=[NO_FISH])
    lead = agent("Lead", turns=[call("child", message="go"), "I could not."], subagents=[child])
    stream = lead().stream("hi")
    events = list(stream)

    assert NEVER_TOLD not in str([event.describe() for event in events])
    assert stream.run.text == "I could not."
    assert stream.run.tool_results[0].is_error
    assert {event.kind for event in events if event.parent} >= {"guardrail_tripped"}


def test_a_call_of_a_sub_agent_is_checked_as_any_call():
    child = agent("Child", turns=["never asked"])
    lead = agent(
        "Lead",
        turns=[call("child", message=NEVER_TOLD), "I could not."],
        subagents=[child],
        guardrails=[NO_FISH],
    )

    assert lead().run("hi").text == "I could not."
    assert child._meta.provider.calls == []


def test_the_agent_that_takes_over_checks_what_was_said_too():
    class NoFish(Guardrail):
        def check_input(self, text):
            return Block() if NEVER_TOLD in text else None

    heir = agent("Heir", turns=["never asked"], guardrails=[NoFish()])
    first = agent("First", turns=[call("transfer_to_heir")], handoffs=[heir])
    stream = first().stream(NEVER_TOLD)
    events = list(stream)

    assert stream.run.stop_reason == "guardrail"
    assert not any(isinstance(event, TextChunk) for event in events)
    assert stream.run.trace.messages == stream.run.messages


def test_the_agent_that_takes_over_has_its_answers_checked():
    heir = agent("Heir", turns=[NEVER_TOLD], guardrails=[NO_FISH])
    first = agent("First", turns=[call("transfer_to_heir")], handoffs=[heir])

    assert first().run("hi").stop_reason == "guardrail"


def test_a_blocked_turn_is_not_recalled_from_the_traces():
    clerk = agent(turns=["one", "two"], memory=MetastoreMemory(), guardrails=[NO_FISH])()
    clerk.run(NEVER_TOLD, session_id="s")
    clerk.run("hi", session_id="s")
    clerk.run("again", session_id="s")

    messages = clerk._meta.provider.last_call.messages
    assert [message["content"] for message in messages] == ["hi", "one", "again"]


def test_a_refused_secret_is_not_on_disk():
    key = "sk-" + "a1B2" * 8
    run = agent(guardrails=["secret-scan"])().run(f"my key is {key}")

    assert run.stop_reason == "guardrail"
    assert run.trace.input == run.messages[0]["content"] == "my key is [secret]"
    assert run.trace.messages == run.messages
    assert key not in str(list(Trace.objects.values())) + str(list(run.trace.spans.values()))


def test_what_was_held_back_is_not_told_by_an_error_either():
    class Breaking(Provider):
        name = "scripted"
        offline = True

        async def astream(self, **request):
            yield NEVER_TOLD
            raise ProviderUnavailable("away", retryable=False, text=NEVER_TOLD)
            yield Completion()

    stream = agent(guardrails=[NO_FISH])().stream("hi", provider=Breaking())
    events = list(stream)

    assert stream.run.status == "failed"
    assert stream._run.exception.text == ""
    assert NEVER_TOLD not in str([event.describe() for event in events])


def posted(view):
    """Return what a view answers to a message."""
    request = RequestFactory().post(
        "/", json.dumps({"message": "hi"}), content_type="application/json"
    )
    request.user = get_user_model().objects.create_user("ann")
    request._dont_enforce_csrf_checks = True
    return async_to_sync(view)(request).getvalue().decode()


def test_an_endpoint_answers_that_a_guardrail_stopped_the_run():
    body = posted(agent(turns=[NEVER_TOLD], guardrails=[NO_FISH]).as_endpoint())
    answer = json.loads(body)

    assert (answer["status"], answer["stop_reason"]) == ("stopped", "guardrail")
    assert answer["output"] == ""
    assert NEVER_TOLD not in body


def test_a_stream_over_http_tells_no_word_of_a_blocked_answer():
    body = posted(agent(turns=[NEVER_TOLD], guardrails=[NO_FISH]).as_stream_endpoint())

    assert "event: guardrail_tripped" in body
    assert NEVER_TOLD not in body


def test_the_terminal_tells_what_a_guardrail_did():
    agent("Teller", turns=["a long answer"], guardrails=[MaxLength(5)])
    out, err = io.StringIO(), io.StringIO()
    with pytest.raises(SystemExit) as left:
        call_command("agent", "guarded.Teller", "hi", show_steps=True, stdout=out, stderr=err)

    assert left.value.code == 4
    assert out.getvalue() == ""
    assert "! max-length refused the output: 13 characters" in err.getvalue()
    assert "Stopped by the guardrail 'max-length'" in err.getvalue()
    assert Trace.objects.get().stop_reason == "guardrail"
