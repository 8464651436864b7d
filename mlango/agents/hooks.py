"""Hooks: code of the project before and after each model call and each tool call.

A hook that raises is a failure of what it stands before or after: a broken tool hook of the
call, which the model is told of, a broken model hook of the run. Nothing goes on unhooked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Never

from mlango.agents.calling import called, called_in
from mlango.core.context import Context
from mlango.core.controls import Control
from mlango.core.messages import check_messages, sendable
from mlango.core.overrides import check_overrides, methods_of, takes
from mlango.core.provider import Completion
from mlango.core.results import render
from mlango.core.run import ToolOutcome
from mlango.core.signature import place_of
from mlango.core.threads import in_thread
from mlango.core.values import to_json
from mlango.exceptions import Misconfigured, Misused, did_you_mean

if TYPE_CHECKING:
    from mlango.core.calls import Job
    from mlango.core.provider import Message
    from mlango.core.run import Run

Function = Callable[..., Any]
BEFORE_MODEL, AFTER_MODEL, BEFORE_TOOL, AFTER_TOOL = NAMES = (
    "before_model",
    "after_model",
    "before_tool",
    "after_tool",
)
TAKEN = {
    BEFORE_MODEL: "(messages, ctx)",
    AFTER_MODEL: "(completion, ctx)",
    BEFORE_TOOL: "(name, arguments, ctx)",
    AFTER_TOOL: "(name, outcome, ctx)",
}


class Hooks:
    """Subclass it and override what is needed, or give functions: ``Hooks(before_tool=f)``.

    Each may be async; a plain one runs in the run's thread. Each returns what is to be used
    instead, or None. ``ToolError`` refuses a tool call and ``Halt`` ends the run.
    """

    def __init__(
        self,
        *,
        before_model: Function | None = None,
        after_model: Function | None = None,
        before_tool: Function | None = None,
        after_tool: Function | None = None,
        **unknown: Never,
    ) -> None:
        _refuse_unknown("Hooks()", unknown)
        given = (before_model, after_model, before_tool, after_tool)
        for name, function in zip(NAMES, given, strict=True):
            if function is not None:
                check_hook("Hooks()", name, function)
                setattr(self, name, function)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        meant = [name for name in methods_of(cls) if name.startswith(("before_", "after_"))]
        _refuse_unknown(cls.__name__, set(meant) - set(NAMES))
        check_overrides(cls, Hooks, NAMES)

    def before_model(self, messages: list[Message], ctx: Context) -> Any:
        """Return the messages that the model reads this time; ``messages`` are a copy."""

    def after_model(self, completion: Completion, ctx: Context) -> Any:
        """Return another Completion, or another text for it. What was streamed stays so."""

    def before_tool(self, name: str, arguments: dict[str, Any], ctx: Context) -> Any:
        """Return the arguments to call the tool with."""

    def after_tool(self, name: str, outcome: ToolOutcome, ctx: Context) -> Any:
        """Return another ToolOutcome, or what the tool is to have returned."""

    def describe(self) -> dict[str, Any]:
        """Return what is hooked; part of an agent's fingerprint."""
        return {name: place_of(function) for name, function in self.functions()}

    def functions(self) -> list[tuple[str, Function]]:
        """Return the hooks that do something, by name."""
        found = [(name, getattr(self, name)) for name in NAMES]
        return [
            (name, function)
            for name, function in found
            if getattr(function, "__func__", None) is not getattr(Hooks, name)
        ]


def hooks_of(owner: str, given: Any) -> tuple[Hooks, ...]:
    """Return the hooks that ``Meta.hooks`` means; raise Misconfigured."""
    listed = given if isinstance(given, list | tuple) else [given]
    made = tuple(each() if isinstance(each, type) else each for each in listed)
    for each in made:
        if not isinstance(each, Hooks):
            raise Misconfigured(
                f"{owner}.Meta.hooks holds {each!r}, which is not a Hooks. Subclass Hooks, or "
                f"give it functions, such as Hooks(before_tool=function)."
            )
        for name, function in each.functions():
            check_hook(type(each).__name__, name, function)
    return made


