"""Agent: declares a model, a prompt, tools and a memory, and starts runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from django.apps import apps
from django.utils.module_loading import import_string

from mlango.agents.declaring import check_agent, names_of_colleagues
from mlango.agents.defaults import Defaults, defaults_of
from mlango.agents.fields import AgentField
from mlango.agents.handoffs import handoff_tool
from mlango.agents.references import successors_of
from mlango.agents.requests import is_durable
from mlango.agents.resolve import run_for
from mlango.agents.resume import aresumed, resumed
from mlango.agents.streams import AsyncRunStream, RunStream, result_of
from mlango.agents.subagents import AsTool, tool_of
from mlango.core.context import Context
from mlango.core.options import UNSET, Options, build
from mlango.core.provider import Message
from mlango.core.run import AgentRun
from mlango.core.tools import Tool
from mlango.exceptions import Misused, did_you_mean
from mlango.runtime.registry import registry
from mlango.runtime.sync import Call, refuse_running_loop

if TYPE_CHECKING:
    from mlango.models import Trace

__all__ = ["Agent"]


class Urls:
    """``Support.urls``: all endpoints of a class of agents, for ``include()``."""

    def __get__(self, instance: Agent | None, owner: type[Agent]) -> Any:
        return import_string("mlango.serve.urls.urls_of")(owner)


class Agent:
    """Subclass it in an app's ``agents.py`` and say what it is in ``class Meta``.

    An instance holds configuration only and may be shared between threads; what a run does
    is in the run.
    """

    _meta: ClassVar[Options] = Options(abstract=True, object_name="Agent")
    _defaults: ClassVar[Defaults]
    _fields: ClassVar[dict[str, AgentField]] = {}
    _tool_methods: ClassVar[dict[str, Tool]] = {}
    transforms: ClassVar[bool] = False  # whether transform_context does anything

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        bases = [vars(base)["_meta"] for base in cls.__mro__[1:] if "_meta" in vars(base)]
        cls._meta = build(cls.__name__, bases, vars(cls).get("Meta"), _derived(cls))
        if cls._meta.guardrails:
            cls._meta = _guarded(cls)
        if cls._meta.output is not None:
            cls._meta = _typed(cls)
        if cls._meta.hooks:
            cls._meta = _hooked(cls)
        if cls._meta.compaction:
            cls._meta = _compacted(cls)
        cls._fields = _collected(cls, AgentField)
        cls._tool_methods = _collected(cls, Tool)
        cls.transforms = cls.transform_context is not Agent.transform_context
        check_agent(cls, Agent)
        if not cls._meta.abstract:
            registry.register(cls)

    def __init__(self, **config: Any) -> None:
        unknown = next((name for name in config if name not in self._fields), None)
        if unknown is not None:
            known = ", ".join(self._fields) or "none"
            raise Misused(
                f"{type(self).__name__}() has no field {unknown!r}."
                f"{did_you_mean(unknown, self._fields)} Fields are: {known}."
            )
        for name, field in self._fields.items():
            if name in config:
                value = field.value_for(type(self).__name__, name, config[name])
            elif field.default is UNSET:
                raise Misused(f"{type(self).__name__}() needs the field {name!r}.")
            else:
                value = field.get_default()
            setattr(self, name, value)

    # -- what a subclass may override -----------------------------------------------------

    def get_system(self) -> Any:
        """Return the system prompt. May be async and may take the run's Context."""
        return self._meta.system

    def get_tools(self) -> Any:
        """Return the tools. May be async and may take the run's Context."""
        return [*self._meta.tools, *(tool.bind(self) for tool in self._tool_methods.values())]

    def get_model(self) -> Any:
        """Return the model. May be async and may take the run's Context."""
        return self._meta.model

    def transform_context(self, messages: list[Message], ctx: Context) -> Any:
        """Return the messages that the model reads at its next call. May be async.

        ``messages`` are a copy; the conversation and its rows stay as they are.
        """
        return messages

    # -- running ----------------------------------------------------------------------------

    def run(self, message: Any, **options: Any) -> AgentRun:
        """Run to the end and return the AgentRun; see ``arun``."""
        call = Call(f"await {type(self).__name__}().arun(...)")
        if options.get("idempotency_key") is not None:
            return call.run(_enqueue().once(self, message, options, call))  # type: ignore[no-any-return]
        stream = AsyncRunStream(run_for(self, message, options, call))
        return call.run(result_of(stream, raise_on_error=options.get("raise_on_error", True)))

    async def arun(self, message: Any, **options: Any) -> AgentRun:
        """Run to the end and return the AgentRun.

        ``message`` is text, a list of content parts or a list of messages. The options are
        ``session_id user request state history images files memory provider model
        limits max_steps approve metadata buffered idempotency_key``; others go to the
        provider. A failed run raises a RunError or ProviderError that carries it, unless
        ``raise_on_error=False``.
        """
        if options.get("idempotency_key") is not None:
            return await _enqueue().once(self, message, options)  # type: ignore[no-any-return]
        stream = AsyncRunStream(run_for(self, message, options))
        return await result_of(stream, raise_on_error=options.get("raise_on_error", True))

    def stream(self, message: Any, **options: Any) -> RunStream:
        """Return the events of a run as an iterator; leaving it stops the run.

        With ``buffered=True`` each answer is told when it is complete, so that one which
        breaks off halfway is tried again too. A durable run is done by the queue's workers,
        or here if none comes for it, and goes on when its reader leaves.
        """
        call = Call(f"{type(self).__name__}().astream(...)")
        if is_durable(self, options):
            return RunStream(_detached().DurableStream(self, message, options, call), call)
        return RunStream(AsyncRunStream(run_for(self, message, options, call)), call)

    def astream(self, message: Any, **options: Any) -> AsyncRunStream:
        """Return the events of a run as an async iterator; see ``stream``."""
        if is_durable(self, options):
            return _detached().DurableStream(self, message, options)  # type: ignore[no-any-return]
        return AsyncRunStream(run_for(self, message, options))

    def resume(self, trace: Any, **options: Any) -> AgentRun:
        """Go on with a run to its end and return the AgentRun; see ``aresume``."""
        call = Call(f"await {type(self).__name__}().aresume(...)")
        stream = AsyncRunStream(resumed(self, trace, options, call))
        return call.run(result_of(stream, raise_on_error=options.get("raise_on_error", True)))

    def resume_stream(self, trace: Any, **options: Any) -> RunStream:
        """Go on with a run and return its further events; see ``aresume`` and ``stream``."""
        call = Call(f"{type(self).__name__}().aresume_stream(...)")
        return RunStream(AsyncRunStream(resumed(self, trace, options, call)), call)

    async def aresume_stream(self, trace: Any, **options: Any) -> AsyncRunStream:
        """Go on with a run and return its further events; see ``aresume`` and ``astream``."""
        return AsyncRunStream(await aresumed(self, trace, options))

    async def aresume(self, trace: Any, **options: Any) -> AgentRun:
        """Go on with a run that waits, stopped, was cancelled or failed; return the AgentRun.

        ``trace`` is its row, its uuid or its AgentRun. The options are those of ``arun``
        that do not belong to its beginning, such as ``max_steps`` or ``limits``, which count
        from that beginning. Raises TraceNotFound, or Misused if it cannot go on.
        """
        stream = await self.aresume_stream(trace, **options)
        return await result_of(stream, raise_on_error=options.get("raise_on_error", True))

    def enqueue(self, message: Any, **options: Any) -> Trace:
        """Have some process do a run, once the transaction commits; return its trace.

        The options are those of ``run`` that can be stored, and ``run_after`` (a datetime),
        ``priority`` (the highest goes first) and ``queue``. With an ``idempotency_key`` that
        was used before, the trace is that of the run which was asked for then.
        """
        refuse_running_loop(f"await {type(self).__name__}().aenqueue(...)")
        return _enqueue().enqueue(self, message, options)  # type: ignore[no-any-return]

    async def aenqueue(self, message: Any, **options: Any) -> Trace:
        """Have some process do a run; see ``enqueue``."""
        from mlango.runtime.database import ask

        return await ask(_enqueue().enqueue, self, message, options)

    def fork(self, trace: Any, from_step: int, **options: Any) -> AgentRun:
        """Begin a new run as another one was before ``from_step``, and return it; see ``resume``.

        What the first run did up to there is not done again.
        """
        call = Call(f"await {type(self).__name__}().afork(...)")
        copy = _fork().forked(self, trace, from_step, options)
        stream = AsyncRunStream(resumed(self, copy, options, call))
        return call.run(result_of(stream, raise_on_error=options.get("raise_on_error", True)))

    async def afork(self, trace: Any, from_step: int, **options: Any) -> AgentRun:
        """Begin a new run as another one was before ``from_step``; see ``fork``."""
        from mlango.runtime.database import ask

        copy = await ask(_fork().forked, self, trace, from_step, options)
        return await self.aresume(copy, **options)

    @classmethod
    def chat(cls, message: Any, **options: Any) -> AgentRun:
        """Run an agent of this class as it is declared."""
        return cls().run(message, **options)

    # -- serving ------------------------------------------------------------------------------

    # The views lie floors above and import agents, so they are found by name at first use.

    @classmethod
    def as_endpoint(cls, **options: Any) -> Callable[..., Any]:
        """Return a view that runs the agent and answers with JSON when the run has ended.

        It asks for a login and, if given, a Django ``permission`` such as ``"shop.ask"``.
        ``authentication_classes``, ``permission_classes``, ``throttle_classes`` and
        ``throttle_scope`` are those of Django REST framework; the rest is the agent's own.
        """
        return cls._served("json", options)

    @classmethod
    def as_stream_endpoint(cls, **options: Any) -> Callable[..., Any]:
        """Return a view that answers with the run's events as they happen; see as_endpoint."""
        return cls._served("sse", options)

    @classmethod
    def as_events_endpoint(cls, **options: Any) -> Callable[..., Any]:
        """Return a view that tells the events of a run, for a route with ``<str:trace>``.

        It tells those behind the ``Last-Event-ID``, then what happens. See as_endpoint.
        """
        return cls._served("events", options)

    @classmethod
    def _served(cls, module: str, options: dict[str, Any]) -> Callable[..., Any]:
        """Return the view of a module of ``mlango.serve``."""
        endpoint: Any = import_string(f"mlango.serve.{module}.endpoint")
        policy, config = import_string("mlango.serve.policy.parted")(options)
        return endpoint(cls(**config), policy)  # type: ignore[no-any-return]

    # -- working with others ------------------------------------------------------------------

    as_tool = AsTool()

    def _colleagues(self) -> list[Tool]:
        """Return the tools that ask other agents, or hand over to them."""
        meta = self._meta
        return [
            *(tool_of(each) for each in meta.subagents),
            *(handoff_tool(each) for each in successors_of(meta)),
        ]

    @classmethod
    def as_approvals_endpoint(cls, **options: Any) -> Callable[..., Any]:
        """Return a view that lists the tool calls that wait, and takes decisions; see as_endpoint.

        A decision goes on with its run.
        """
        return cls._served("approvals", options)

    @classmethod
    def as_consumer(cls, **options: Any) -> Any:
        """Return an ASGI application for a WebSocket's route; needs Channels. See as_endpoint."""
        return cls._served("consumer", options)

    urls: ClassVar[Any] = Urls()

    # -- telling about itself -----------------------------------------------------------------

    def summary(self) -> dict[str, Any]:
        """Return what the agent is, JSON-safe: label, description, model, tools, memory."""
        meta = self._meta
        memory = meta.memory
        return {
            "agent": meta.label,
            "description": meta.description,
            "model": meta.model or "",
            "tools": [
                *(tool.name for tool in (*meta.tools, *meta.methods) if isinstance(tool, Tool)),
                *names_of_colleagues(meta),
            ],
            "memory": type(memory).__name__ if memory else "NullMemory",
            "max_steps": defaults_of(type(self)).bounds.max_steps,
            "fingerprint": meta.fingerprint(),
        }

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._fields)
        return f"<{self._meta.label}({values})>"


