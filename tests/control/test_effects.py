"""What a second call of a tool would do decides what may be done again."""

from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import transaction

from mlango.agents import Context, ToolError, ToolResult, tool
from mlango.agents.providers import ToolCall
from mlango.core.calls import Job, _in_transaction
from mlango.core.journal import ListJournal
from mlango.exceptions import ToolDefinitionError
from tests.helpers import afinish, finish, new_run

keys = []
failures = []


@pytest.fixture(autouse=True)
def _empty():
    keys.clear()
    failures.clear()


def fail_as_told(ctx):
    keys.append(ctx.idempotency_key)
    if failures:
        raise failures.pop(0)
    return f"answer {len(keys)}"


@tool(effect="read", retries=2)
def ask(ctx: Context, place: str = "here") -> str:
    """Ask another system."""
    return fail_as_told(ctx)


@tool(effect="idempotent", retries=2)
async def ask_async(ctx: Context) -> str:
    """Ask another system."""
    return fail_as_told(ctx)


@tool(effect="read", retries=2)
def ask_in_parts(ctx: Context):
    """Ask another system."""
    yield "so far"
    yield fail_as_told(ctx)


@tool(effect="read")
def ask_once(ctx: Context) -> str:
    """Ask another system."""
    return fail_as_told(ctx)


def asked(tool, *to_raise, **fields):
    failures.extend(to_raise)
    turns = [[ToolCall("", tool.name, {})], "done"]
    fields.setdefault("journal", ListJournal())
    return new_run(turns, [tool], **fields)


def span(run):
    return next(entry for entry in run.journal.entries if entry.kind == "tool")


class TestRetries:
    @pytest.mark.parametrize("tool", [ask, ask_async, ask_in_parts])
    def test_a_call_that_failed_is_made_again_with_the_same_key(self, tool):
        run = finish(asked(tool, ConnectionError("gone"), ConnectionError("gone")))
        assert run.tool_results[0].content.endswith("answer 3")
        assert len(set(keys)) == 1

    async def test_it_is_made_again_in_async_runs(self):
        run = await afinish(asked(ask, ConnectionError("gone")))
        assert run.tool_results[0].content == "answer 2"

    def test_the_span_tells_each_attempt(self):
        run = finish(asked(ask, ConnectionError("gone"), KeyError("x")))
        assert span(run).error == ""
        assert span(run).attributes["attempts"] == ["ConnectionError: gone", "KeyError: 'x'"]

    def test_after_the_last_attempt_the_call_fails(self):
        run = finish(asked(ask, *[ConnectionError("gone")] * 3, disclose_errors=True))
        assert run.tool_results[0].error_type == "ConnectionError"
        assert len(keys) == 3
        assert len(span(run).attributes["attempts"]) == 3
        assert "traceback" in span(run).attributes

    @pytest.mark.parametrize("error", [ToolError("No."), SystemExit(1), KeyboardInterrupt()])
    def test_what_the_tool_says_and_what_ends_a_process_is_not_tried_again(self, error):
        finish(asked(ask, error))
        assert len(keys) == 1

    def test_arguments_that_do_not_fit_are_not_tried_again(self):
        turns = [[ToolCall("", "ask", {"place": []})], "done"]
        run = finish(new_run(turns, [ask], journal=ListJournal()))
        assert run.tool_results[0].error_type == "validation"
        assert keys == []

    def test_a_tool_without_retries_is_called_once(self):
        run = finish(asked(ask_once, ConnectionError("gone")))
        assert run.tool_results[0].error_type == "ConnectionError"
        assert "attempts" not in span(run).attributes

    def test_a_run_that_was_stopped_tries_no_more(self):
        @tool(effect="read", retries=5)
        def stops(ctx: Context) -> str:
            """Ask another system."""
            keys.append(ctx.idempotency_key)
            run.abort()
            raise ConnectionError("gone")

        run = new_run([[ToolCall("", "stops", {})]], [stops], journal=ListJournal())
        finish(run)
        assert run.status == "cancelled"
        assert len(keys) == 1

    def test_a_call_whose_time_is_up_is_not_made_again(self):
        @tool(effect="read", retries=10**9, timeout=0.05)
        async def hopeless(ctx: Context) -> str:
            """Ask another system."""
            raise ConnectionError("gone")

        run = finish(new_run([[ToolCall("", "hopeless", {})], "done"], [hopeless]))
        assert run.tool_results[0].is_error

    @pytest.mark.parametrize("effect", ["once", "transactional"])
    def test_a_tool_that_does_something_cannot_have_retries(self, effect):
        with pytest.raises(ToolDefinitionError, match="cannot have retries"):
            tool(fail_as_told, effect=effect, retries=1)


def test_what_is_written_when_nobody_waits_any_more_is_undone(db):
    job = Job(ToolCall("", "create", {}), create, 1)

    def late():
        Group.objects.create(name="staff")
        job.end("Too late.", "timeout")

    _in_transaction(new_run(journal=ListJournal()), job, late)
    assert groups() == []


def groups():
    return sorted(Group.objects.values_list("name", flat=True))


@tool(atomic=True)
def create(name: str, error: str = "") -> Any:
    """Create a group."""
    Group.objects.create(name=name)
    if error == "returned":
        return ToolResult("No.", is_error=True)
    if error:
        raise {"unexpected": RuntimeError, "told": ToolError}[error](error)
    return "created"


@tool(atomic=True)
def create_in_parts(name: str, error: str = "") -> Any:
    """Create a group."""
    Group.objects.create(name=name)
    yield "half"
    if error:
        raise RuntimeError(error)


@tool(atomic=True, thread_sensitive=False)
def create_aside(name: str, error: str = "") -> str:
    """Create a group."""
    Group.objects.create(name=name)
    if error:
        raise RuntimeError(error)
    return "created"


def creating(tool, **arguments):
    turns = [[ToolCall("", tool.name, {"name": "staff", **arguments})], "done"]
    return new_run(turns, [tool], journal=ListJournal())


@pytest.mark.django_db(transaction=True)
class TestAtomic:
    @pytest.mark.parametrize("tool", [create, create_in_parts, create_aside])
    def test_what_a_tool_writes_is_kept(self, tool):
        finish(creating(tool))
        assert groups() == ["staff"]

    @pytest.mark.parametrize("tool", [create, create_in_parts, create_aside])
    def test_a_tool_that_raises_leaves_nothing_behind(self, tool):
        run = finish(creating(tool, error="unexpected"))
        assert run.tool_results[0].is_error
        assert groups() == []

    def test_nor_does_one_that_tells_the_model_why(self):
        run = finish(creating(create, error="told"))
        assert run.tool_results[0].content == "told"
        assert groups() == []

    def test_an_error_that_is_returned_keeps_what_was_written(self):
        assert finish(creating(create, error="returned")).tool_results[0].is_error
        assert groups() == ["staff"]

    def test_a_tool_that_is_not_atomic_keeps_what_was_written(self):
        @tool
        def create_at_once(name: str) -> str:
            """Create a group."""
            Group.objects.create(name=name)
            raise RuntimeError

        finish(creating(create_at_once))
        assert groups() == ["staff"]

    def test_in_the_callers_transaction_only_the_tools_own_part_is_undone(self):
        with transaction.atomic():
            Group.objects.create(name="before")
            finish(creating(create, error="unexpected"))
            assert groups() == ["before"]
        assert groups() == ["before"]


async def fetch() -> str:
    """Fetch."""
    return ""


def test_an_async_tool_cannot_be_atomic():
    with pytest.raises(ToolDefinitionError, match="a transaction belongs to one thread"):
        tool(fetch, atomic=True)
