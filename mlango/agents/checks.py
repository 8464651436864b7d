"""System checks of agents: what only settings, apps or other agents can prove wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.apps import apps
from django.contrib.auth import get_permission_codename
from django.core.checks import CheckMessage, Error, Warning, register

from mlango.agents.guardrails.judge import LLMJudge
from mlango.agents.memory.null import NullMemory
from mlango.agents.providers.fallback import check_members
from mlango.agents.providers.routing import check_model
from mlango.agents.references import agent_of
from mlango.agents.requests import can_be_durable
from mlango.agents.resolve import fixed_tools
from mlango.agents.scopes import has_scope
from mlango.conf import settings
from mlango.core.options import UNSET, Options
from mlango.core.policy import approval_of
from mlango.core.provider import Provider
from mlango.core.tools import Tool
from mlango.exceptions import Misconfigured, Misused, did_you_mean
from mlango.runtime.registry import registry

TAG = "mlango"


@register(TAG)
def check_agents(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Check the options of every agent."""
    try:
        return [message for agent in registry.all() for message in _check_agent(agent)]
    except Misconfigured:  # said by the check of the settings
        return []


def _check_agent(agent: Any) -> Iterator[CheckMessage]:
    meta = agent._meta
    if meta.provider is not UNSET:
        try:
            check_members(meta.provider)
        except Misconfigured as error:
            yield Error(str(error), obj=meta.label, id="mlango.E010")
    if _rebuilds_from_traces(meta.memory):
        yield from _check_traced(meta)
    for reference in (*meta.subagents, *meta.handoffs):
        try:
            agent_of(reference)
        except (Misconfigured, Misused) as error:
            yield Error(str(error), obj=meta.label, id="mlango.E014")
    for tool in _declared_tools(meta):
        for text in tool.parameters.warnings:
            yield Warning(f"The tool {tool.name!r}: {text}", obj=meta.label, id="mlango.W012")
        yield from _check_scopes(meta, tool)
    yield from _check_rules(agent)
    yield from _check_durable(agent)
    yield from _check_quotas(meta)
    yield from _check_asked(meta)


def _declared_tools(meta: Options) -> list[Tool]:
    return [each for each in (*meta.tools, *meta.methods) if isinstance(each, Tool)]


def _check_scopes(meta: Options, tool: Tool) -> Iterator[CheckMessage]:
    for reference in tool.parameters.references.values():
        if not has_scope(reference.model):
            name = reference.model.__name__
            yield Warning(
                f"The tool {tool.name!r} takes rows of {name}, which only staff may touch.",
                hint=f"Say in a scopes.py which rows a user may touch: @scope({name}).",
                obj=meta.label,
                id="mlango.W013",
            )


def _rebuilds_from_traces(memory: Any) -> bool:
    kind = memory if isinstance(memory, type) else type(memory)
    return kind is not NullMemory and kind.__name__ == "MetastoreMemory"


def _check_traced(meta: Options) -> Iterator[CheckMessage]:
    tracing = settings.TRACING if meta.tracing is UNSET else meta.tracing
    content = meta.capture_content
    if not tracing:
        yield Error(
            "MetastoreMemory remembers nothing without tracing.",
            hint="Set Meta.tracing = True, or use BufferMemory.",
            obj=meta.label,
            id="mlango.E011",
        )
    elif not (settings.CAPTURE_CONTENT if content is UNSET else content):
        yield Error(
            "MetastoreMemory remembers nothing without the content of traces.",
            hint="Set Meta.capture_content = True, or use BufferMemory.",
            obj=meta.label,
            id="mlango.E013",
        )


