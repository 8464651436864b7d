"""System checks: what ``manage.py check`` says about settings and agents."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any, cast

from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db import connections
from django.utils.module_loading import import_string

from mlango.agents.checks import TAG
from mlango.agents.durability import digest_of
from mlango.agents.prices import rates_of
from mlango.agents.providers.fallback import check_members
from mlango.agents.queues import get_queue
from mlango.agents.resolve import fixed_tools
from mlango.conf import DEFAULTS, problem_with
from mlango.conf import settings as mlango_settings
from mlango.exceptions import Misconfigured, Misused, UnknownAgent, did_you_mean
from mlango.models import Approval
from mlango.runtime import database
from mlango.runtime.registry import registry


@register(TAG)
def check_settings(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Check the keys and values of MLANGO and of MLANGO_… in the environment."""
    given = getattr(django_settings, "MLANGO", {})
    if not isinstance(given, dict):
        return [Error("The setting MLANGO must be a dict.", obj="MLANGO", id="mlango.E001")]
    return [*_check_keys(given), *_check_environment(), *_check_sizes(given)]


def _check_keys(given: dict[Any, Any]) -> Iterator[CheckMessage]:
    for key, value in given.items():
        if key not in DEFAULTS:
            yield Error(
                f"MLANGO has no key {key!r}.{did_you_mean(key, DEFAULTS)}",
                hint=f"Keys are: {', '.join(sorted(DEFAULTS))}.",
                obj="MLANGO",
                id="mlango.E002",
            )
        elif problem := problem_with(key, value):
            yield Error(problem, obj="MLANGO", id="mlango.E003")


def _check_environment() -> Iterator[CheckMessage]:
    for key in DEFAULTS:
        if f"MLANGO_{key}" in os.environ:
            try:
                getattr(mlango_settings, key)
            except Misconfigured as error:
                yield Error(str(error), obj=f"MLANGO_{key}", id="mlango.E003")


def _check_sizes(given: dict[Any, Any]) -> Iterator[CheckMessage]:
    names = ("MAX_FILE_BYTES", "MAX_REQUEST_BYTES", "MAX_HTTP_BODY_BYTES")
    values = [given.get(name, DEFAULTS[name]) for name in names]
    numbers = [value for value in values if isinstance(value, int)]
    if numbers != sorted(numbers):
        yield Error(
            f"MLANGO sizes must not shrink: {' ≤ '.join(names)}.",
            hint=f"They are {', '.join(map(str, values))}.",
            obj="MLANGO",
            id="mlango.E004",
        )


@register(TAG)
def check_models(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Check what the settings say of providers, models and prices."""
    if check_settings(None):  # nothing can be read where a value cannot be
        return []
    return [
        *_check_providers(),
        *_check_model_names(),
        *_check_prices(),
        *_check_queue(),
        *_check_tenant(),
    ]


def _check_providers() -> Iterator[CheckMessage]:
    aliases = [*mlango_settings.PROVIDERS]
    # The default of a site that says nothing may be a package that it does not need.
    if mlango_settings.DEFAULT_PROVIDER not in (*aliases, DEFAULTS["DEFAULT_PROVIDER"]):
        aliases.append(mlango_settings.DEFAULT_PROVIDER)
    for alias in aliases:
        try:
            check_members(alias)
        except Misconfigured as error:
            yield Error(str(error), obj="MLANGO", id="mlango.E005")


def _check_model_names() -> Iterator[CheckMessage]:
    for name, model in mlango_settings.MODELS.items():
        if not (name and isinstance(name, str) and model and isinstance(model, str)):
            yield Error(
                f"MLANGO['MODELS'][{name!r}] must be 'provider/model', not {model!r}.",
                hint="Both the name and what it stands for are strings.",
                obj="MLANGO",
                id="mlango.E006",
            )


def _check_prices() -> Iterator[CheckMessage]:
    for key, given in mlango_settings.PRICES.items():
        try:
            rates_of(key, given)
        except Misconfigured as error:
            yield Error(
                str(error),
                hint='Such as {"openai/gpt-5-mini": {"input": 0.25, "output": 2}}.',
                obj="MLANGO",
                id="mlango.E007",
            )


def _check_queue() -> Iterator[CheckMessage]:
    try:
        get_queue()
    except Misconfigured as error:
        yield Error(str(error), obj="MLANGO", id="mlango.E008")


def _check_tenant() -> Iterator[CheckMessage]:
    path = mlango_settings.TENANT
    try:
        found = import_string(path) if path else _check_tenant
    except ImportError:
        found = None
    if not callable(found):
        yield Error(
            f"MLANGO['TENANT'] is {path!r}, which is not the path of a function.",
            hint="It names one that takes a Context and returns the tenant's key.",
            obj="MLANGO",
            id="mlango.E009",
        )


@register(TAG)
def check_database(app_configs: Any, databases: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """Warn of a SQLite file without WAL and IMMEDIATE: concurrent runs would lock it."""
    return [
        Warning(
            f"SQLite database {alias!r} has no WAL journal and IMMEDIATE transactions.",
            hint=(
                'Set OPTIONS = {"transaction_mode": "IMMEDIATE", "timeout": 20, '
                '"init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;"}.'
            ),
            obj=alias,
            id="mlango.W020",
        )
        for alias, database in _databases().items()
        if database.get("ENGINE", "").endswith(".sqlite3")
        and ":memory:" not in str(database.get("NAME", ""))
        and not _is_concurrent(database.get("OPTIONS", {}))
    ]


def _databases() -> dict[str, dict[str, Any]]:
    return cast("dict[str, dict[str, Any]]", django_settings.DATABASES)


def _is_concurrent(options: dict[str, Any]) -> bool:
    return (
        str(options.get("transaction_mode", "")).upper() == "IMMEDIATE"
        and "wal" in str(options.get("init_command", "")).lower()
    )


@register(Tags.database)
def check_parked(
    app_configs: Any, databases: Iterable[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """Warn of runs that wait for a decision about a tool that changed since, or is gone.

    Like all checks that ask a database, it is made by ``check --database`` and ``migrate``.
    """
    alias = database.alias()
    table = Approval._meta.db_table
    if alias not in (databases or ()):
        return []
    if table not in connections[alias].introspection.table_names():
        return []
    asked = Approval.objects.using(alias).filter(status=Approval.Status.PENDING)
    tools = asked.exclude(tool_digest="").order_by("agent", "tool")
    found = tools.values_list("agent", "tool", "tool_digest").distinct()
    return [message for each in found for message in _check_parked(*each)]


def _check_parked(label: str, name: str, digest: str) -> Iterator[CheckMessage]:
    if problem := _what_is_wrong(label, name, digest):
        yield Warning(
            f"Runs wait for a decision about the tool {name!r}, but {problem}.",
            hint=f"See them with: manage.py approvals list --agent {label}",
            obj=label,
            id="mlango.W021",
        )


def _what_is_wrong(label: str, name: str, digest: str) -> str:
    """Return what has become of a tool since somebody was asked about it."""
    try:
        tools = fixed_tools(registry.get(label)())
    except (UnknownAgent, Misused, TypeError):  # TypeError: it takes arguments
        return (
            "" if label in {agent._meta.label for agent in registry.all()} else "its agent is gone"
        )
    if tools is None:
        return ""
    tool = tools.get(name)
    if tool is None:
        return "it is gone"
    return "" if digest_of(tool) == digest else "it has changed"
