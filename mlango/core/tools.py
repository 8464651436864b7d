"""Tools: functions that a model may call.

``@tool`` makes one of a function; ``Toolset`` is the base of what brings tools from
elsewhere. A Toolbox holds the tools of one agent or run.
"""

from __future__ import annotations

import inspect
import re
import sys
import unicodedata
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from typing import Any, overload

from mlango.core.context import Context
from mlango.core.dialects import adapt_schema
from mlango.core.messages import NAME
from mlango.core.numbers import is_number_from, is_seconds
from mlango.core.policy import PERMISSION, Approval
from mlango.core.results import ToolResult, render
from mlango.core.schema import Parameters
from mlango.core.signature import in_class_body, kind_of, name_of, place_of, read, target
from mlango.core.values import clean, dumps, truncate
from mlango.core.wanted import FLAG, TEXT, Wanted, check, one_of
from mlango.exceptions import Misconfigured, ToolDefinitionError, did_you_mean

__all__ = ["Tool", "ToolResult", "ToolSchemas", "Toolbox", "Toolset", "render", "tool"]

TRANSACTIONAL = "transactional"
EFFECTS = ("read", "idempotent", TRANSACTIONAL, "once")
REPEATABLE = ("read", "idempotent")
OVERFLOWS = ("truncate", "error")
MAX_LISTED = 50


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a model may call, with all that a run needs to know of it.

    Calling a Tool calls its function. ``kind`` says how it is called: ``sync``, ``async``,
    ``generator`` or ``async_generator``. ``method`` is set while the function still lacks
    its instance; ``bind`` gives it one.
    """

    name: str
    description: str
    parameters: Parameters
    fn: Callable[..., Any]
    strict: bool = False
    permission: str | None = None
    approval: Any = None
    effect: str = "once"
    timeout: float | None = None
    retries: int = 0
    parallel: bool = True
    thread_sensitive: bool = True
    atomic: bool | None = None
    on_overflow: str = "truncate"
    tags: tuple[str, ...] = ()
    goes_on: bool = False  # called again after a crash, it goes on where it was
    method: Any = field(default=None, repr=False)
    kind: str = field(init=False)
    _schema: dict[str, Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_name(self.name)
        values = {option: getattr(self, option) for option in WANTED}
        check(f"{{}} of the tool {self.name!r}", values, WANTED, ToolDefinitionError)
        if self.retries and self.effect not in REPEATABLE:
            raise ToolDefinitionError(
                f"The tool {self.name!r} cannot have retries: its effect is {self.effect!r}, so a "
                f"second call may do harm. Say effect='read' or effect='idempotent' if not."
            )
        _set(self, "tags", tuple(self.tags))
        if isinstance(self.parameters, Mapping):
            signature = read(self.fn, method=self.method is not None)
            made = Parameters.from_schema(self.parameters, signature, strict=self.strict)
            _set(self, "parameters", made)
        _set(self, "kind", kind_of(self.fn))
        if self.effect == TRANSACTIONAL and self.atomic is False:
            raise ToolDefinitionError(
                f"The tool {self.name!r} cannot be transactional with atomic=False: only its "
                f"transaction undoes it. Leave atomic out, or say effect='once'."
            )
        if self.is_transactional and self.is_async:
            raise ToolDefinitionError(
                f"The tool {self.name!r} cannot be atomic: it is async, and a transaction belongs "
                f"to one thread. Make it a plain function, or open transaction.atomic() in one."
            )
        _set(self, "_schema", self._made_schema())

    def _made_schema(self) -> dict[str, Any]:
        function: dict[str, Any] = {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters.schema,
        }
        if self.strict:
            function["strict"] = self.parameters.is_strict
        return {"type": "function", "function": function}

    def to_schema(self) -> dict[str, Any]:
        """Return the tool as OpenAI's chat API takes it. It is shared: do not change it."""
        return self._schema

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Tool:
        return self if instance is None else self.bind(instance)

    def bind(self, instance: Any) -> Tool:
        """Return the tool as a method of ``instance``; itself if it is not a method."""
        if self.method is None:
            return self
        return replace(self, fn=self.method.__get__(instance, type(instance)), method=None)

    @property
    def is_async(self) -> bool:
        """Whether calling the function needs a running event loop."""
        return self.kind in ("async", "async_generator")

    @property
    def is_transactional(self) -> bool:
        """Whether each call runs in a transaction, which also writes it down."""
        return self.effect == TRANSACTIONAL if self.atomic is None else self.atomic

    @property
    def source(self) -> str:
        """Where the function is defined, such as ``shop.agents.find_order``."""
        return f"{target(self.fn).__module__}.{place_of(self.fn)}"

    def __hash__(self) -> int:
        return hash((self.name, self.description))

    def __repr__(self) -> str:
        return f"<Tool {self.name}({', '.join(self.parameters.names)})>"


