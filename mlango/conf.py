"""The settings: ``MLANGO`` in Django's settings over DEFAULTS.

``MLANGO_<KEY>`` in the environment overrides a key that holds one plain value. A value is
kept once it was read and checked, until the settings change.
"""

from __future__ import annotations

import os
import re
from typing import Any

from django.conf import settings as django_settings
from django.core.signals import setting_changed

from mlango.exceptions import Misconfigured, did_you_mean

MIB = 1024 * 1024
SECRETS = "secrets"  # what REDACT calls keys and passwords

DEFAULTS: dict[str, Any] = {
    # Models
    "DEFAULT_PROVIDER": "litellm",
    "DEFAULT_AGENT_MODEL": "",
    "PROVIDERS": {},
    "MODELS": {},
    "PRICES": {},
    "DEFAULT_THINKING": None,
    # One run
    "AGENT_MAX_STEPS": 12,
    "AGENT_TIMEOUT": 600,
    "LLM_TIMEOUT": 120,
    "LLM_CHUNK_TIMEOUT": 60,
    "LLM_MAX_RETRIES": 3,
    "LLM_RETRY_BASE_DELAY": 1.0,
    "LLM_RETRY_MAX_ELAPSED": None,
    # Tools
    "MAX_PARALLEL_TOOLS": 8,
    "MAX_GLOBAL_TOOLS": 64,
    "MAX_SYNC_THREAD_WORKERS": 32,
    "TOOL_TIMEOUT": 120,
    "TOOL_QUEUE_TIMEOUT": 30,
    "MAX_TOOL_ARGS_CHARS": 20_000,
    "MAX_TOOL_OUTPUT_CHARS": 20_000,
    "COMPACT_TOOL_SCHEMAS": False,
    # Sizes
    "MAX_MESSAGE_HISTORY_CHARS": 200_000,
    "MAX_INPUT_CHARS": 100_000,
    "MAX_FILES": 10,
    "MAX_FILE_BYTES": 25 * MIB,
    "MAX_REQUEST_BYTES": 50 * MIB,
    "MAX_HTTP_BODY_BYTES": 80 * MIB,
    "MAX_FRAME_BYTES": MIB,
    "MAX_ARTIFACTS": 10,
    "MAX_ARTIFACT_BYTES": 50 * MIB,
    "MAX_TOTAL_ARTIFACT_BYTES": 100 * MIB,
    # Serving
    "MAX_CONCURRENT_REQUESTS": None,
    "MAX_QUEUE_BACKLOG": 0,
    "REQUEST_QUEUE_TIMEOUT": 5.0,
    "MAX_STREAMS_PER_USER": 50,
    "MAX_STREAMS_PER_IP": 500,
    "STREAM_SEND_TIMEOUT": 60,
    # Traces
    "TRACING": True,
    "TRACE_WRITES": "behind",
    "CAPTURE_CONTENT": True,
    "REDACT": [SECRETS],
    "RETENTION": None,
    "LEASE_SECONDS": 30,
    "SESSION_WAIT": 30.0,
    # Durable runs
    "QUEUE": "worker",
    # Serving
    "API_BEARER_TOKENS": [],
    "CORS_ORIGINS": [],
    "CORS_ALLOW_CREDENTIALS": False,
    "PUBLIC_URL": "",
    # Quotas
    "TENANT": "",
}

CHOICES = {"TRACE_WRITES": ("behind", "step")}
# Keys whose None means "no bound" and whose numbers must be above zero.
BOUNDS = (
    "AGENT_MAX_STEPS",
    "AGENT_TIMEOUT",
    "LLM_TIMEOUT",
    "LLM_CHUNK_TIMEOUT",
    "LLM_RETRY_MAX_ELAPSED",
    "MAX_GLOBAL_TOOLS",
    "TOOL_TIMEOUT",
    "MAX_TOOL_ARGS_CHARS",
    "MAX_TOOL_OUTPUT_CHARS",
    "MAX_MESSAGE_HISTORY_CHARS",
    "MAX_INPUT_CHARS",
    "MAX_FILES",
    "MAX_FILE_BYTES",
    "MAX_REQUEST_BYTES",
    "MAX_HTTP_BODY_BYTES",
    "MAX_FRAME_BYTES",
    "MAX_ARTIFACTS",
    "MAX_ARTIFACT_BYTES",
    "MAX_TOTAL_ARTIFACT_BYTES",
    "RETENTION",
    "MAX_CONCURRENT_REQUESTS",
    "MAX_STREAMS_PER_USER",
    "MAX_STREAMS_PER_IP",
    "STREAM_SEND_TIMEOUT",
)
# These cannot be switched off.
COUNTS = ("MAX_PARALLEL_TOOLS", "MAX_SYNC_THREAD_WORKERS", "LEASE_SECONDS")
# Zero is a meaning of its own here: no retry, no delay, no waiting.
AMOUNTS = (
    "LLM_MAX_RETRIES",
    "LLM_RETRY_BASE_DELAY",
    "TOOL_QUEUE_TIMEOUT",
    "MAX_QUEUE_BACKLOG",
    "REQUEST_QUEUE_TIMEOUT",
    "SESSION_WAIT",
)
FRACTIONS = {
    "AGENT_TIMEOUT",
    "LLM_TIMEOUT",
    "LLM_CHUNK_TIMEOUT",
    "LLM_RETRY_BASE_DELAY",
    "LLM_RETRY_MAX_ELAPSED",
    "TOOL_TIMEOUT",
    "TOOL_QUEUE_TIMEOUT",
    "REQUEST_QUEUE_TIMEOUT",
    "SESSION_WAIT",
    "STREAM_SEND_TIMEOUT",
    "LEASE_SECONDS",
    "RETENTION",
}


