"""What an answer must be: its JSON Schema, and what makes a value of it."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from mlango.core.inference import tidy
from mlango.core.tools import Tool, tool
from mlango.core.values import clean_json, dumps, parse_json
from mlango.exceptions import ToolError

FINAL_ANSWER = "final_answer"
DESCRIPTION = (
    "Give the final answer. Call it alone, once you have all that you need; an answer in "
    "plain text is not taken."
)
# The arguments of a tool are an object; an answer that is none is put into one.
WRAPPED = "answer"
MAX_PROBLEMS = 10
# What fields of forms and of serializers call the same, and JSON Schema otherwise.
BOUNDS = {
    "max_length": "maxLength",
    "min_length": "minLength",
    "max_value": "maximum",
    "min_value": "minimum",
}
BOUNDED = ("string", "number", "integer")


def bounded(schema: dict[str, Any], field: Any) -> dict[str, Any]:
    """Return a field's schema with its bounds."""
    if schema.get("type") not in BOUNDED:
        return schema
    bounds = {keyword: getattr(field, name, None) for name, keyword in BOUNDS.items()}
    return schema | {key: value for key, value in bounds.items() if isinstance(value, int | float)}


def described(schema: dict[str, Any], field: Any) -> dict[str, Any]:
    """Return a field's schema with its label and its help text."""
    told = [str(text) for text in (field.label, field.help_text) if text]
    return schema | {"description": ". ".join(told)} if told else schema


class Invalid(Exception):
    """An answer does not fit; the text is for the model."""


class OutputType:
    """What the answers of an agent must be. Subclasses say what is made of their data."""

    def __init__(self, declared: Any, schema: dict[str, Any]) -> None:
        self.declared = declared
        plain = tidy(schema)
        # A union's schema says nothing of properties itself.
        self.is_wrapped = not plain["properties"] or "anyOf" in plain or "oneOf" in plain
        self.schema = tidy(_wrapped(schema)) if self.is_wrapped else plain

    def value_of(self, data: Any) -> Any:
        """Return the value that JSON data means, or raise Invalid. May use the database."""
        raise NotImplementedError

    def read(self, text: str) -> Any:
        """Return the value of an answer as the model wrote it, or raise Invalid."""
        try:
            data = parse_json(_bare(text))
        except ValueError as error:
            raise Invalid(str(error)) from None
        return self.value_of(clean_json(data))

    def unwrapped(self, arguments: str | dict[str, Any]) -> str:
        """Return the answer in the arguments of a call, as JSON text."""
        text = arguments if isinstance(arguments, str) else dumps(arguments)
        if not self.is_wrapped:
            return text
        try:
            data = parse_json(text)
        except ValueError:
            return text
        inside = isinstance(data, dict) and data.keys() == {WRAPPED}
        return dumps(data[WRAPPED]) if inside else text

    @cached_property
    def tool(self) -> Tool:
        """The tool that the model gives its answer with."""

        def final_answer(**answer: Any) -> None:
            # An answer on its own ends the run before it gets here.
            raise ToolError(
                f"Not taken: call {FINAL_ANSWER} alone, after the results of the other calls."
            )

        return tool(
            final_answer,
            name=FINAL_ANSWER,
            description=DESCRIPTION,
            parameters=self.schema,
            thread_sensitive=False,
            effect="read",
        )

    def describe(self) -> dict[str, Any]:
        return {"name": getattr(self.declared, "__name__", ""), "schema": self.schema}


def _wrapped(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an object that holds what ``schema`` describes."""
    inner = {keyword: value for keyword, value in schema.items() if keyword != "$defs"}
    outer: dict[str, Any] = {
        "type": "object",
        "properties": {WRAPPED: inner},
        "required": [WRAPPED],
    }
    return outer | {"$defs": schema["$defs"]} if "$defs" in schema else outer


def worded(problems: list[tuple[str, str]]) -> Invalid:
    """Return Invalid with one line a problem: where, and what is wrong there."""
    lines = [f"{where}: {text}" if where else text for where, text in problems[:MAX_PROBLEMS]]
    if len(problems) > MAX_PROBLEMS:
        lines.append(f"and {len(problems) - MAX_PROBLEMS} more")
    return Invalid("\n".join(lines))


def _bare(text: str) -> str:
    """Return an answer without the fence that models like to put around JSON."""
    text = text.strip()
    if text.startswith("```") and text.endswith("```") and "\n" in text:
        return text[text.index("\n") : -3]
    return text