def _set(made: Tool, name: str, value: Any) -> None:
    object.__setattr__(made, name, value)  # it is frozen for everyone else


def _check_name(name: Any) -> None:
    if isinstance(name, str) and NAME.fullmatch(name):
        return
    plain = unicodedata.normalize("NFKD", str(name)).encode("ascii", "ignore").decode()
    proposed = re.sub(r"[^a-zA-Z0-9_-]+", "_", plain).strip("_")[:64] or "my_tool"
    raise ToolDefinitionError(
        f"A tool cannot be named {name!r}: a name has 1 to 64 letters (a-z), digits, '_' and "
        f"'-'. Set one with @tool(name={proposed!r})."
    )


def _is_approval(value: Any) -> bool:
    return isinstance(value, bool | Approval | None) or callable(value)


def _is_timeout(value: Any) -> bool:
    return value in (None, inf) or is_seconds(value)


def _are_tags(value: Any) -> bool:
    is_list = isinstance(value, list | tuple | set | frozenset)
    return is_list and all(isinstance(tag, str) for tag in value)


WANTED = {
    "description": TEXT,
    "strict": FLAG,
    "permission": PERMISSION.or_none(),
    "approval": Wanted(_is_approval, "an Approval, a function, True, False or None"),
    "effect": one_of(*EFFECTS),
    "timeout": Wanted(
        _is_timeout, "a number of seconds above 0, None for the setting, or inf for none"
    ),
    "retries": Wanted(lambda value: is_number_from(value, 0, (int,)), "a whole number from 0"),
    "parallel": FLAG,
    "thread_sensitive": FLAG,
    "atomic": FLAG.or_none(),
    "on_overflow": one_of(*OVERFLOWS),
    "tags": Wanted(_are_tags, "a list of strings"),
}


# -- the decorator --------------------------------------------------------------------------


@overload
def tool(fn: Callable[..., Any], /) -> Tool: ...


@overload
def tool(
    fn: None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    params_model: Any = None,
    strict: bool = False,
    permission: str | None = None,
    approval: Any = None,
    effect: str = "once",
    timeout: float | None = None,
    retries: int = 0,
    parallel: bool = True,
    thread_sensitive: bool = True,
    atomic: bool | None = None,
    on_overflow: str = "truncate",
    tags: Sequence[str] = (),
) -> Callable[[Callable[..., Any]], Tool]: ...


@overload
def tool(fn: Callable[..., Any], /, **options: Any) -> Tool: ...


def tool(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    params_model: Any = None,
    **options: Any,
) -> Any:
    """Make a function a tool: ``@tool``, ``@tool(strict=True)`` or ``tool(fn, name="x")``.

    ``name`` and ``description`` come from the function's name and docstring, the schema from
    its annotations, unless ``parameters`` (a JSON Schema) or ``params_model`` (a pydantic
    model) is given. The options are those of Tool: ``strict`` turns coercion off. ``effect``
    says what a second call would do: ``read`` changes nothing, ``idempotent`` may be
    repeated, ``transactional`` is undone with its transaction, ``once`` must not be repeated.
    ``timeout`` is in seconds. ``parallel=False`` has it run alone; ``thread_sensitive=False``
    moves a plain function off the caller's thread.
    """
    _check_options(options)

    def make(function: Callable[..., Any]) -> Tool:
        draft = Draft(function, name, description)
        made = draft.parameters(parameters, params_model, strict=options.get("strict", False))
        return Tool(draft.name, draft.description, made, draft.fn, method=draft.method, **options)

    return make if fn is None else make(fn)


