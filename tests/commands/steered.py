"""An agent that works until its user has told it two things more; a process of its own."""

import sys
from threading import Semaphore

from mlango.agents import Agent, tool
from mlango.agents.providers import Completion, Provider, ToolCall
from mlango.agents.streams import RunStream
from mlango.core.messages import text_of

told = Semaphore(0)
steer = RunStream.steer


def steer_and_note(stream, message, **options):
    steer(stream, message, **options)
    told.release()


RunStream.steer = steer_and_note


class Listener(Provider):
    offline = True

    def complete(self, *, messages, **request):
        said = [text_of(each["content"]) for each in messages if each["role"] == "user"]
        if len(said) == 1:
            return Completion("", [ToolCall("c1", "hold", {})])
        return Completion(f"heard: {said[-1]}")


@tool
def hold() -> str:
    """Wait until two things were said."""
    sys.stderr.write("HOLDING\n")
    sys.stderr.flush()
    told.acquire()
    told.acquire()
    return "held"


class Patient(Agent):
    class Meta:
        app_label = "commands"
        provider = Listener()
        tools = [hold]
        tracing = False
        steering_mode = "all"
