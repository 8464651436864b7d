"""An offline provider that follows simple rules: for new projects, demonstrations and tests."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from typing import Any

from mlango.agents.providers.turns import completion_of, deltas_of, with_ids
from mlango.core.messages import size, text_of
from mlango.core.provider import Completion, Delta, Message, Provider, ToolCall
from mlango.core.usage import Usage
from mlango.core.values import dumps

USE = re.compile(r"^[ \t]*use[ \t]+([\w-]+)[ \t]*(?=\{|$)", re.MULTILINE)
Rule = tuple[str, Callable[[re.Match[str]], Any]]


class EchoProvider(Provider):
    """Answers without a model, always in the same way.

    * ``use search {"query": "refunds"}`` calls a tool, ``use today`` one without arguments;
      several such lines make parallel calls. Then it says ``tool results: …; …``.
    * A request in plain words to an agent that has a tool with one string to fill calls that
      tool with the request and answers from its result.
    * Anything else comes back as ``echo: …``.

    ``rules`` are looked at first: pairs of a regular expression and a function that gets the
    match in the last message of the user and returns text or tool calls.
    """

    name = "echo"
    offline = True

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self.rules = [(re.compile(pattern), handler) for pattern, handler in rules]

    async def astream(
        self,
        *,
        messages: list[Message],
        system: str = "",
        tools: list[dict[str, Any]] | None = None,
        **options: Any,
    ) -> AsyncGenerator[Delta]:
        said = completion_of(self._answer(messages, tools or []))
        written = len(said.text) + sum(len(str(each.arguments)) for each in said.tool_calls)
        read = len(system) + sum(map(size, messages))
        answer = Completion(said.text, said.tool_calls, usage=Usage(read // 4, written // 4))
        made = sum(1 for message in messages if message["role"] == "tool")
        for delta in deltas_of(with_ids(answer, made + 1)):
            yield delta

    def _answer(self, messages: list[Message], tools: list[dict[str, Any]]) -> Any:
        asked = _last_asked(messages)
        functions = {tool["function"]["name"]: tool["function"] for tool in tools}
        calls = list(_named_calls(asked, functions))
        if messages and messages[-1]["role"] == "tool":
            results = _results(messages)
            return (
                f"tool results: {'; '.join(results)}"
                if calls
                else "\n".join(_in_words(result) for result in results)
            )
        for pattern, handler in self.rules:
            if match := pattern.search(asked):
                return handler(match)
        return calls or _plain_call(asked, functions) or f"echo: {asked}"


def _last_asked(messages: list[Message]) -> str:
    for message in reversed(messages):
        if message["role"] == "user":
            return text_of(message.get("content"))
    return ""


def _named_calls(asked: str, functions: dict[str, Any]) -> Iterator[ToolCall]:
    """Yield the calls that ``use`` lines ask for; broken JSON is passed on as it is."""
    for match in USE.finditer(asked):
        rest = asked[match.end() :]
        if rest.startswith("{"):
            yield ToolCall("", match[1], _leading_object(rest))
        elif match[1] in functions:
            yield ToolCall("", match[1], "{}")


def _leading_object(text: str) -> str:
    try:
        return text[: json.JSONDecoder().raw_decode(text)[1]]
    except ValueError:
        return text.partition("\n")[0]


def _plain_call(asked: str, functions: dict[str, Any]) -> list[ToolCall]:
    for name, function in functions.items():
        argument = _one_string(function["parameters"])
        if argument:
            return [ToolCall("", name, dumps({argument: asked}))]
    return []


def _one_string(parameters: dict[str, Any]) -> str:
    """Return the only parameter that must be filled, if any text fits it."""
    properties = parameters.get("properties", {})
    needed = parameters.get("required") or list(properties)
    if len(needed) != 1:
        return ""
    schema = properties.get(needed[0], {})
    is_free = schema.get("type") == "string" and not schema.keys() & {"enum", "format", "pattern"}
    return needed[0] if is_free else ""


def _results(messages: list[Message]) -> list[str]:
    """Return what the tools of the last turn said, in call order."""
    texts: list[str] = []
    for message in reversed(messages):
        if message["role"] != "tool":
            break
        texts.append(text_of(message["content"]))
    return texts[::-1]


def _in_words(result: str) -> str:
    """Return JSON as lines that a person reads; other text as it is."""
    try:
        value = json.loads(result)
    except ValueError:
        return result
    if isinstance(value, list):
        return "\n".join(f"- {_short(item)}" for item in value) or "Nothing was found."
    return _short(value)


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_short(item)}" for key, item in value.items())
    return value if isinstance(value, str) else dumps(value)