def _check_options(options: dict[str, Any]) -> None:
    known = [option for option in WANTED if option != "description"]
    for option in options:
        if option not in known:
            listed = ", ".join(sorted([*known, *Draft.OPTIONS]))
            raise ToolDefinitionError(
                f"@tool has no option {option!r}."
                f"{did_you_mean(option, [*known, *Draft.OPTIONS])} Options are: {listed}."
            )


class Draft:
    """A function on its way to being a tool."""

    OPTIONS = ("name", "description", "parameters", "params_model")

    def __init__(self, fn: Any, name: str | None, description: str | None) -> None:
        if isinstance(fn, Tool) or not (callable(fn) or isinstance(fn, classmethod)):
            raise ToolDefinitionError(
                f"A tool is made of a function, not of {fn!r}."
                + (" It is a tool already." if isinstance(fn, Tool) else "")
            )
        self.method = _method(fn)
        self.fn = fn.__func__ if isinstance(fn, staticmethod | classmethod) else fn
        self.name = name_of(self.fn) if name is None else name
        _check_name(self.name)
        self.signature = read(self.fn, method=self.method is not None)
        said = self.signature.description if description is None else description
        self.description = clean(said) if isinstance(said, str) else said

    def parameters(
        self, schema: Mapping[str, Any] | None, model: Any, *, strict: bool
    ) -> Parameters:
        if schema is not None and model is not None:
            raise ToolDefinitionError(
                f"The tool {self.name!r} has both parameters and params_model. Give one."
            )
        if schema is not None:
            return Parameters.from_schema(schema, self.signature, strict=strict)
        if model is not None:
            return Parameters.from_model(model, self.signature, strict=strict)
        return Parameters.from_signature(self.signature, strict=strict)


def _method(fn: Any) -> Any:
    """Return ``fn`` if it still has to be bound to an instance or a class, else None."""
    if isinstance(fn, classmethod):
        return fn
    if not inspect.isfunction(fn):
        return None
    if in_class_body(fn):
        return fn
    owner = _owner(fn)
    if owner:
        raise ToolDefinitionError(
            f"{fn.__qualname__!r} is a method without its instance. Decorate it in the class, "
            f"or make a tool of the bound method: tool({owner}(...).{fn.__name__})."
        )
    return None


def _owner(fn: Any) -> str:
    """Return the name of the class that holds ``fn`` as a method, or an empty string."""
    owner, _, name = fn.__qualname__.rpartition(".")
    holder: Any = sys.modules.get(fn.__module__)
    for part in owner.split("."):
        holder = getattr(holder, part, None)
    is_method = isinstance(holder, type) and inspect.getattr_static(holder, name, None) is fn
    return owner if is_method else ""


# -- many tools -----------------------------------------------------------------------------


class Toolset:
    """Tools from elsewhere. Subclass it and override ``get_tools``.

    Where the tools run elsewhere too, make them with ``remote`` and override ``call``.
    """

    def get_tools(self, ctx: Context) -> Iterable[Tool] | Awaitable[Iterable[Tool]]:
        """Return the tools for a run, in order. May be async."""
        raise NotImplementedError(f"{type(self).__name__} must override get_tools().")

    async def call(self, name: str, arguments: dict[str, Any], ctx: Context) -> Any:
        """Run the remote tool ``name`` and return what it returned."""
        raise NotImplementedError(f"{type(self).__name__} must override call().")

    def remote(
        self, name: str, description: str, parameters: Mapping[str, Any], **options: Any
    ) -> Tool:
        """Return a tool whose calls go to ``call``; ``parameters`` are a JSON Schema."""

        async def forward(mlango_context: Context, **arguments: Any) -> Any:
            return await self.call(name, arguments, mlango_context)

        return tool(forward, name=name, description=description, parameters=parameters, **options)


