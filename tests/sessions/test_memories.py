"""What the memories of a process recall: whole turns, however much they may keep."""

from hypothesis import given
from hypothesis import strategies as st

from mlango.agents import BufferMemory, WindowMemory
from mlango.core.memory import SessionKey
from mlango.core.messages import tool_message
from tests.wires import assert_sendable

KEY = SessionKey("shop.Support", "", "s1")


def user(text):
    return {"role": "user", "content": text}


def answer(text):
    return {"role": "assistant", "content": text}


def calling(*ids):
    function = {"name": "look", "arguments": "{}"}
    calls = [{"id": each, "type": "function", "function": function} for each in ids]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def turn(number, steps):
    """Return a turn with calls side by side: as many in each step as ``steps`` say."""
    messages = [user(f"question {number}")]
    for step, count in enumerate(steps):
        ids = [f"{number}-{step}-{place}" for place in range(count)]
        messages += [calling(*ids), *(tool_message(each, "seen") for each in ids)]
    return [*messages, answer(f"answer {number}")]


# How many calls each step of each turn makes.
sessions = st.lists(st.lists(st.integers(1, 3), max_size=3), min_size=1, max_size=6)
memories = st.builds(BufferMemory, st.integers(1, 20)) | st.builds(
    WindowMemory, st.integers(1, 20), st.integers(1, 3)
)


def recalled(memory, turns):
    for each in turns:
        memory.append(KEY, each)
    return memory.load(KEY)


@given(sessions, memories)
def test_what_is_recalled_can_be_sent_and_ends_with_the_newest_turn(session, memory):
    turns = [turn(number, steps) for number, steps in enumerate(session)]
    found = recalled(memory, turns)

    assert_sendable(found)
    assert found[-len(turns[-1]) :] == turns[-1]
    order = [message for each in turns for message in each]
    assert found == [message for message in order if message in found]


@given(sessions, st.integers(1, 20))
def test_a_buffer_holds_at_most_so_many_messages_unless_one_turn_has_more(session, k):
    turns = [turn(number, steps) for number, steps in enumerate(session)]
    found = recalled(BufferMemory(k), turns)

    assert len(found) <= max(k, len(turns[-1]))


@given(sessions, st.integers(1, 20), st.integers(1, 3))
def test_a_window_keeps_how_the_session_began(session, k, first):
    turns = [turn(number, steps) for number, steps in enumerate(session)]
    found = recalled(WindowMemory(k, keep_first=first), turns)
    beginning = [message for each in turns[:first] for message in each]

    assert found[: len(beginning)] == beginning


def test_the_rest_of_a_turn_that_was_forgotten_meanwhile_is_not_recalled():
    rest = [tool_message("a", "seen"), answer("Done.")]
    for memory in (BufferMemory(), WindowMemory()):
        assert recalled(memory, [rest, turn(1, [2]), turn(2, [])]) == [*turn(1, [2]), *turn(2, [])]
