"""What a second call of a tool would do decides what may be done again."""

import pytest

from mlango.agents import Context, ToolError, tool
from mlango.agents.providers import ToolCall
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