def what_to_write(item: Any) -> str:
    """Return what stands in a list of tools in the place of what is none."""
    kind = item if isinstance(item, type) else type(item)
    if hasattr(item, "as_tool"):
        return f"Write {kind.__name__}.as_tool(), or name the agent in Meta.subagents."
    if isinstance(item, str):
        return "Write the tool itself, not its name."
    if issubclass(kind, Toolset):
        return f"Write {kind.__name__}()."
    if inspect.isroutine(item):
        return "Decorate the function with @tool."
    return "Tools are functions and methods with @tool above them, and toolsets."


class ToolSchemas(list[dict[str, Any]]):
    """The schemas of several tools, as a request holds them. Do not change it."""

    @cached_property
    def encoded(self) -> bytes:
        """The list as JSON, for providers that write their own requests."""
        return dumps(self).encode()

    def adapt(self, dialect: str = "openai", *, compact: bool = False) -> ToolSchemas:
        """Return the schemas for a family of providers; see ``mlango.core.dialects``."""
        if dialect == "openai" and not compact:
            return self
        key = (dialect, compact)
        if key not in self._adapted:
            self._adapted[key] = ToolSchemas(_adapted(each, dialect, compact) for each in self)
        return self._adapted[key]

    @cached_property
    def _adapted(self) -> dict[tuple[str, bool], ToolSchemas]:
        return {}


def _adapted(schema: dict[str, Any], dialect: str, compact: bool) -> dict[str, Any]:
    function = schema["function"]
    parameters = function["parameters"]
    try:
        adapted = adapt_schema(parameters, dialect, compact=compact)
    except ToolDefinitionError as error:
        raise ToolDefinitionError(f"The tool {function['name']!r}: {error}") from None
    return {**schema, "function": {**function, "parameters": adapted}}


class Toolbox:
    """The tools of a run by name, in order, with their schemas for the model.

    Two different tools with one name raise Misconfigured; the same tool twice is one.
    """

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        for each in tools:
            self._add(each)
        self.get = self._tools.get
        self.schemas = ToolSchemas(each.to_schema() for each in self)
        self.asks = any(each.approval for each in self)

    def _add(self, new: Tool) -> None:
        if not isinstance(new, Tool):
            raise Misconfigured(f"{new!r:.100} is not a tool. {what_to_write(new)}")
        if new.method is not None:
            raise Misconfigured(
                f"The tool {new.source!r} is a method and needs its instance. An agent finds "
                f"its own methods; if it takes no instance, put @tool above @staticmethod."
            )
        known = self._tools.setdefault(new.name, new)
        if known is not new and known != new:
            raise Misconfigured(
                f"Two tools are named {new.name!r}: {known.source} and {new.source}. "
                f"Rename one with @tool(name=…)."
            )

    @classmethod
    async def collect(cls, items: Iterable[Tool | Toolset], ctx: Context) -> Toolbox:
        """Return the tools of a list in which toolsets stand for theirs."""
        tools: list[Tool] = []
        for item in items:
            if isinstance(item, Toolset):
                found = item.get_tools(ctx)
                tools.extend(await found if isinstance(found, Awaitable) else found)
            else:
                tools.append(item)
        return cls(tools)

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __repr__(self) -> str:
        return f"<Toolbox: {', '.join(self.names) or 'empty'}>"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._tools)

    def unknown(self, name: str) -> str:
        """Return what the model is told when it calls a tool that is not there."""
        named = truncate(clean(name), 100)
        listed = ", ".join(self.names[:MAX_LISTED]) or "none"
        more = len(self) - MAX_LISTED
        rest = f" and {more} more" if more > 0 else ""
        hint = did_you_mean(named, self.names)
        return f"There is no tool {named!r}.{hint} Tools are: {listed}{rest}."
