"""What a declared ``Meta.output`` is: a form, a serializer, or a type for pydantic."""

from __future__ import annotations

import inspect
import sys
from typing import Any

from django.forms import BaseForm

from mlango.agents.output.kinds import OutputType
from mlango.core.tools import Tool
from mlango.exceptions import Misconfigured

NO_TYPES = (str, bytes, dict, list, tuple, Tool)  # which pydantic would read, or stumble over


def output_type(owner: str, declared: Any) -> OutputType | None:
    """Return what makes the answers of ``owner``, or raise Misconfigured; None for text."""
    if declared is None or isinstance(declared, OutputType):
        return declared
    if inspect.isroutine(declared) or isinstance(declared, NO_TYPES):
        raise Misconfigured(
            f"{owner}.Meta.output must be a type, such as a pydantic model, a dataclass, "
            f"list[str] or a form, not {declared!r:.100}."
        )
    kind = declared if isinstance(declared, type) else type(None)
    if issubclass(kind, BaseForm):
        from mlango.agents.output.forms import FormOutput

        return FormOutput(owner, kind)
    # Whoever hands in a serializer has imported them.
    framework = sys.modules.get("rest_framework.serializers")
    if framework is not None and issubclass(kind, framework.BaseSerializer):
        from mlango.agents.output.serializers import SerializerOutput

        return SerializerOutput(kind)
    from mlango.agents.output.types import TypedOutput  # it brings pydantic

    return TypedOutput(owner, declared)