# All work with rows, which can be imported only once the apps are loaded.


def _enqueue() -> Any:
    from mlango.agents import enqueue

    return enqueue


def _detached() -> Any:
    from mlango.agents import detached

    return detached


def _fork() -> Any:
    from mlango.agents import fork

    return fork


def _derived(cls: type[Agent]) -> dict[str, Any]:
    """Return the options that a class has without saying so."""
    document = inspect.getdoc(cls) if cls.__doc__ else ""
    return {
        "object_name": cls.__name__,
        "app_label": _app_label(cls.__module__),
        "description": document or "",
        "verbose_name": cls.__name__,
        "methods": tuple(_collected(cls, Tool).values()),
    }


def _guarded(cls: type[Agent]) -> Options:
    """Return the options with the guardrails made that are named or given as classes."""
    # Few agents need them, and so they are imported here.
    from mlango.agents.guardrails import guardrails_of

    declared = cls._meta.guardrails
    made = guardrails_of(f"{cls.__name__}.Meta.guardrails", declared)
    return replace(cls._meta, guardrails=made)


def _typed(cls: type[Agent]) -> Options:
    """Return the options with what makes the answers of the declared type."""
    from mlango.agents.output import output_type

    return replace(cls._meta, output=output_type(cls.__name__, cls._meta.output))


def _hooked(cls: type[Agent]) -> Options:
    """Return the options with the hooks made that are given as classes."""
    from mlango.agents.hooks import hooks_of

    return replace(cls._meta, hooks=hooks_of(cls.__name__, cls._meta.hooks))


def _compacted(cls: type[Agent]) -> Options:
    """Return the options with what ``compaction = True`` means."""
    from mlango.agents.compaction import compaction_of

    return replace(cls._meta, compaction=compaction_of(cls.__name__, cls._meta.compaction))


def _app_label(module: str) -> str:
    """Return the label of the installed app that holds a module, or a guess by its name."""
    if apps.apps_ready:
        config = apps.get_containing_app_config(module)
        if config is not None:
            return config.label
    packages = module.split(".")
    if packages[-1] == "agents" and len(packages) > 1:
        return packages[-2]
    return "main" if module == "__main__" else packages[0]


def _collected(cls: type[Agent], kind: type[Any]) -> dict[str, Any]:
    """Return the class attributes of a kind, the bases' first; a None hides an inherited one."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        for name, value in vars(base).items():
            if isinstance(value, kind):
                found[name] = value
            elif name in found:
                del found[name]
    return found
