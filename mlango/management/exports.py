"""A trace as a cassette: what was asked of the model, and what it said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

from mlango.agents.agent import Agent
from mlango.agents.providers.cassette import Cassette
from mlango.agents.providers.recording import Recorder
from mlango.agents.providers.scripted import ScriptedProvider
from mlango.core.messages import text_of
from mlango.core.provider import Completion, ToolCall
from mlango.core.state import fold
from mlango.core.tools import Toolbox, Toolset
from mlango.exceptions import ProviderError, UnknownAgent, provider_error
from mlango.models import Span, Trace
from mlango.runtime.registry import registry


def write_cassette(trace: Trace, path: str) -> int:
    """Write a trace's model calls to a new cassette and return how many there were.

    A trace holds no schemas of tools: they are those that its agent has now.
    """
    spans = list(trace.spans.all())
    calls = [span for span in spans if span.kind == Span.Kind.LLM and _has_ended(span)]
    provider = ScriptedProvider(map(_turn, calls))
    provider.name = trace.provider
    cassette = Cassette(path)
    cassette.provider = trace.provider
    asyncio.run(_ask(Recorder(provider, cassette, trace.agent), _requests(trace, spans, calls)))
    return len(calls)


async def _ask(recorder: Recorder, requests: Iterator[dict[str, Any]]) -> None:
    for request in requests:
        with suppress(ProviderError):  # it is recorded as well
            await _read(recorder.astream(**request))


async def _read(stream: AsyncIterator[Any]) -> None:
    async for _ in stream:
        pass


def _requests(trace: Trace, spans: list[Span], calls: list[Span]) -> Iterator[dict[str, Any]]:
    opening, history, tools = trace.opening, trace.history, _tools(trace.agent)
    for call in calls:
        before = [span for span in spans if span.ordering < call.ordering]
        options = {name: value for name, value in call.input.items() if name != "messages"}
        yield {
            "model": trace.model,
            "messages": [*history, *fold(opening["said"], before)],
            "system": opening["system"],
            "tools": tools,
            **options,
        }


def _tools(label: str) -> list[dict[str, Any]] | None:
    """Return the schemas of an agent's tools; None if it is gone, or chooses them as it runs."""
    try:
        agent = registry.get(label)()
    except UnknownAgent:
        return None
    is_fixed = type(agent).get_tools is Agent.get_tools
    if not is_fixed or any(isinstance(item, Toolset) for item in agent._meta.tools):
        return None
    return Toolbox(agent.get_tools()).schemas or None


def _has_ended(call: Span) -> bool:
    """Return whether the provider answered, or failed, before the call was interrupted."""
    return call.output is not None or _kind(call) is not None


def _kind(call: Span) -> type[ProviderError] | None:
    return provider_error(call.error_type)


def _turn(call: Span) -> Completion | ProviderError:
    """Return what the provider said."""
    message, kind = call.output, _kind(call)
    if message is None and kind is not None:
        return kind(call.error)
    content = message["content"]
    parts = content if isinstance(content, list) else []
    return Completion(
        text=text_of(content),
        tool_calls=[
            ToolCall(made["id"], made["function"]["name"], made["function"]["arguments"])
            for made in message.get("tool_calls", ())
        ],
        stop_reason=call.attributes.get("stop_reason", ""),
        usage=call.usage or Completion().usage,
        raw_content=message.get("raw_content"),
        images=[part for part in parts if part.get("type") != "text"],
    )
