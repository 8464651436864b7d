"""Approvals: who is asked, who decides, what runs after it, and what never does."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from copy import copy
from dataclasses import replace
from datetime import timedelta
from itertools import product

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth import get_user_model
from django.contrib.auth.models import AnonymousUser, Permission
from django.core.exceptions import PermissionDenied
from django.db import connection, connections
from django.utils import timezone

from mlango.agents import (
    Agent,
    Approval,
    ApprovalDecided,
    ApprovalRequested,
    QuestionAsked,
    Regex,
    allow,
    ask,
    deny,
    tool,
)
from mlango.agents.providers import ScriptedProvider, ToolCall
from mlango.agents.resume import recorded, run_from, take
from mlango.core.messages import open_calls
from mlango.exceptions import AlreadyDecided, Misused, TraceNotFound
from mlango.models import Approval as Row
from mlango.models import Trace
from mlango.models.approval import Operator
from mlango.runtime.registry import registry

pytestmark = pytest.mark.django_db(transaction=True)

refunds = []


@tool(approval=True)
def refund(order: int, amount: int = 10) -> str:
    """Pay an order back."""
    refunds.append((order, amount))
    return f"refunded {amount} of {order}"


@tool
def look_up(order: int) -> str:
    """Look an order up."""
    return f"order {order}"


class Desk(Agent):
    """Helps with orders."""

    class Meta:
        app_label = "control"
        tools = [refund, look_up]


@pytest.fixture(autouse=True)
def _no_refunds():
    refunds.clear()
    registry.register(Desk)  # other tests have one of this label


@pytest.fixture
def ann():
    return get_user_model().objects.create_user("ann")


@pytest.fixture
def boss():
    user = get_user_model().objects.create_user("boss")
    user.user_permissions.add(Permission.objects.get(codename="decide_approval"))
    return get_user_model().objects.get(pk=user.pk)


def at_once(function, refusal, threads=20):
    """Call a function with a number in many threads; return the numbers that it did not refuse."""
    barrier = threading.Barrier(threads, timeout=60)

    def work(number):
        try:
            connection.ensure_connection()
            barrier.wait()
            function(number)
        except refusal:
            return []
        finally:
            connections.close_all()
        return [number]

    with ThreadPoolExecutor(threads) as pool:
        return [number for won in pool.map(work, range(threads)) for number in won]


def call(name="refund", id="call_1", **arguments):
    return ToolCall(id, name, arguments)


def wait(user, turns=None, agent=Desk, **options):
    """Run until somebody must decide."""
    turns = turns or [[call(order=7)]]
    return agent().run("Refund order 7", user=user, provider=ScriptedProvider(turns), **options)


def go_on(run, turns=("Done.",), agent=Desk, **options):
    return agent().resume(run, provider=ScriptedProvider(list(turns)), **options)


class TestWaiting:
    def test_the_run_waits_and_nothing_was_done(self, ann):
        run = wait(ann)
        assert (run.status, run.stop_reason) == ("waiting", "awaiting_approval")
        assert refunds == []
        row = Row.objects.get()
        assert row.trace == Trace.objects.get() == run.trace
        assert (row.tool, row.arguments) == ("refund", {"order": 7, "amount": 10})
        assert run.approvals[0]["approval"] == row.uuid
        assert run.trace.status == "waiting"
        assert run.trace.messages == run.messages

    def test_the_event_shows_what_will_run(self, ann):
        stream = Desk().stream("hi", user=ann, provider=ScriptedProvider([[call(order=7)]]))
        asked = [event for event in stream if isinstance(event, ApprovalRequested)]
        assert [event.arguments for event in asked] == [{"order": 7, "amount": 10}]

    def test_other_calls_of_the_turn_go_on(self, ann):
        run = wait(ann, [[call(order=7), call("look_up", "call_2", order=8)]])
        assert [result.name for result in run.tool_results] == ["look_up"]

    def test_a_run_that_leaves_no_trace_is_refused_the_call(self, ann):
        class Untraced(Desk):
            class Meta:
                app_label = "control"
                tracing = False

        run = wait(ann, [[call(order=7)], "ok"], Untraced)
        assert "needs an approval" in run.tool_results[0].content
        assert (refunds, run.status) == ([], "finished")

    def test_an_async_run_waits_too(self):
        run = asyncio.run(Desk().arun("hi", provider=ScriptedProvider([[call(order=7)]])))
        assert run.status == "waiting"
        assert Row.objects.count() == 1


class TestDeciding:
    def test_an_approved_call_runs_once_and_the_run_ends(self, ann):
        run = wait(ann)
        Row.objects.get().approve(by=ann, note="fine")
        done = go_on(run)
        assert refunds == [(7, 10)]
        assert (done.status, done.text) == ("finished", "Done.")
        assert done.trace_uuid == run.trace_uuid
        assert Trace.objects.get().messages == done.messages
        assert Row.objects.get().status == "used"

    def test_a_run_goes_on_in_async_code(self, ann):
        run = wait(ann)
        Row.objects.get().approve(by=ann)
        goes_on = Desk().aresume(run.trace_uuid, provider=ScriptedProvider(["Done."]))
        done = asyncio.run(goes_on)
        assert (refunds, done.status) == ([(7, 10)], "finished")

    def test_a_rejected_call_is_told_to_the_model_with_its_reason(self, ann):
        run = wait(ann)
        Row.objects.get().reject(by=ann, reason="too late")
        done = go_on(run)
        assert refunds == []
        assert done.tool_results[-1].content == "The call was refused: too late"

    def test_an_edited_call_runs_as_edited(self, ann):
        run = wait(ann)
        Row.objects.get().edit(by=ann, amount=5)
        go_on(run)
        assert refunds == [(7, 5)]

    def test_an_argument_is_edited_whatever_its_name(self, ann):
        @tool(approval=True)
        def write(by: str, note: str = "", size: int = 1) -> str:
            """Write."""
            return "written"

        class Writer(Agent):
            class Meta:
                app_label = "control"
                tools = [write]

        wait(ann, [[call("write", by="me")]], Writer)
        row = Row.objects.get()
        row.edit({"note": "1", "by": "2"}, by=ann, note="so", size=5)
        assert row.edited == {"by": "2", "note": "1", "size": 5}
        assert row.note == "so"

    @pytest.mark.parametrize("name", ["delete", "use", "wake", "APPROVE", ""])
    def test_a_name_that_is_no_decision_does_nothing(self, ann, name):
        wait(ann)
        row = Row.objects.get()

        with pytest.raises(Misused, match="is not decided by"):
            row.decide(name, by=ann)

        assert Row.objects.get().status == "pending"

    def test_an_answer_never_lets_a_call_run(self, ann):
        wait(ann)
        row = Row.objects.get()
        with pytest.raises(Misused, match=r"Use approve\(\), edit\(\) or reject\(\)"):
            row.answer("no", by=ann)
        row.kind = "question"
        for decide in (row.approve, row.edit):
            with pytest.raises(Misused, match=r"Use answer\(\) or reject\(\)"):
                decide(by=ann)
        assert Row.objects.get().status == "pending"

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"amont": 5}, "amont: Unknown parameter. Did you mean 'amount'?"),
            ({"amount": "much"}, "amount: Input should be a valid integer"),
            ({"amount": None}, "amount: "),
            ({}, r"edit\(\) would change nothing. .* Arguments are: amount, order"),
            ({"amount": 10}, "would change nothing"),
            ("amount", r"edit\(\) takes a dict of arguments or keywords, not 'amount'"),
        ],
    )
    @pytest.mark.parametrize("is_async", [False, True])
    def test_an_edit_that_cannot_be_decides_nothing(self, ann, changes, words, is_async):
        run = wait(ann)
        edit = Row.objects.get().edit
        if is_async:
            edit = async_to_sync(sync_to_async(edit))

        with pytest.raises(Misused, match=words):
            edit(changes, by=ann)

        assert Row.objects.get().status == "pending"
        Row.objects.get().edit(by=ann, amount="5")
        go_on(run)
        assert refunds == [(7, 5)]

    def test_what_no_process_knows_of_a_tool_is_edited_as_it_was_shown(self, ann):
        class Fresh(Desk):
            class Meta:
                app_label = "control"

            def get_tools(self):
                return [refund]

        run = wait(ann, agent=Fresh)
        row = Row.objects.get()
        with pytest.raises(Misused, match=r"no argument 'amont'\. Did you mean 'amount'\?"):
            row.edit(by=ann, amont=5)

        row.edit(by=ann, amount="much")  # which is found when the run goes on
        done = go_on(run, agent=Fresh)
        assert refunds == []
        assert "amount" in done.tool_results[-1].content

    def test_the_tool_of_an_agent_that_took_over_is_known_too(self, ann):
        class Front(Agent):
            class Meta:
                app_label = "control"
                handoffs = [Desk]

        wait(ann, [[call("transfer_to_desk")], [call(order=7)]], Front)
        with pytest.raises(Misused, match="amount: Input should be a valid integer"):
            Row.objects.get().edit(by=ann, amount="much")

    def test_who_may_not_decide_is_told_that_first(self, ann):
        wait(ann)
        other = get_user_model().objects.create_user("other")
        with pytest.raises(PermissionDenied):
            Row.objects.get().edit(by=other, amont=5)

    def test_an_edit_that_comes_too_late_is_told_that_first(self, ann):
        wait(ann)
        row = Row.objects.get()
        row.approve(by=ann)
        with pytest.raises(AlreadyDecided, match="is approved already"):
            row.edit(by=ann, amont=5)

    @pytest.mark.parametrize("decision", ["approve", "reject"])
    def test_edited_arguments_are_never_passed_over(self, ann, decision):
        wait(ann)
        with pytest.raises(Misused, match=f"'{decision}' takes no arguments. Use 'edit'."):
            Row.objects.get().decide(decision, by=ann, arguments={"amount": 5})
        assert Row.objects.get().status == "pending"

    def test_what_is_said_is_text(self, ann):
        wait(ann)
        row = Row.objects.get()
        for decide in (
            lambda: row.approve(by=ann, note=5),
            lambda: row.reject(by=ann, reason=None),
        ):
            with pytest.raises(Misused, match=r"must be text, not (5|None)"):
                decide()
        assert Row.objects.get().status == "pending"

    def test_a_decision_holds_though_nobody_would_be_asked_now(self, ann):
        asks = [True]

        @tool(approval=lambda arguments: asks[0])
        def pay(amount: int) -> str:
            """Pay."""
            refunds.append(amount)
            return "paid"

        class Payer(Agent):
            class Meta:
                app_label = "control"
                tools = [pay]

        run = wait(ann, [[call("pay", amount=1)]], Payer)
        Row.objects.get().reject(by=ann, reason="no")
        asks[0] = False
        done = go_on(run, agent=Payer)
        assert refunds == []
        assert done.tool_results[-1].content == "The call was refused: no"

    def test_a_decision_holds_though_the_tool_asks_no_more(self, ann):
        run = wait(ann)
        Row.objects.get().reject(by=ann, reason="no")

        class Changed(Agent):
            class Meta:
                app_label = "control"
                tools = [tool(name="refund")(refund.fn)]

        Changed._meta = replace(Changed._meta, object_name="Desk")
        done = go_on(run, agent=Changed)
        assert refunds == []
        assert done.tool_results[-1].content == "The call was refused: no"

    def test_a_run_nobody_decided_about_keeps_waiting(self, ann):
        run = go_on(wait(ann))
        assert (run.status, refunds) == ("waiting", [])

    def test_an_approval_in_time_only(self, ann):
        run = wait(ann)
        Row.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
        with pytest.raises(AlreadyDecided):
            Row.objects.get().approve(by=ann)
        done = go_on(run)
        assert "in time" in done.tool_results[-1].content
        assert refunds == []

    def test_arguments_that_were_changed_meanwhile_are_refused(self, ann):
        run = wait(ann)
        row = Row.objects.get()
        row.approve(by=ann)
        Row.objects.update(arguments_hash="0" * 64)
        done = go_on(run)
        assert refunds == []
        assert "not those that were approved" in done.tool_results[-1].content

    def test_a_failure_after_the_decision_keeps_the_result(self, ann):
        run = wait(ann)
        Row.objects.get().approve(by=ann)
        failed = go_on(run, [ValueError("boom")], raise_on_error=False)
        assert (failed.status, refunds) == ("failed", [(7, 10)])
        done = go_on(failed)
        assert (done.status, refunds) == ("finished", [(7, 10)])


class TestWhoMayDecide:
    def test_the_user_of_the_run_or_whoever_may_decide_any(self, ann, boss):
        wait(ann)
        row = Row.objects.get()
        other = get_user_model().objects.create_user("other")
        assert [row.may_decide(user) for user in (ann, boss, other, None)] == [
            True,
            True,
            False,
            False,
        ]
        with pytest.raises(PermissionDenied):
            row.approve(by=other)
        assert Row.objects.get().status == "pending"

    def test_with_a_permission_only_who_has_it(self, ann, boss):
        @tool(approval=Approval(permission="auth.delete_group"))
        def erase(user: int) -> str:
            """Erase a user."""

        class Eraser(Agent):
            class Meta:
                app_label = "control"
                tools = [erase]

        wait(ann, [[call("erase", user=1)]], Eraser)
        row = Row.objects.get()
        assert not row.may_decide(ann)
        assert not row.may_decide(boss)
        ann.user_permissions.add(Permission.objects.get(codename="delete_group"))
        assert row.may_decide(get_user_model().objects.get(pk=ann.pk))

    def test_four_eyes_are_two_people(self, ann, boss):
        @tool(approval=Approval(four_eyes=True))
        def pay(amount: int) -> str:
            """Pay."""

        class Payer(Agent):
            class Meta:
                app_label = "control"
                tools = [pay]

        wait(ann, [[call("pay", amount=1)]], Payer)
        row = Row.objects.get()
        assert [row.may_decide(ann), row.may_decide(boss)] == [False, True]

    def test_who_runs_the_process_decides_only_where_nobody_is_asked_for(self, ann):
        operator = Operator()
        run = wait(None)
        mine, theirs = Row.objects.get(), Row(owner_key="1")
        asked_for = Row(permission="auth.delete_group"), Row(four_eyes=True)
        assert mine.may_decide(operator)
        assert not any(row.may_decide(operator) for row in (theirs, *asked_for))
        mine.approve(by=operator)
        assert Row.objects.get().decided_by is None
        go_on(run)
        assert refunds == [(7, 10)]

    @pytest.mark.parametrize(
        ("row", "who"),
        [
            (
                Row(owner_key="1"),
                "the run's user or somebody with the permission 'mlango.decide_approval'",
            ),
            (Row(), "somebody with the permission 'mlango.decide_approval'"),
            (
                Row(owner_key="1", four_eyes=True, permission="shop.pay"),
                "somebody with the permission 'shop.pay' who is not the run's user",
            ),
        ],
    )
    def test_who_may_not_is_told_who_may(self, ann, row, who):
        with pytest.raises(PermissionDenied, match=who):
            row.approve(by=get_user_model().objects.create_user("bob"))

    def test_one_of_twenty_at_once_decides(self, ann):
        run = wait(ann)
        row = Row.objects.get()

        def decide(number):
            decider = copy(row)
            (decider.approve if number % 2 else decider.reject)(by=ann)

        won = at_once(decide, AlreadyDecided)
        assert len(won) == 1
        go_on(run)
        assert len(refunds) == won[0] % 2

    def test_twenty_who_go_on_at_once_run_the_call_once(self, ann):
        run = wait(ann)
        row = Row.objects.get()

        def approve_and_go_on(number):
            with suppress(AlreadyDecided):
                copy(row).approve(by=ann)
            go_on(run)

        assert len(at_once(approve_and_go_on, Misused)) == 1
        assert refunds == [(7, 10)]
        assert Trace.objects.get().status == "finished"

    def test_the_rows_that_somebody_may_decide_are_those_of_which_each_says_so(self, ann, boss):
        keeper = get_user_model().objects.create_user("keeper")
        keeper.user_permissions.add(Permission.objects.get(codename="delete_group"))
        gone = get_user_model().objects.create_superuser("gone", is_active=False)
        root = get_user_model().objects.create_superuser("root")
        trace = wait(ann).trace
        for kind, permission, four_eyes, owner in product(
            ("tool", "question", "sign_in"),
            ("", "auth.delete_group", "auth.add_group"),
            (True, False),
            ("", str(ann.pk), str(keeper.pk), str(root.pk)),
        ):
            fields = {"permission": permission, "four_eyes": four_eyes, "owner_key": owner}
            Row.objects.create(trace=trace, kind=kind, agent="a", tool="t", **fields)
        rows = Row.objects.all()
        for user in (ann, boss, keeper, root, gone, AnonymousUser(), None):
            mine = {row.pk for row in rows if row.may_decide(user)}
            assert {row.pk for row in rows.decidable_by(user)} == mine
        assert 0 < rows.decidable_by(keeper).count() < rows.count()


class TestGoingOn:
    def test_one_of_two_goes_on(self, ann):
        run = wait(ann)
        Row.objects.get().approve(by=ann)
        go_on(run)
        with pytest.raises(Misused, match="is finished"):
            go_on(run)
        assert refunds == [(7, 10)]

    def test_one_of_two_who_looked_at_the_same_moment_goes_on(self, ann):
        run = wait(ann)
        agent = Desk()
        both = [run_from(agent, recorded(agent, run, {}), {}) for _ in range(2)]
        take(both[0])
        with pytest.raises(Misused, match="is running"):
            take(both[1])

    def test_a_stopped_run_goes_on_with_more_steps(self, ann):
        turns = [[call("look_up", f"call_{i}", order=i)] for i in range(2)]
        run = wait(ann, turns, max_steps=2)
        assert run.stop_reason == "max_steps"
        done = go_on(run, max_steps=3)
        assert (done.status, done.steps, len(done.tool_results)) == ("finished", 3, 2)
        assert done.usage.input_tokens > run.usage.input_tokens

    def test_somebody_else_finds_nothing_to_go_on_with(self, ann, boss):
        run = wait(ann)
        with pytest.raises(TraceNotFound):
            go_on(run, user=boss)

    def test_what_belongs_to_the_beginning_cannot_be_given_again(self, ann):
        with pytest.raises(Misused, match="history"):
            go_on(wait(ann), history=[])

    def test_what_a_run_asked_that_does_not_wait_cannot_be_decided(self, ann):
        turns = [[call(order=7), call("look_up", "call_2", order=8)]]

        stream = Desk().stream("hi", user=ann, provider=ScriptedProvider(turns))
        for event in stream:
            if isinstance(event, ApprovalRequested):
                stream.abort()
        assert stream.run.status == "cancelled"
        assert Row.objects.get().status == "expired"
        assert open_calls(stream.run.messages) == []


class TestDecidingInCode:
    @pytest.mark.parametrize(
        ("verdict", "content"),
        [
            (True, "refunded 10 of 7"),
            (False, "The call was refused."),
            ("not today", "The call was refused: not today"),
        ],
    )
    def test_a_function_decides(self, ann, verdict, content):
        seen = []

        def approve(request):
            seen.append(request["arguments"])
            return verdict

        run = wait(ann, [[call(order=7)], "ok"], approve=approve)
        assert run.tool_results[0].content == content
        assert seen == [{"order": 7, "amount": 10}]
        assert Row.objects.count() == 0

    def test_a_function_may_leave_it_to_a_person(self, ann):
        assert wait(ann, approve=lambda request: None).status == "waiting"

    def test_only_when_the_arguments_ask_for_it(self, ann):
        @tool(approval=lambda arguments: arguments["amount"] > 100)
        def pay(amount: int) -> str:
            """Pay."""
            return f"paid {amount}"

        class Payer(Agent):
            class Meta:
                app_label = "control"
                tools = [pay]

        turns = [[call("pay", amount=1)], [call("pay", "call_2", amount=1000)]]
        run = wait(ann, turns, Payer)
        assert [result.content for result in run.tool_results] == ["paid 1"]
        assert run.status == "waiting"


class TestRules:
    def agent(self, permissions_):
        class Ruled(Agent):
            class Meta:
                app_label = "control"
                tools = [refund, look_up]
                permissions = permissions_

        return Ruled

    def test_a_denied_tool_does_not_run(self, ann):
        agent = self.agent({"deny": ["look_*"]})
        run = wait(ann, [[call("look_up", order=1)], "ok"], agent)
        assert run.tool_results[0].content == "The tool 'look_up' may not be called here."

    def test_an_asked_tool_waits(self, ann):
        run = wait(ann, [[call("look_up", order=1)]], self.agent([ask("look_up")]))
        assert run.status == "waiting"

    def test_an_allowed_tool_is_not_asked_about(self, ann):
        run = wait(ann, [[call(order=1)], "ok"], self.agent([allow("refund"), deny("*")]))
        assert refunds == [(1, 10)]
        assert run.ok

    def test_the_first_rule_that_fits_goes(self, ann):
        rules = [deny("refund", when=lambda arguments: arguments["amount"] > 50), allow("*")]
        turns = [[call(order=1, amount=60), call(id="b", order=2, amount=6)], "ok"]
        wait(ann, turns, self.agent(rules))
        assert refunds == [(2, 6)]


class TestQuestions:
    def test_the_model_asks_and_reads_the_answer(self, ann):
        class Asker(Agent):
            class Meta:
                app_label = "control"
                ask_question = True

        turns = [[call("ask_question", question="Which one?", options=["a", "b"])]]
        stream = Asker().stream("hi", user=ann, provider=ScriptedProvider(turns))
        asked = [event for event in stream if isinstance(event, QuestionAsked)]
        assert [(event.question, event.options) for event in asked] == [("Which one?", ["a", "b"])]
        Row.objects.get().answer("b", by=ann)
        done = go_on(stream.run, agent=Asker)
        assert done.tool_results[-1].content == "b"
        assert not done.tool_results[-1].is_error

    def answered(self, ann, answer, guardrail):
        class Asker(Agent):
            class Meta:
                app_label = "control"
                ask_question = True
                guardrails = [guardrail]

        run = wait(ann, [[call("ask_question", question="Which one?")]], Asker)
        Row.objects.get().answer(answer, by=ann)
        model = ScriptedProvider(["Done."])
        return Asker().resume(run, provider=model), model

    def test_an_answer_is_checked_like_any_message_of_the_user(self, ann):
        done, model = self.answered(ann, "my secret", Regex(pattern="secret", on=["input"]))
        assert (done.status, done.stop_reason) == ("stopped", "guardrail")
        assert model.calls == []
        assert "secret" not in str(done.messages)

    def test_an_answer_is_read_as_a_guardrail_rewrites_it(self, ann):
        rule = Regex(pattern="secret", action="rewrite", replacement="word", on=["input"])
        done, model = self.answered(ann, "my secret", rule)
        assert done.ok
        assert model.last_call.messages[-1]["content"] == "my word"
        assert done.trace.messages == done.messages


def test_edited_arguments_are_checked_by_guardrails_too(ann):
    class Guarded(Desk):
        class Meta:
            guardrails = [Regex(pattern="666", on=["tools"])]

    run = wait(ann, agent=Guarded)
    Row.objects.get().edit(by=ann, amount=666)
    done = go_on(run, agent=Guarded)
    assert refunds == []
    assert "refused this call" in done.tool_results[-1].content


def test_the_decision_is_told_when_it_takes_effect(ann):
    run = wait(ann)
    Row.objects.get().approve(by=ann, note="fine")
    stream = Desk().resume_stream(run, provider=ScriptedProvider(["Done."]))
    decided = [event for event in stream if isinstance(event, ApprovalDecided)]
    assert [(event.decision, event.note) for event in decided] == [("approved", "fine")]


def test_no_text_that_a_database_refuses_keeps_a_decision_from_being_made(ann):
    row = Desk().run('use refund {"order": 7}', user=ann).trace.approvals.get()

    row.reject(by=ann, reason="no\0 \ud800")

    assert (row.status, row.note) == ("rejected", "no\u2400 \ufffd")
