"""The agent that the benchmarks run, and the bare code that it stands beside."""

import json

import aiohttp
import ratios  # noqa: F401 - sets Django up

from mlango.agents import Agent, tool

PROMPT = "Add the numbers one by one."
SYSTEM = "You add numbers."
NUMBER = {"type": "integer"}
PARAMETERS = {
    "type": "object",
    "properties": {"a": NUMBER, "b": NUMBER},
    "required": ["a", "b"],
}
DESCRIPTION = "Add two integers."
FUNCTION = {"name": "add", "description": DESCRIPTION, "parameters": PARAMETERS}
TOOLS = [{"type": "function", "function": FUNCTION}]


@tool
async def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


class Adder(Agent):
    class Meta:
        system = SYSTEM
        tools = [add]
        max_steps = None
        tracing = False


class TracedAdder(Adder):
    class Meta(Adder.Meta):
        tracing = True


async def bare_run(complete):
    """Run the tool calls of ``complete(messages)``, which gives messages as dicts."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": PROMPT}]
    while True:
        message = await complete(messages)
        messages.append(message)
        calls = message.get("tool_calls")
        if not calls:
            return message["content"]
        for call in calls:
            arguments = json.loads(call["function"]["arguments"])
            content = json.dumps(arguments["a"] + arguments["b"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})


def whole(session, url, model):
    """Return a model call that takes its answer as one document."""

    async def complete(messages):
        body = {"model": model, "messages": messages, "tools": TOOLS}
        async with session.post(f"{url}/chat/completions", json=body) as response:
            return (await response.json())["choices"][0]["message"]

    return complete


def streamed(session, url, model):
    """Return a model call that reads the stream of its answer, line by line."""

    async def complete(messages):
        body = {"model": model, "messages": messages, "tools": TOOLS, "stream": True}
        text, calls = [], []
        async with session.post(f"{url}/chat/completions", json=body) as response:
            async for line in response.content:
                if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                    continue
                for choice in json.loads(line[6:])["choices"]:
                    text.append(choice["delta"].get("content") or "")
                    calls += choice["delta"].get("tool_calls") or ()
        return {"role": "assistant", "content": "".join(text), "tool_calls": calls}

    return complete


def client():
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1000))
