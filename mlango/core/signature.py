"""What a function's signature and docstring say about a tool.

``read(fn)`` resolves everything once, when the function is decorated, so that a mistake is
an error there and nothing is inspected at run time.
"""

from __future__ import annotations

import builtins
import inspect
import re
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import FrameType, MethodType, SimpleNamespace, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from asgiref.sync import iscoroutinefunction

from mlango.core.context import Context
from mlango.core.lookups import Reference, reference_of
from mlango.exceptions import ToolDefinitionError

EMPTY = inspect.Parameter.empty
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

# Known by name, so that the core imports no more of Django than it needs.
INJECTED = {
    "django.http.request.HttpRequest": "request",
    "django.contrib.auth.base_user.AbstractBaseUser": "user",
    "django.contrib.auth.models.AnonymousUser": "user",
}


@dataclass(frozen=True, slots=True)
class Argument:
    """A parameter that the model fills in."""

    name: str
    annotation: Any
    default: Any
    description: str


@dataclass(frozen=True, slots=True)
class Signature:
    """A function as a tool sees it.

    ``injected`` maps the names of parameters that the model never sees to what they get:
    ``context``, ``request``, ``user`` or ``state``. ``variadic`` holds ``*args`` and
    ``**kwargs`` as they are written. ``references`` hold the parameters that get rows.
    """

    name: str
    description: str
    arguments: tuple[Argument, ...]
    injected: dict[str, str]
    variadic: tuple[str, ...]
    references: dict[str, Reference]

    @property
    def open(self) -> bool:
        """Whether the function takes any keyword."""
        return any(name.startswith("**") for name in self.variadic)


def read(fn: Callable[..., Any], *, method: bool = False) -> Signature:
    """Return the signature of a function; of a ``method`` without its first parameter."""
    plain = target(fn)
    name = name_of(fn)
    parameters = _parameters(fn, name, method)
    described = docstring(plain, [p.name for p in parameters])
    namespace = _namespace(plain)
    arguments: list[Argument] = []
    injected: dict[str, str] = {}
    references: dict[str, Reference] = {}
    variadic = [str(p).partition(":")[0] for p in parameters if p.kind in VARIADIC]
    for parameter in (p for p in parameters if p.kind not in VARIADIC):
        annotation = _annotation(parameter, name, namespace)
        what = _injection(parameter, annotation)
        if what:
            injected[parameter.name] = what
            continue
        text = described.arguments.get(parameter.name, "")
        reference, annotation = reference_of(annotation, f"{name}({parameter.name})")
        if reference is not None:
            references[parameter.name] = reference
            text = text or reference.description()
        arguments.append(Argument(parameter.name, annotation, parameter.default, text))
    return Signature(name, described.text, tuple(arguments), injected, tuple(variadic), references)


def target(fn: Any) -> Any:
    """Return the plain function under partials, methods, wrappers and callable objects."""
    while True:
        if isinstance(fn, partial):
            fn = fn.func
        elif isinstance(fn, MethodType | staticmethod | classmethod):
            fn = fn.__func__
        elif hasattr(fn, "__wrapped__"):
            fn = fn.__wrapped__
        elif _is_callable_object(fn):
            fn = type(fn).__call__
        else:
            return fn


def name_of(fn: Any) -> str:
    """Return what a function, or the class of a callable object, is called."""
    while isinstance(fn, partial):
        fn = fn.func
    return getattr(fn, "__name__", None) or type(fn).__name__


def place_of(fn: Any) -> str:
    """Return where in its module a function is defined, such as ``Desk.check``."""
    plain = target(fn)
    return str(getattr(plain, "__qualname__", type(plain).__qualname__))


def _is_callable_object(fn: Any) -> bool:
    return inspect.isfunction(getattr(type(fn), "__call__", None))  # noqa: B004


