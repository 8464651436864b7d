"""``manage.py traces``, as a user types it."""

import json
from datetime import timedelta

import pytest
from django.utils import timezone

from mlango.management.trees import Bars, children_of, lines_of
from mlango.models import Approval, Span, Trace
from mlango.models.approval import Operator
from tests.commands.desk import Desk, Office
from tests.commands.shouting import script

pytestmark = pytest.mark.django_db

SHOUTER, SCRIPTED = "commands.Shouter", "commands.Scripted"


def last():
    return Trace.objects.order_by("-started_at").first()


def test_the_newest_traces_come_first(manage):
    for message in ("one", "two", "three"):
        manage("agent", SHOUTER, message)

    out, _, code = manage("traces", "list", "-n", "2")

    newest = Trace.objects.order_by("-started_at")[:2]
    assert [line[:8] for line in out.splitlines()] == [trace.uuid[:8] for trace in newest]
    assert "2 steps" in out
    assert code == 0


@pytest.mark.parametrize(
    "options",
    [["--failed"], ["--status", "failed"], ["--agent", SCRIPTED]],
)
def test_traces_are_chosen(manage, options):
    manage("agent", SHOUTER, "hello")
    script(ValueError("no"))
    manage("agent", SCRIPTED, "hello")

    out, _, _ = manage("traces", "list", *options)

    assert "✗ failed" in out
    assert SHOUTER not in out


def test_no_trace_is_told_on_stderr(manage):
    out, err, code = manage("traces", "list")

    assert (out, err, code) == ("", "There is no such trace.\n", 0)


def test_a_list_as_json_is_one_trace_a_line(manage):
    manage("agent", SHOUTER, "hello")

    out, _, _ = manage("traces", "list", "--json")

    assert json.loads(out) == last().describe()


@pytest.mark.parametrize("arguments", [["-n", "0"], ["--status", "odd"]])
def test_a_wrong_choice_is_a_wrong_usage(manage, arguments):
    _, err, code = manage("traces", "list", *arguments)

    assert arguments[1] in err
    assert code != 0


@pytest.mark.parametrize("length", [8, 32])
def test_a_trace_is_shown_as_a_tree(manage, length):
    manage("agent", SHOUTER, "hello")

    out, _, code = manage("traces", "show", last().uuid[:length])

    lines = [line.rstrip() for line in out.splitlines()]
    assert lines[0] == f"trace {last().uuid}"
    assert lines[2] == "in   hello"
    assert lines[3].startswith("├─ llm")
    assert "token" in lines[3]
    assert lines[4].startswith("│  └─ tool shout")
    assert lines[5].startswith("└─ llm")
    assert lines[6] == "out  HELLO"
    assert code == 0


def test_last_is_the_newest_trace(manage):
    manage("agent", SHOUTER, "hello")
    manage("agent", SHOUTER, "again")

    assert "out  AGAIN" in manage("traces", "show", "last")[0]


def test_last_failed_is_the_newest_that_failed(manage):
    script(ValueError("no"))
    manage("agent", SCRIPTED, "hello")
    manage("agent", SHOUTER, "again")

    assert f"  {SCRIPTED}  " in manage("traces", "show", "last-failed")[0]


def test_a_list_tells_which_runs_lost_their_process(manage):
    ago = timezone.now() - timedelta(days=1)
    Trace.objects.create(uuid="f" * 32, agent=SHOUTER, started_at=ago)
    Trace.objects.create(uuid="a" * 32, agent=SHOUTER, started_at=timezone.now())

    out, _, _ = manage("traces", "list")

    assert "ffffffff" in out
    assert [each.status for each in Trace.objects.all()] == ["running", "lost"]


# -- tail --------------------------------------------------------------------------------------


def running(**spans):
    """Return a run that goes on and has these spans, by name their ordering."""
    now = timezone.now()
    trace = Trace.objects.create(uuid="a" * 32, agent=SHOUTER, started_at=now)
    for name, ordering in spans.items():
        add_span(trace, name, ordering)
    return trace


def add_span(trace, name, ordering):
    now = timezone.now()
    Span.objects.create(
        trace=trace,
        ordering=ordering,
        step=1,
        kind="tool",
        name=name,
        started_at=now,
        ended_at=now,
    )


@pytest.mark.parametrize("action", ["show", "tail"])
def test_a_run_that_lost_its_process_is_shown_as_such(manage, action):
    ago = timezone.now() - timedelta(days=1)
    Trace.objects.create(uuid="f" * 32, agent=SHOUTER, started_at=ago)

    out, _, code = manage("traces", action, "f" * 32)

    assert "✗ lost" in out
    assert code == 0


def test_tail_shows_a_run_until_it_ends(manage, monkeypatch):
    trace = running(first=2)

    def pause(seconds):
        add_span(trace, "second", 1)
        Trace.objects.update(status="finished", ended_at=timezone.now())

    monkeypatch.setattr("time.sleep", pause)

    out, _, code = manage("traces", "tail", "aaaaaaaa")

    lines = out.splitlines()
    assert "running" in lines[0]
    assert [line.split()[1] for line in lines[1:3]] == ["first", "second"]
    assert "finished" in lines[3]
    assert (len(lines), code) == (4, 0)


def test_tail_of_a_run_that_has_ended_shows_it(manage):
    manage("agent", SHOUTER, "hello")

    out, _, _ = manage("traces", "tail")

    assert [line.split()[0] for line in out.splitlines()[1:4]] == ["llm", "tool", "llm"]


