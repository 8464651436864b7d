"""Answers of any type that pydantic knows: models, dataclasses, TypedDicts, lists and more."""

from __future__ import annotations

import sys
import typing
from typing import Any

from mlango.agents.output.kinds import OutputType, worded
from mlango.core.inference import problems
from mlango.core.values import dumps
from mlango.exceptions import Misconfigured


class TypedOutput(OutputType):
    """Makes a value of a type."""

    def __init__(self, owner: str, declared: Any) -> None:
        from pydantic import PydanticUserError, TypeAdapter

        try:
            self._adapter = TypeAdapter(_readable(declared))
            schema = self._adapter.json_schema()
        except (PydanticUserError, TypeError, ValueError, NameError) as error:
            reason = str(error).strip().splitlines()[0]
            raise Misconfigured(
                f"{owner}.Meta.output cannot be written as JSON Schema: {reason} Use a pydantic "
                f"model, a dataclass, a TypedDict, a list of these, a form or a serializer."
            ) from error
        super().__init__(declared, schema)

    def value_of(self, data: Any) -> Any:
        from pydantic import ValidationError

        try:
            return self._adapter.validate_json(dumps(data))
        except ValidationError as error:
            found = problems(error)
            raise worded([(".".join(map(str, path)), text) for path, text in found]) from None


def _readable(declared: Any) -> Any:
    """Return a type that pydantic reads: before Python 3.12 it takes no typing.TypedDict."""
    if sys.version_info >= (3, 12) or not typing.is_typeddict(declared):
        return declared
    from typing_extensions import NotRequired, Required, TypedDict  # noqa: UP035

    hints = typing.get_type_hints(declared, include_extras=True)
    needed = declared.__required_keys__
    fields = {
        name: hint
        if typing.get_origin(hint) in (Required, NotRequired)
        else (Required if name in needed else NotRequired)[hint]
        for name, hint in hints.items()
    }
    made: Any = TypedDict(declared.__name__, fields)  # type: ignore[misc]
    made.__doc__ = declared.__doc__
    return made