def check_hook(owner: str, name: str, function: Any) -> None:
    """Raise Misconfigured unless a hook can be called as it will be."""
    if not callable(function):
        raise Misconfigured(f"{owner}: {name} must be a function, not {function!r:.100}.")
    if not takes(function, TAKEN[name].count(",") + 1):
        raise Misconfigured(f"{owner}: {name} must take {TAKEN[name]}.")


def _refuse_unknown(owner: str, names: Iterable[str]) -> None:
    for name in names:
        raise Misconfigured(
            f"{owner} has no hook {name!r}.{did_you_mean(name, NAMES)} "
            f"Hooks are: {', '.join(NAMES)}."
        )


@dataclass(slots=True)
class Hooking:
    """The controls that call the hooks, by when they have their say."""

    before_model: list[Control] = field(default_factory=list)
    before_others: list[Control] = field(default_factory=list)
    after_tool: list[Control] = field(default_factory=list)


def hooking(hooks: Iterable[Hooks]) -> Hooking:
    """Return the controls that call the hooks."""
    made = Hooking()
    for each in hooks:
        for name, function in each.functions():
            if name == BEFORE_MODEL:
                made.before_model.append(BeforeModel(function))
            elif name == AFTER_TOOL:
                made.after_tool.append(AfterTool(function))
            else:
                kind = AfterModel if name == AFTER_MODEL else BeforeTool
                made.before_others.append(kind(function))
    return made


class _Hooking(Control):
    def __init__(self, function: Function) -> None:
        self.function = function


class BeforeModel(_Hooking):
    """Lets hooks change what the model reads. The conversation stays as it is."""

    async def before_model(self, run: Run) -> None:
        await reshape(run, self.function)


async def reshape(run: Run, function: Function) -> None:
    """Have a function of the messages return what the model reads at the next call."""
    seen = run.messages if run.view is None else run.view
    view = await called_in(run, function, deepcopy(seen), Context(run))
    if view is not None:
        check_messages(view)
        run.view = sendable(view)


class AfterModel(_Hooking):
    """Lets hooks change what the model said, before anything is done with it."""

    async def after_model(self, run: Run, completion: Completion) -> Completion:
        said = await called_in(run, self.function, completion, Context(run))
        return _changed(completion, said)


def _changed(completion: Completion, said: Any) -> Completion:
    if said is None:
        return completion
    if isinstance(said, str):
        return replace(completion, text=said, raw_content=None)
    if not isinstance(said, Completion):
        raise Misused(f"after_model() returns a Completion, text or None, not {said!r:.80}.")
    same = (said.text, said.tool_calls) == (completion.text, completion.tool_calls)
    if same or said.raw_content is not completion.raw_content:
        return said
    return replace(said, raw_content=None)  # it would be sent in the place of what was changed


class BeforeTool(_Hooking):
    """Lets hooks change or refuse tool calls, before anyone else looks at them."""

    async def before_call(self, run: Run, job: Job, arguments: dict[str, Any]) -> dict[str, Any]:
        context = Context(run, job.call, job.ordering)
        changed = await called(self.function, job.call.name, dict(arguments), context)
        if changed is None:
            return arguments
        if not isinstance(changed, dict):
            raise Misused(f"before_tool() returns a dict or None, not {changed!r:.80}.")
        job.call = replace(job.call, arguments=to_json(changed))
        return changed


class AfterTool(_Hooking):
    """Lets hooks change what the model reads of a tool's result."""

    async def after_call(self, run: Run, job: Job, outcome: ToolOutcome) -> ToolOutcome:
        context = Context(run, job.call, job.ordering)
        changed = await called(self.function, job.call.name, outcome, context)
        if changed is None or isinstance(changed, ToolOutcome):
            return changed or outcome
        limit = run.bounds.max_tool_output_chars
        content, is_error, details = await in_thread(render, job.tool, changed, limit)
        return job.made(content, "tool" if is_error else "", details)