def test_ctrl_c_ends_tail_without_a_traceback(manage, monkeypatch):
    running(first=1)

    def interrupt(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", interrupt)

    out, err, code = manage("traces", "tail")

    assert "tool first" in out
    assert (err, code) == ("", 130)


# -- show --------------------------------------------------------------------------------------


def test_a_failed_call_is_marked(manage):
    manage("agent", "commands.Stumbler", "hello")

    assert "✗ tool stumble" in manage("traces", "show", "last")[0]


def test_why_a_run_failed_is_told(manage):
    script(ValueError("no"))
    manage("agent", SCRIPTED, "hello")

    assert last().error in manage("traces", "show", "last")[0]


def test_a_long_text_is_cut_unless_all_is_wanted(manage):
    manage("agent", SHOUTER, "long " * 100)

    short, _, _ = manage("traces", "show", "last")
    full, _, _ = manage("traces", "show", "last", "--full")

    assert max(map(len, short.splitlines())) < 220
    assert ("LONG " * 100).strip() in full
    assert '"text": "long long' in full


def test_what_is_stored_cannot_steer_the_terminal(manage):
    script("\x1b[2Jsafe")
    manage("agent", SCRIPTED, "\x1b]0;title\x07hello")

    for option in ([], ["--full"], ["--json"]):
        out, _, _ = manage("traces", "show", "last", *option)
        assert "\x1b" not in out
        assert "safe" in out


def test_a_trace_as_json_holds_its_spans(manage):
    manage("agent", SHOUTER, "hello")

    shown = json.loads(manage("traces", "show", "last", "--json")[0])

    assert shown["output"] == "HELLO"
    assert [span["kind"] for span in shown["spans"]] == ["llm", "tool", "llm"]
    assert shown["spans"][1]["input"] == {"text": "hello"}
    assert shown["spans"][1]["usage"] is None


@pytest.mark.parametrize(
    ("ref", "message"),
    [
        ("ffffffff", "'ffffffff'"),
        ("zz", "'zz'"),
        ("last", "There is no trace yet."),
        ("last-failed", "No run has failed."),
    ],
)
def test_an_unknown_trace_is_an_error(manage, ref, message):
    _, err, code = manage("traces", "show", ref)

    assert message in err
    assert code == 1


def test_a_span_without_its_parent_is_not_left_out():
    now = timezone.now()
    lost = Span(ordering=2, parent_ordering=9, kind="tool", started_at=now, ended_at=now)

    assert children_of([lost]) == {None: [lost]}


@pytest.mark.django_db(transaction=True)
class TestWaiting:
    """What a run waits for, as its trace tells it."""

    def test_a_call_is_shown_with_its_arguments(self, manage):
        Desk().run('refund {"order": 7}')
        ref = Approval.objects.get().pk

        out, _, _ = manage("traces", "show", "last")

        assert f'?    approval {ref[:8]}  tool call  refund {{"order": 7, "reason": ""}}\n' in out
        assert "? waiting" in manage("traces", "list")[0]
        assert (
            "     commands.Desk asks to call refund:\n"
            in manage("traces", "show", "last", "--full")[0]
        )
        [told] = json.loads(manage("traces", "show", "last", "--json")[0])["approvals"]
        assert (told["kind"], told["arguments"]["order"]) == ("tool", 7)

    def test_so_is_a_question(self, manage):
        Desk().run('ask_question {"question": "Which?", "options": ["S", "M"]}')

        assert "  question  Which? / S / M\n" in manage("traces", "show", "last")[0]

    def test_a_run_waits_for_what_its_subagent_asked(self, manage):
        Office().run('desk {"message": "refund {\\"order\\": 7}"}')
        trace = Trace.objects.get(parent=None)

        assert '  tool call  refund {"order": 7' in manage("traces", "show", trace.pk)[0]

    def test_what_is_decided_is_not_waited_for(self, manage):
        Desk().run('refund {"order": 7}')
        Approval.objects.get().approve(by=Operator())

        assert "approval" not in manage("traces", "show", "last")[0]


# -- bars --------------------------------------------------------------------------------------


def spans(*times):
    begun = timezone.now()
    trace = Trace.objects.create(uuid="b" * 32, agent=SHOUTER, started_at=begun)
    Span.objects.bulk_create(
        Span(
            trace=trace,
            ordering=number,
            step=1,
            kind="tool",
            name="shout",
            started_at=begun + timedelta(seconds=start),
            ended_at=begun + timedelta(seconds=end),
        )
        for number, (start, end) in enumerate(times, 1)
    )
    return trace


@pytest.mark.parametrize(
    ("times", "bars"),
    [
        ([(0, 12), (12, 24)], ["█" * 12, " " * 12 + "█" * 12]),
        ([(0, 24), (23.9, 24)], ["█" * 24, " " * 23 + "█"]),
        ([(5, 5)], ["█"]),
        ([(0, 2400), (1200, 1201)], ["█" * 24, " " * 12 + "█"]),
    ],
)
def test_a_wide_terminal_has_bars(times, bars):
    trace = spans(*times)

    lines = [*lines_of(trace, bars=Bars.of(trace, 100))][2:]

    assert [line[76:] for line in lines] == bars
    assert all(line[74:76] == "  " for line in lines)


def test_a_narrow_one_has_none():
    assert Bars.of(spans((0, 1)), 99) is None
    assert Bars.of(Trace(uuid="c" * 32), 100) is None
