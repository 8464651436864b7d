"""From an agent and the arguments of ``run`` to a Run with all that it needs."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.conf import settings as django_settings

from mlango.agents.approvals import ask_question
from mlango.agents.arguments import RUN_OPTIONS, check_options
from mlango.agents.controls import controls_for
from mlango.agents.defaults import Defaults, defaults_of, set_or
from mlango.agents.memory.null import NullMemory
from mlango.agents.prices import price, warm
from mlango.agents.providers.routing import chain
from mlango.agents.requests import durable_journal, is_durable, new_row
from mlango.agents.scopes import fetch
from mlango.agents.surroundings import surround
from mlango.conf import settings
from mlango.core.context import Context
from mlango.core.journal import Journal
from mlango.core.memory import Memory, SessionKey, owner_key
from mlango.core.messages import content_parts, received, text_of, user_messages
from mlango.core.options import Bounds, Options
from mlango.core.provider import Message
from mlango.core.run import Run
from mlango.core.threads import in_thread
from mlango.core.tools import Tool, Toolbox, Toolset
from mlango.exceptions import Misused
from mlango.runtime.sync import Call, close_own_thread, own_thread

if TYPE_CHECKING:
    from mlango.agents.agent import Agent

NO_TOOLS = Toolbox()  # before those of the run are known


def run_for(
    agent: Agent,
    message: Any,
    options: dict[str, Any],
    call: Call | None = None,
    lead: Run | None = None,
    is_resumed: bool = False,
    journal: Journal | None = None,
) -> Run:
    """Return the Run that ``agent.run(message, **options)`` means; raise Misused early.

    ``lead`` is the run that it works for. A ``journal`` is that of a run which has rows.
    """
    check_options(type(agent).__name__, options)
    extra = {name: value for name, value in options.items() if name not in RUN_OPTIONS}
    given = {name: options.get(name) for name in RUN_OPTIONS}
    said = user_messages(message, given["images"], given["files"])
    check_input(said)
    meta = agent._meta
    defaults = defaults_of(type(agent))
    user = given["user"] or _user_of(given["request"])
    memory, key = _memory(agent, given, user)
    session = _session_key(meta, given, user)
    journal = journal or _journal(agent, defaults, lead, said, given | {"user": user}, extra)
    run = Run(
        label=meta.label,
        agent=agent,
        provider=None,  # type: ignore[arg-type]  # set below, or when the run begins
        model="",
        said=said,
        toolbox=NO_TOOLS,
        bounds=_bounds(defaults, given),
        request_options=_request_options(defaults, extra),
        journal=journal,
        memory=memory,
        memory_key=key,
        turn=_turn(session),
        price=price,
        fetch=fetch,
        history=_history(given["history"]),
        disclose_errors=_disclose(meta),
        capture_content=defaults.capture_content and (lead is None or lead.capture_content),
        steering_mode=meta.steering_mode,
        follow_up_mode=meta.follow_up_mode,
        user=user,
        request=given["request"],
        state={} if given["state"] is None else given["state"],
        session_id=lead.session_id if lead else given["session_id"] or "",
        metadata=dict(given["metadata"] or {}),
        parent=lead.uuid if lead else None,
        lead=lead,
        options=given,
        is_resumed=is_resumed,
        is_buffered=_is_buffered(given, lead),
        is_durable=journal.saves,
    )
    bind(run, agent, given, session)
    # Which controls there are may not be known yet, but whether any could hear.
    run.is_heard = not (agent._meta.guardrails or agent._meta.hooks or run.controls.hear)
    place(run, call)
    return run


def _bounds(defaults: Defaults, given: dict[str, Any]) -> Bounds:
    """Return what bounds a run."""
    steps = given["max_steps"]
    return defaults.bounds if steps is None else replace(defaults.bounds, max_steps=steps)


def check_input(said: list[Message]) -> None:
    """Raise Misused for a message that is too long or has too many or too large files."""
    chars = sum(len(text_of(message.get("content"))) for message in said)
    if settings.MAX_INPUT_CHARS is not None and chars > settings.MAX_INPUT_CHARS:
        raise Misused(
            f"The message has {chars} characters, more than {settings.MAX_INPUT_CHARS} "
            f"(MAX_INPUT_CHARS)."
        )
    files = [part for m in said for part in content_parts(m.get("content")) if _data(part)]
    if settings.MAX_FILES is not None and len(files) > settings.MAX_FILES:
        raise Misused(
            f"The message has {len(files)} files, more than {settings.MAX_FILES} (MAX_FILES)."
        )
    sizes = [len(_data(part)) * 3 // 4 for part in files]
    for name, size in (
        ("MAX_FILE_BYTES", max(sizes, default=0)),
        ("MAX_REQUEST_BYTES", sum(sizes)),
    ):
        limit = getattr(settings, name)
        if limit is not None and size > limit:
            raise Misused(f"The message's files have {size} bytes, more than {limit} ({name}).")


def _data(part: dict[str, Any]) -> str:
    """Return the base64 text of an inline image or file, or an empty string."""
    inline = part.get("image_url") or part.get("file") or {}
    url = inline if isinstance(inline, str) else inline.get("url") or inline.get("file_data") or ""
    return url.partition(";base64,")[2]


def _user_of(request: Any) -> Any:
    user = getattr(request, "user", None)
    return user if user is not None and user.is_authenticated else None


def _memory(
    agent: Agent, given: dict[str, Any], user: Any
) -> tuple[Memory | None, SessionKey | None]:
    memory = given["memory"] or set_or(agent._meta.memory, None)
    if isinstance(memory, type):
        memory = memory()
    if not given["session_id"] or given["history"] is not None:
        return None, None
    if memory is None or isinstance(memory, NullMemory):
        return None, None
    return memory, SessionKey(agent._meta.label, owner_key(user), given["session_id"])


def _session_key(meta: Options, given: dict[str, Any], user: Any) -> SessionKey | None:
    """Return the key of the session whose rows are kept; None without one."""
    if not given["session_id"] or not apps.is_installed("mlango"):
        return None
    return SessionKey(meta.label, owner_key(user), given["session_id"])


def _turn(key: SessionKey | None) -> Any:
    """Return what keeps a session to one run at a time."""
    if key is None:
        return None
    # Rows can be imported only once the apps are loaded.
    from mlango.runtime.sessions import SessionTurn

    return SessionTurn(key)


def _is_buffered(given: dict[str, Any], lead: Run | None) -> bool:
    """Return whether answers are held back until they are complete, here or by the lead."""
    return bool(given["buffered"]) or (lead is not None and lead.is_buffered)


def _history(history: Any) -> list[Message]:
    return [] if history is None else received(history)


def _request_options(defaults: Defaults, extra: dict[str, Any]) -> dict[str, Any]:
    if not extra:
        return defaults.request_options
    options = defaults.request_options | extra
    return {name: value for name, value in options.items() if value is not None}


def _disclose(meta: Options) -> bool:
    return meta.disclose_errors or bool(django_settings.DEBUG)


def _journal(
    agent: Agent,
    defaults: Defaults,
    lead: Run | None,
    said: list[Message],
    given: dict[str, Any],
    extra: dict[str, Any],
) -> Journal:
    if lead is not None and lead.journal.saves:
        return durable_journal(lead=lead.journal)
    if lead is None and is_durable(agent, given):
        return durable_journal(new=new_row(agent, said, given, extra, here=True))
    if not defaults.is_traced or (lead is not None and not lead.journal.writes):
        return Journal()
    # Rows can be imported only once the apps are loaded.
    from mlango.runtime.journal import RowJournal

    return RowJournal()


def bind(run: Run, agent: Agent, given: dict[str, Any], session: SessionKey | None) -> None:
    """Set prompt, tools, model and provider: now where they are fixed, else at the start."""
    kind = type(agent)
    base = _base()
    dynamic = [
        name
        for name in ("get_system", "get_tools", "get_model")
        if getattr(kind, name) is not getattr(base, name)
    ]
    overridden = {"model": given["model"], "provider": given["provider"]}
    if not dynamic and not any(isinstance(item, Toolset) for item in agent._meta.tools):
        run.system = agent.get_system()
        run.toolbox = _toolbox(agent)
        _set_model(run, agent.get_model(), overridden)
        run.controls = controls_for(run, given, session)
        return

    async def prepare(run: Run) -> None:
        run.system = str(await _asked(agent.get_system, run) or "")
        tools = [*await _asked(agent.get_tools, run), *_own_tools(agent)]
        run.toolbox = await Toolbox.collect(tools, Context(run))
        _set_model(run, await _asked(agent.get_model, run), overridden)
        run.controls = controls_for(run, given, session)

    run.resolve = prepare


def fixed_tools(agent: Agent) -> Toolbox | None:
    """Return the tools of an agent's runs; None where each run has its own."""
    is_own = type(agent).get_tools is not _base().get_tools
    if is_own or any(isinstance(item, Toolset) for item in agent._meta.tools):
        return None
    return _toolbox(agent)


