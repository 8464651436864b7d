"""What holds for every run of an agent: its options over the settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.apps import apps

from mlango.conf import settings
from mlango.core.options import UNSET, Bounds, Options
from mlango.core.retry import Retry

if TYPE_CHECKING:
    from mlango.agents.agent import Agent


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a run of an agent has unless it is told otherwise."""

    meta: Options
    version: int
    bounds: Bounds
    request_options: dict[str, Any]
    is_traced: bool
    capture_content: bool


def defaults_of(kind: type[Agent]) -> Defaults:
    """Return the defaults of a class of agents, made anew when the settings have changed."""
    known: Defaults | None = vars(kind).get("_defaults")
    version = settings.version()
    if known is None or known.version != version or known.meta is not kind._meta:
        known = _made(kind._meta, version)
        kind._defaults = known
    return known


def _made(meta: Options, version: int) -> Defaults:
    return Defaults(
        meta=meta,
        version=version,
        bounds=resolved_bounds(meta),
        request_options=_request_options(meta),
        is_traced=set_or(meta.tracing, settings.TRACING) and apps.is_installed("mlango"),
        capture_content=set_or(meta.capture_content, settings.CAPTURE_CONTENT),
    )


def resolved_bounds(meta: Options) -> Bounds:
    """Return the bounds of an agent's runs."""
    retry = meta.retry or Retry()
    return Bounds(
        max_steps=set_or(meta.max_steps, settings.AGENT_MAX_STEPS),
        run_timeout=settings.AGENT_TIMEOUT,
        model_timeout=settings.LLM_TIMEOUT,
        chunk_timeout=settings.LLM_CHUNK_TIMEOUT,
        max_retries=given_or(retry.max_retries, settings.LLM_MAX_RETRIES),
        retry_base_delay=given_or(retry.base_delay, settings.LLM_RETRY_BASE_DELAY),
        retry_max_delay=given_or(retry.max_delay, Bounds().retry_max_delay),
        retry_max_elapsed=given_or(retry.max_elapsed, settings.LLM_RETRY_MAX_ELAPSED),
        max_parallel_tools=set_or(meta.max_parallel_tools, settings.MAX_PARALLEL_TOOLS),
        tool_timeout=settings.TOOL_TIMEOUT,
        tool_queue_timeout=settings.TOOL_QUEUE_TIMEOUT,
        max_tool_args_chars=settings.MAX_TOOL_ARGS_CHARS,
        max_tool_output_chars=settings.MAX_TOOL_OUTPUT_CHARS,
        max_history_chars=settings.MAX_MESSAGE_HISTORY_CHARS,
        max_artifacts=settings.MAX_ARTIFACTS,
        max_artifact_bytes=settings.MAX_ARTIFACT_BYTES,
        max_total_artifact_bytes=settings.MAX_TOTAL_ARTIFACT_BYTES,
    )


def _request_options(meta: Options) -> dict[str, Any]:
    declared = {
        "max_tokens": meta.max_tokens,
        "temperature": meta.temperature,
        "stop_sequences": list(meta.stop_sequences) or None,
        "thinking": set_or(meta.thinking, settings.DEFAULT_THINKING),
        "effort": meta.effort,
    }
    return {name: value for name, value in declared.items() if value is not None}


def given_or(value: Any, otherwise: Any) -> Any:
    """Return a value, or ``otherwise`` where it is None."""
    return otherwise if value is None else value


def set_or(value: Any, otherwise: Any) -> Any:
    """Return the value of an option, or ``otherwise`` where it was not set."""
    return otherwise if value is UNSET else value