class Settings:
    """Attributes are keys of DEFAULTS: ``settings.AGENT_MAX_STEPS``."""

    def __init__(self) -> None:
        self._source: Any = None
        self._copy: dict[str, Any] = {}
        self._version = 0

    def __getattr__(self, key: str) -> Any:
        if key not in DEFAULTS:
            raise AttributeError(f"mlango has no setting {key!r}.{did_you_mean(key, DEFAULTS)}")
        if f"MLANGO_{key}" in os.environ:
            value = from_environment(key)
        else:
            value = given().get(key, DEFAULTS[key])
            problem = problem_with(key, value)
            if problem:
                raise Misconfigured(problem)
        self.__dict__[key] = value
        return value

    def version(self) -> int:
        """Return a number that is another one after each change, however it was made."""
        source = getattr(django_settings, "MLANGO", None)
        if source is not self._source or source != self._copy:
            self.reload()
            self._source, self._copy = source, dict(given())
        return self._version

    def reload(self) -> None:
        """Forget what was read, so that it is read anew."""
        for key in DEFAULTS:
            self.__dict__.pop(key, None)
        self._version += 1


def given() -> dict[str, Any]:
    """Return what the settings of the project say. Raises Misconfigured."""
    value = getattr(django_settings, "MLANGO", {})
    if isinstance(value, dict):
        return value
    raise Misconfigured(f"The setting MLANGO must be a dict, not {value!r}.")


def from_environment(key: str) -> Any:
    """Return the value of ``MLANGO_<key>``, of the type of the default."""
    name, text = f"MLANGO_{key}", os.environ[f"MLANGO_{key}"]
    if isinstance(DEFAULTS[key], dict):
        raise Misconfigured(
            f"The environment variable {name} cannot hold a dict. Unset it, and set "
            f"MLANGO[{key!r}] in the settings."
        )
    value = _parsed(key, text)
    problem = problem_with(key, value)
    if problem:
        raise Misconfigured(f"The environment variable {name} is {text!r}. {problem}")
    return value


def _parsed(key: str, text: str) -> Any:
    default = DEFAULTS[key]
    word = text.strip()
    if isinstance(default, str):
        return word
    if isinstance(default, list):
        return [item.strip() for item in word.split(",") if item.strip()]
    if isinstance(default, bool):
        return {"1": True, "true": True, "yes": True, "on": True}.get(
            word.lower(),
            {"0": False, "false": False, "no": False, "off": False}.get(word.lower(), text),
        )
    if word.lower() in ("none", ""):
        return None
    try:
        return float(word) if key in FRACTIONS else int(word)
    except ValueError:
        return text


def problem_with(key: str, value: Any) -> str:
    """Return what is wrong with a value, or an empty string."""
    default = DEFAULTS[key]
    want = ""
    if key in CHOICES:
        if value not in CHOICES[key]:
            want = f"one of {', '.join(map(repr, CHOICES[key]))}"
    elif isinstance(default, bool):
        want = "" if isinstance(value, bool) else "True or False"
    elif isinstance(default, str):
        want = "" if isinstance(value, str) else "a string"
    elif isinstance(default, dict):
        want = "" if isinstance(value, dict) else "a dict"
    elif isinstance(default, list):
        if not isinstance(value, list | tuple):
            # Not the value, which may be a secret that was not put into a list.
            return f"MLANGO[{key!r}] must be a list, not a {type(value).__name__}."
        if key == "REDACT":
            return next(filter(None, map(_problem_with_pattern, value)), "")
    elif key in BOUNDS:
        if value is not None and not (_is_number(key, value) and value > 0):
            want = "a number above 0, or None for no bound"
    elif key in COUNTS:
        want = "" if _is_number(key, value) and value > 0 else "a number above 0"
    elif key in AMOUNTS:
        want = "" if _is_number(key, value) and value >= 0 else "a number from 0"
    return f"MLANGO[{key!r}] must be {want}, not {value!r}." if want else ""


def _problem_with_pattern(item: Any) -> str:
    """Return what is wrong with an item of REDACT, or an empty string."""
    head = f"MLANGO['REDACT'] holds {item!r}"
    if item == SECRETS:
        return ""
    if isinstance(item, str) and item.isalpha():  # rather a misspelt name than a pattern
        return f"{head}; write {SECRETS!r}, or a regular expression such as r'\\b{item}\\b'."
    try:
        matches_nothing = re.compile(item).search("")
    except (TypeError, ValueError, re.error) as error:
        return f"{head}, which is no regular expression: {error}."
    if matches_nothing:
        return (
            f"{head}, which finds the empty text everywhere; have it match one character or more."
        )
    return ""


def _is_number(key: str, value: Any) -> bool:
    kinds = (int, float) if key in FRACTIONS else (int,)
    return isinstance(value, kinds) and not isinstance(value, bool)


settings = Settings()


def _reload(*, setting: str, **kwargs: Any) -> None:
    if setting == "MLANGO":
        settings.reload()


setting_changed.connect(_reload, dispatch_uid="mlango.conf")