def _base() -> type[Agent]:
    from mlango.agents.agent import Agent  # it imports this module

    return Agent


def _own_tools(agent: Agent) -> list[Tool]:
    """Return the tools that the agent's options bring, whatever get_tools() returns."""
    meta = agent._meta
    return [
        *([ask_question] if meta.ask_question else []),
        *agent._colleagues(),
        *([meta.output.tool] if meta.output else []),
    ]


def _toolbox(agent: Agent) -> Toolbox:
    """Return the agent's tools, put together once per instance or, without methods, class."""
    holder = agent if agent._tool_methods else type(agent)
    toolbox = vars(holder).get("_toolbox")
    if toolbox is None:
        toolbox = Toolbox([*agent.get_tools(), *_own_tools(agent)])
        type.__setattr__(holder, "_toolbox", toolbox) if isinstance(holder, type) else setattr(
            holder, "_toolbox", toolbox
        )
    return toolbox


def _set_model(run: Run, declared: Any, overridden: dict[str, Any]) -> None:
    model = overridden["model"] or declared or settings.DEFAULT_AGENT_MODEL
    provider = overridden["provider"] or set_or(run.agent._meta.provider, None)
    found = chain(model, provider)
    # Who names a provider for a run wants no other.
    for other in () if overridden["provider"] else run.agent._meta.fallback_models:
        found += chain(other)
    if not all(chosen.is_free for chosen, _ in found):
        warm()
    (run.provider, run.model), *others = [(each.for_run(run), name) for each, name in found]
    run.fallbacks = tuple(others)


async def _asked(method: Any, run: Run) -> Any:
    """Call a method that may be async, may take the Context, and may block."""
    arguments = (Context(run),) if inspect.signature(method).parameters else ()
    if inspect.iscoroutinefunction(method):
        return await method(*arguments)
    return await in_thread(method, *arguments)


def place(run: Run, call: Call | None = None) -> None:
    """Give the run the thread for its blocking work: its lead's, the waiting caller's, its own."""
    if run.lead is not None:
        run.context, run.surroundings = run.lead.context, run.lead.surroundings
        return
    if call is not None:
        run.context = call.context.copy()
    surround(run)
    if call is not None:
        return
    sensitive = own_thread(run.context)

    async def release(run: Run) -> None:
        await close_own_thread(sensitive, wait=not run.stray)

    run.release = release