def kind_of(fn: Any) -> str:
    """Return how a function is called: sync, async, generator or async_generator.

    A wrapper is what it is itself: a plain function that returns a coroutine is ``sync``.
    """
    while isinstance(fn, partial | MethodType | staticmethod | classmethod):
        fn = fn.func if isinstance(fn, partial) else fn.__func__
    if iscoroutinefunction(fn):
        return "async"
    if _is_callable_object(fn):
        fn = type(fn).__call__
    if inspect.isasyncgenfunction(fn):
        return "async_generator"
    if inspect.isgeneratorfunction(fn):
        return "generator"
    return "async" if iscoroutinefunction(fn) else "sync"


# -- parameters -----------------------------------------------------------------------------


def _parameters(fn: Any, name: str, method: bool) -> list[inspect.Parameter]:
    if isinstance(fn, type):
        raise ToolDefinitionError(
            f"{name!r} is a class. A tool is a function; give one its fields as parameters, "
            f"or pass the class as params_model=."
        )
    try:
        signature = inspect.signature(fn.__func__ if isinstance(fn, classmethod) else fn)
    except (TypeError, ValueError):
        raise ToolDefinitionError(
            f"{name!r} does not tell its parameters. Wrap it in a function that does."
        ) from None
    parameters = list(signature.parameters.values())
    if method:
        if not parameters:
            raise ToolDefinitionError(f"The method {name!r} takes no self. Add it.")
        parameters = parameters[1:]
    fixed = _fixed(fn)
    for parameter in parameters:
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise ToolDefinitionError(
                f"The parameter {parameter.name!r} of {name!r} is positional-only, but a tool "
                f"is called by keyword. Remove the '/'."
            )
    return [parameter for parameter in parameters if parameter.name not in fixed]


def _fixed(fn: Any) -> set[str]:
    """Return the keywords that a partial has set: the model neither sees nor changes them."""
    fixed: set[str] = set()
    while isinstance(fn, partial):
        fixed |= fn.keywords.keys()
        fn = fn.func
    return fixed


def _injection(parameter: inspect.Parameter, annotation: Any) -> str:
    if annotation is EMPTY:
        return "state" if parameter.name == "state" else ""
    for kind in _classes(annotation):
        if issubclass(kind, Context):
            return "context"
        for base in kind.__mro__:
            what = INJECTED.get(f"{base.__module__}.{base.__qualname__}")
            if what:
                return what
    return ""


def _classes(annotation: Any) -> Iterable[type]:
    """Return the class of an annotation, through Annotated and unions."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _classes(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return [kind for inner in get_args(annotation) for kind in _classes(inner)]
    return [annotation] if isinstance(annotation, type) and origin is None else []


# -- annotations ----------------------------------------------------------------------------


def _annotation(parameter: inspect.Parameter, name: str, namespace: dict[str, Any]) -> Any:
    """Return a parameter's annotation with the names in it resolved."""
    annotation = parameter.annotation
    if annotation is EMPTY or isinstance(annotation, type):
        return annotation
    holder = SimpleNamespace(__annotations__={parameter.name: annotation})
    try:
        return get_type_hints(holder, namespace, namespace, include_extras=True)[parameter.name]
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise ToolDefinitionError(
            f"The parameter {parameter.name!r} of {name!r} is annotated with {annotation!r}, "
            f"which cannot be resolved: {error}. Define or import what it names above the "
            f"function, and not under TYPE_CHECKING."
        ) from error


def _namespace(fn: Any) -> dict[str, Any]:
    """Return the names that a function's annotations may use."""
    scopes = getattr(fn, "__globals__", {})
    local: dict[str, Any] = {}
    for frame in reversed(list(defining_frames(fn))):
        local |= frame.f_locals
    own = {kind.__name__: kind for kind in getattr(fn, "__type_params__", ())}
    return {**vars(builtins), **scopes, **local, **_closure(fn), **own}


def _closure(fn: Any) -> dict[str, Any]:
    names = getattr(getattr(fn, "__code__", None), "co_freevars", ())
    found = {}
    for name, cell in zip(names, getattr(fn, "__closure__", None) or (), strict=False):
        with suppress(ValueError):  # not set yet, as the name of a function being decorated
            found[name] = cell.cell_contents
    return found


