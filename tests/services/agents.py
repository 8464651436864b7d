"""An agent whose work is seen from other processes, in a file."""

import os
import time
from pathlib import Path

from mlango.agents import Agent, tool
from mlango.agents.providers import Completion, Provider, ToolCall


class Carry(Provider):
    """Has the thing carried that it is told of, then says so."""

    name = "carry"
    offline = True

    def complete(self, *, messages, **options):
        if messages[-1]["role"] == "tool":
            return Completion(text=messages[-1]["content"])
        call = ToolCall("c1", "carry", {"what": messages[-1]["content"]})
        return Completion(tool_calls=[call], stop_reason=Completion.TOOL_USE)


@tool(effect="idempotent")
def carry(what: str) -> str:
    """Carry something, as soon as the way is free."""
    ledger = Path(os.environ["SITE_LEDGER"])
    with ledger.open("a") as lines:
        lines.write(f"{what} by {os.getpid()}\n")
    while what == "piano" and not ledger.with_name("free").exists():
        time.sleep(0.01)
    return f"carried the {what}"


class Porter(Agent):
    """Carries things."""

    class Meta:
        app_label = "services"
        provider = Carry()
        model = "carry/one"
        tools = [carry]
        durable = True