def _check_rules(agent: Any) -> Iterator[CheckMessage]:
    """Warn of rules that fit no tool. Those of a base serve its other agents, too."""
    names = _names_of_tools(agent)
    if names is None:
        return
    bases = [vars(base)["_meta"] for base in agent.__mro__[1:] if "_meta" in vars(base)]
    inherited = {rule for base in bases for rule in base.permissions}
    for rule in agent._meta.permissions:
        if rule not in inherited and not any(map(rule.covers, names)):
            yield Warning(
                f"The rule {rule.effect}({rule.pattern!r}) fits no tool."
                f"{did_you_mean(rule.pattern, names)}",
                hint=f"Tools are: {', '.join(names) or 'none'}.",
                obj=agent._meta.label,
                id="mlango.W016",
            )


def _names_of_tools(agent: Any) -> tuple[str, ...] | None:
    """Return the names of an agent's tools; None where only a run can know them."""
    try:
        tools = fixed_tools(agent())
    except (Misconfigured, Misused, TypeError):  # it takes arguments, or another check tells
        return None
    return None if tools is None else tools.names


def _check_durable(agent: Any) -> Iterator[CheckMessage]:
    meta = agent._meta
    if (meta.durable or meta.schedule) and not can_be_durable(agent):
        option = "durable" if meta.durable else "schedule"
        yield Error(
            f"Meta.{option} needs traces and their content, which are switched off.",
            hint="Set Meta.tracing and Meta.capture_content to True.",
            obj=meta.label,
            id="mlango.E017",
        )


def _check_quotas(meta: Options) -> Iterator[CheckMessage]:
    if any(quota.per == "tenant" for quota in meta.quotas) and not settings.TENANT:
        yield Error(
            "A quota per tenant needs MLANGO['TENANT'], which is not set.",
            hint="Set it to the path of a function of the Context that returns the tenant's key.",
            obj=meta.label,
            id="mlango.E018",
        )


def _check_asked(meta: Options) -> Iterator[CheckMessage]:
    for who, model, provider in _asked(meta):
        try:
            check_model(model, provider)
        except Misconfigured as error:
            yield Error(f"{who}: {error}", obj=meta.label, id="mlango.E019")


def _asked(meta: Options) -> Iterator[tuple[str, str, str | Provider | None]]:
    """Yield the models that an agent asks beside its own: for what, which, and of whom."""
    for model in meta.fallback_models:
        yield f"The fallback model {model!r}", model, None
    for guardrail in meta.guardrails:
        if isinstance(guardrail, LLMJudge) and (guardrail.model or guardrail.provider):
            yield "LLMJudge", guardrail.model, guardrail.provider
    summarizer = getattr(meta.compaction, "summarizer", None)
    if isinstance(summarizer, str):
        yield "The summarizer", summarizer, None


# -- permissions ----------------------------------------------------------------------------


@register(TAG)
def check_permissions(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Warn of permissions that ``migrate`` makes for no model."""
    declared = _declared_permissions()
    return [
        Warning(
            f"{who} needs the permission {permission!r}, which no model declares."
            f"{did_you_mean(permission, declared)}",
            hint="Only superusers have it. Add it to Meta.permissions of a model, or silence "
            "this if code of your own makes it.",
            obj=agent._meta.label,
            id="mlango.W015",
        )
        for agent in registry.all()
        for who, permission in _needed(agent._meta)
        if permission and permission not in declared
    ]


def _declared_permissions() -> set[str]:
    """Return what ``migrate`` makes rows of, which may be missing yet."""
    return {
        f"{meta.app_label}.{codename}"
        for meta in (model._meta for model in apps.get_models())
        for codename in (
            *(get_permission_codename(action, meta) for action in meta.default_permissions),
            *(codename for codename, _ in meta.permissions),
        )
    }


def _needed(meta: Options) -> Iterator[tuple[str, str]]:
    """Yield what of an agent needs a permission, and which; an empty one is none."""
    yield "The agent", meta.permission
    for tool in _declared_tools(meta):
        yield f"The tool {tool.name!r}", tool.permission or ""
        approval = approval_of(tool.approval)
        yield f"The approval of the tool {tool.name!r}", approval.permission if approval else ""
