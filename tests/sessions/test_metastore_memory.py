"""MetastoreMemory recalls a session from its traces."""

import asyncio

import pytest

from mlango.agents.memory import MetastoreMemory
from mlango.agents.providers.scripted import call
from mlango.core.memory import SessionKey
from mlango.core.messages import repaired
from mlango.core.options import Bounds
from mlango.core.provider import Completion
from mlango.core.tools import tool
from mlango.exceptions import Misconfigured, ProviderUnavailable
from mlango.models import Session, Span, Trace
from mlango.runtime.sessions import SessionTurn
from tests.helpers import afinish, finish, new_run, stream

INLINE = pytest.param("inline", marks=pytest.mark.django_db)
WRITER = pytest.param("writer", marks=pytest.mark.django_db(transaction=True))
everywhere = pytest.mark.parametrize("where", [INLINE, WRITER])

KEY = SessionKey("shop.Support", "", "s1")


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def remembering(turns=("Hello.",), tools=(), key=KEY, memory=None, **fields):
    """Return a run in a session that it remembers."""
    return new_run(
        turns,
        tools,
        session_id=key.session_id,
        memory=memory or MetastoreMemory(),
        memory_key=key,
        turn=SessionTurn(key),
        **fields,
    )


def said(messages):
    return [message["content"] for message in messages if message["role"] == "user"]


@everywhere
@pytest.mark.parametrize("runner", [finish, lambda run: asyncio.run(afinish(run))])
def test_a_run_recalls_the_whole_turns_before_it(where, runner):
    first = runner(remembering([call("add", a=1, b=2), "Three."], [add], said="1 + 2?"))

    second = runner(remembering(["Ten."], said="plus 7?"))

    assert second.provider.calls[0].messages == [*first.messages, *second.said]
    assert [message["role"] for message in second.history] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert second.history.traces == (first.uuid,)
    assert Trace.objects.get(uuid=second.uuid).opening["traces"] == [first.uuid]
    assert Trace.objects.get(uuid=second.uuid).messages == second.messages


@everywhere
def test_only_the_newest_turns_are_recalled_oldest_first(where):
    for number in range(5):
        finish(remembering(said=str(number)))

    run = finish(remembering(said="last", memory=MetastoreMemory(max_turns=2)))

    assert said(run.messages) == ["3", "4", "last"]


@everywhere
def test_other_agents_owners_and_sessions_are_not_recalled(where):
    for key in [
        SessionKey("shop.Support", "7", "s1"),
        SessionKey("shop.Support", "", "s2"),
        SessionKey("shop.Sales", "", "s1"),
    ]:
        finish(remembering(key=key, label=key.agent, user=key.owner or None, said="canary"))

    assert Trace.objects.count() == 3
    assert finish(remembering()).history == []


@everywhere
def test_a_turn_that_failed_or_was_refused_is_left_out(where):
    refusal = Completion("No.", stop_reason=Completion.REFUSAL)
    for turns in ([ProviderUnavailable("down", retryable=False)], [refusal]):
        finish(remembering(turns, said="canary"))
    finish(remembering(said="canary", bounds=Bounds(max_history_chars=1)))

    run = finish(remembering())

    assert Trace.objects.count() == 4
    assert run.history == []


@everywhere
def test_a_turn_that_was_stopped_is_recalled_with_all_its_results(where):
    @tool(parallel=False)
    def stop() -> str:
        """Stop the run."""
        stopped.abort()
        return "stopping"

    stopped = remembering([[call("stop"), call("add", a=1, b=2)], "Never."], [stop, add])
    finish(stopped)

    run = finish(remembering(said="go on"))

    assert stopped.status == "cancelled"
    assert run.history == stopped.messages
    assert [message["role"] for message in run.history] == ["user", "assistant", "tool", "tool"]


@everywhere
def test_a_turn_with_a_lost_row_is_left_out(where):
    for kind in ("tool", "llm"):
        broken = finish(remembering([call("add", a=1, b=2), "Three."], [add], said="canary"))
        Span.objects.filter(trace=broken.uuid, kind=kind).first().delete()
    whole = finish(remembering(said="whole"))

    assert said(finish(remembering()).history) == said(whole.said)


@everywhere
def test_a_turn_without_content_is_left_out(where):
    finish(remembering(capture_content=False))

    assert finish(remembering()).history == []


@everywhere
def test_to_forget_keeps_the_traces(where):
    memory = MetastoreMemory()
    finish(remembering(said="canary"))

    memory.clear(KEY)
    run = finish(remembering(said="after"))
    then = finish(remembering())

    assert run.history == []
    assert said(then.history) == ["after"]
    assert Trace.objects.count() == 3


@everywhere
def test_a_session_that_never_was_can_be_forgotten(where):
    MetastoreMemory().clear(KEY)

    assert Session.objects.get().forgotten_at is not None
    assert MetastoreMemory().load(KEY) == []


@everywhere
def test_nothing_is_stored_twice(where):
    memory = MetastoreMemory()

    memory.append(KEY, [{"role": "user", "content": "hi"}])

    assert memory.load(KEY) == []


@everywhere
def test_recalling_costs_few_queries(where, django_assert_max_num_queries):
    for _ in range(5):
        finish(remembering([call("add", a=1, b=2), "Three."], [add]))

    with django_assert_max_num_queries(3):
        assert len(MetastoreMemory().load(KEY)) == 20


@pytest.mark.parametrize("max_turns", [0, -1, 1.5, "3", None, True])
def test_a_number_of_turns_that_makes_no_sense_is_refused(max_turns):
    with pytest.raises(Misconfigured, match=r"max_turns of .* must be a whole number above 0"):
        MetastoreMemory(max_turns=max_turns)


def test_it_tells_what_it_is():
    assert MetastoreMemory().describe() == {"type": "MetastoreMemory", "max_turns": 20}


@everywhere
@pytest.mark.parametrize("read", range(1, 8))
def test_a_session_goes_on_after_a_stop_at_any_event(where, read):
    turns = [[call("add", a=1, b=1), call("add", a=2, b=2)], "Two."]
    events = stream(remembering(turns, [add]))
    for _ in zip(range(read), events, strict=False):
        pass
    events.close()

    again = finish(remembering(said="again"))

    assert again.status == "finished"
    assert repaired(again.messages) == again.messages
