"""Events are frozen dataclasses, however they were made."""

import copy
import dataclasses
import pickle

import pytest

from mlango.agents import ToolCalled
from mlango.core import events
from mlango.core.events import Event

KINDS = [
    each for each in vars(events).values() if isinstance(each, type) and each.__base__ is Event
]


def values_for(kind):
    return [f"a {field.name}" for field in dataclasses.fields(kind)]


@pytest.mark.parametrize("kind", KINDS)
class TestAMadeEvent:
    def test_is_the_same_as_one_that_its_class_makes(self, kind):
        made, called = kind.made(*values_for(kind)), kind(*values_for(kind))
        assert type(made) is kind
        assert made == called
        assert hash(made) == hash(called)
        assert repr(made) == repr(called)

    def test_cannot_be_changed(self, kind):
        made = kind.made(*values_for(kind))
        with pytest.raises(dataclasses.FrozenInstanceError):
            made.seq = 1
        with pytest.raises(dataclasses.FrozenInstanceError):
            del made.seq

    def test_can_be_copied_and_stored(self, kind):
        made = kind.made(*values_for(kind))
        assert copy.copy(made) == made
        assert pickle.loads(pickle.dumps(made)) == made
        assert dataclasses.replace(made, seq=7).seq == 7


def test_a_made_event_says_what_happened():
    made = ToolCalled.made(1, "a run", 2, 0.5, None, "find", {"id": 1}, "call_1")
    assert made.describe()["arguments"] == {"id": 1}
    assert made.kind == "tool_called"
