"""The agents that these tests run."""

import signal

from mlango.agents import Agent, BufferMemory, tool
from mlango.agents.providers import ScriptedProvider


@tool
def shout(text: str) -> str:
    """Say it louder."""
    return text.upper()


@tool
def stumble(text: str) -> str:
    """Fail."""
    raise ValueError("over a\nstone")


@tool
def interrupt(name: str) -> str:
    """Send a signal to this process, as Ctrl-C does."""
    signal.raise_signal(getattr(signal, name))
    return "unharmed"


@tool
def interrupt_twice(name: str) -> str:
    """Press Ctrl-C twice."""
    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)
    return "unharmed"


class Shouter(Agent):
    """Shouts."""

    class Meta:
        app_label = "commands"
        tools = [shout]
        memory = BufferMemory(k=5)


class Stumbler(Agent):
    class Meta:
        app_label = "commands"
        tools = [stumble]


class Interrupted(Agent):
    class Meta:
        app_label = "commands"
        tools = [interrupt]


class InterruptedTwice(Agent):
    class Meta:
        app_label = "commands"
        tools = [interrupt_twice]


SCRIPT = ScriptedProvider()


class Scripted(Agent):
    class Meta:
        app_label = "commands"
        provider = SCRIPT
        tools = [shout]


def script(*turns):
    """Have the Scripted agent say these turns."""
    SCRIPT.turns = list(turns)
    SCRIPT.reset()