def defining_frames(fn: Any) -> Iterable[FrameType]:
    """Yield the frames in which ``fn`` is being defined, innermost first.

    They hold the local classes that an annotation in text names but nothing refers to.
    """
    scope = getattr(fn, "__globals__", None)
    frame: FrameType | None = sys._getframe(1)
    while frame and frame.f_globals is not scope:
        frame = frame.f_back
    while frame and frame.f_globals is scope:
        if frame.f_locals is not scope:
            yield frame
        frame = frame.f_back


def in_class_body(fn: Any) -> bool:
    """Return whether ``fn`` is a function that a class body is defining right now."""
    owner = getattr(fn, "__qualname__", "").rpartition(".")[0]
    return bool(owner) and any(
        frame.f_locals.get("__qualname__") == owner for frame in defining_frames(fn)
    )


# -- docstrings -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Docstring:
    """``text`` is all prose before the sections; ``arguments`` what is said of each."""

    text: str
    arguments: dict[str, str]


# The first style whose mark a docstring holds is its style.
STYLES = {
    name: re.compile(mark, re.MULTILINE)
    for name, mark in {
        "GOOGLE": r"^(Args|Arguments|Parameters|Params|Returns|Yields|Raises|Examples?):\s*$",
        "NUMPYDOC": r"^\w[\w ]*\n-{3,}\s*$",
        "REST": r"^:(param|parameter|arg|argument|key|keyword|type|returns?|rtype|raises?)\b.*:",
        "EPYDOC": r"^@(param|type|returns?|rtype|raises?)\b.*:",
    }.items()
}
GOOGLE_ARGUMENTS = re.compile(r"^(Args|Arguments|Parameters|Params):\s*$")
GOOGLE_ENTRY = re.compile(r"^\*{0,2}(\w+)\s*(\(.*?\))?\s*:")


def docstring(fn: Any, names: list[str]) -> Docstring:
    """Return what a docstring says, be it in Google's, NumPy's or Sphinx' style."""
    text = inspect.cleandoc(getattr(fn, "__doc__", None) or "")
    style = next((name for name, mark in STYLES.items() if mark.search(text)), None)
    if style is None:
        return Docstring(text, {})
    from docstring_parser import ParseError  # 60 ms, and only a docstring with sections needs it

    try:
        parsed = _parsed(text, style, names)
    except (ParseError, IndexError):  # the latter is docstring-parser 0.18 on a lone "::"
        return Docstring(text, {})
    described: dict[str, str] = {}
    for entry in parsed.params:
        for name in entry.arg_name.replace("*", "").split(","):
            if name.strip() in names and entry.description:
                described.setdefault(name.strip(), " ".join(entry.description.split()))
    return Docstring((parsed.description or "").strip(), described)


def _parsed(text: str, style: str, names: list[str]) -> Any:
    from docstring_parser import DocstringStyle, google, parse

    if style != "GOOGLE":
        return parse(text, DocstringStyle[style])
    # Only of parameters does each entry matter; elsewhere a line may lack its colon.
    sections = [
        section
        if section.key == "param"
        else google.Section(section.title, section.key, google.SectionType.SINGULAR)
        for section in google.DEFAULT_SECTIONS
    ]
    return google.GoogleParser(sections).parse(_indent_wrapped(text, names))


def _indent_wrapped(text: str, names: list[str]) -> str:
    """Indent the wrapped lines of Google's entries: only a parameter opens an entry."""
    lines, inside, margin = [], False, 0
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        if GOOGLE_ARGUMENTS.match(line):
            inside, margin = True, 0
        elif line.strip() and inside:
            margin = margin or indent
            inside = indent >= margin > 0
            entry = GOOGLE_ENTRY.match(line.strip())
            if inside and not (entry and entry[1] in names):
                line = f"    {line}"
        lines.append(line)
    return "\n".join(lines)
