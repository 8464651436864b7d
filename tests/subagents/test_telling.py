"""How several agents show: in the terminal, over HTTP, in the checks."""

import io

import pytest
from django.core.checks import run_checks
from django.core.management import call_command
from django.core.management.base import OutputWrapper

from mlango.agents import Agent
from mlango.agents.fields import CharField
from mlango.agents.providers.scripted import call
from mlango.checks import TAG
from mlango.core.log import Places
from mlango.management.printing import TextPrinter
from mlango.management.terminal import Screen
from mlango.runtime.registry import registry
from mlango.serve.sse import framed
from tests.subagents.test_subagents import _agent, ask, pair


def events(**options):
    agent = pair([ask(), "Found."], ["There."], tracing=False, child_tracing=False, **options)
    return list(agent().stream("hi"))


def printed(events):
    out, err = io.StringIO(), io.StringIO()
    printer = TextPrinter(Screen(OutputWrapper(out)), Screen(OutputWrapper(err)), show_steps=True)
    for event in events:
        printer.show(event)
    printer.end(events[-1].result, None)
    return out.getvalue(), err.getvalue().splitlines()


def test_the_terminal_prints_only_the_answer_of_the_lead():
    out, _ = printed(events())
    assert out == "Found.\n"


def test_the_steps_of_a_subagent_are_indented():
    _, lines = printed(events())
    assert [line[:8] for line in lines[:5]] == [
        "step 1 ·",
        "→ resear",
        "  step 1",
        "✓ resear",
        "step 2 ·",
    ]


def test_a_handoff_is_printed():
    billing = _agent("Billing", "", ["Here."], {})
    turns = [call("transfer_to_billing")]
    desk = _agent("Desk", "", turns, {"handoffs": [billing], "tracing": False})
    _, lines = printed(list(desk().stream("hi")))
    assert "⇒ shop.Billing goes on" in lines


def test_events_of_sub_agents_have_ids_behind_the_run_s_own_over_http():
    told = events()
    places, number, part = Places(told[0].run), -1, 0
    for event in told:
        number, part = (event.seq, 0) if event.parent is None else (number, part + 1)
        wanted = f"id: {number}.{part}\n" if part else f"id: {number}\n"
        assert framed(event, places).startswith(wanted.encode())


@pytest.mark.django_db
def test_a_trace_in_the_terminal_names_that_of_the_subagent(capsys):
    run = pair([ask(), "Found."], ["There."])().run("hi")
    out = io.StringIO()
    call_command("traces", "show", run.trace_uuid, stdout=out)
    child = run.trace.children.get()
    assert f"trace {child.uuid[:8]}" in out.getvalue()


def test_a_label_of_no_agent_is_an_error_of_the_check(monkeypatch):
    monkeypatch.setattr(registry, "_agents", {})
    _agent("Lead", "", [], {"subagents": ["shop.Reseacher"], "handoffs": ["shop.Lead2"]})
    _agent("Researcher", "", [], {})
    found = [each for each in run_checks(tags=[TAG]) if each.id == "mlango.E014"]
    assert [each.obj for each in found] == ["shop.Lead", "shop.Lead"]
    assert "Did you mean 'shop.Researcher'?" in found[0].msg


def test_so_is_an_agent_that_needs_arguments(monkeypatch):
    monkeypatch.setattr(registry, "_agents", {})

    class Writer(Agent):
        tone = CharField()

        class Meta:
            app_label = "shop"

    _agent("Lead", "", [], {"subagents": [Writer]})
    [error] = [each for each in run_checks(tags=[TAG]) if each.id == "mlango.E014"]
    assert "needs the field 'tone'" in error.msg
