"""What an agent declares (``Meta`` → ``_meta``) and what bounds its runs."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from hashlib import sha256
from typing import Any

from mlango.core.durability import Durable
from mlango.core.limits import Limits
from mlango.core.policy import Rule, is_permission, rules_of
from mlango.core.quota import Quota
from mlango.core.retry import Retry
from mlango.core.values import dumps
from mlango.exceptions import Misconfigured, did_you_mean

EFFORTS = ("low", "medium", "high", "xhigh", "max")
THINKING = ("adaptive", "off", "minimal", *EFFORTS)
STEERING_MODES = ("one-at-a-time", "all")


def _described(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_described(item) for item in value]
    if hasattr(value, "to_schema"):
        return value.to_schema()
    if hasattr(value, "describe") and not isinstance(value, type):
        return [type(value).__name__, value.describe()]
    if value is None or isinstance(value, str | int | float):
        return value
    return value.__name__ if isinstance(value, type) else type(value).__name__


class Unset:
    """The value of an option that was not set, where None means something else."""

    def __repr__(self) -> str:
        return "<unset>"

    def __bool__(self) -> bool:
        return False


UNSET: Any = Unset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What bounds one run; times in seconds, sizes in characters, None for no bound."""

    max_steps: int | None = 12
    run_timeout: float | None = 600
    model_timeout: float | None = 120
    chunk_timeout: float | None = 60
    max_retries: int = 3
    retry_base_delay: float = 1.0
    retry_max_delay: float = 60.0
    retry_max_elapsed: float | None = None
    max_parallel_tools: int = 8
    tool_timeout: float | None = 120
    tool_queue_timeout: float | None = 30
    max_tool_args_chars: int | None = 20_000
    max_tool_output_chars: int | None = 20_000
    max_history_chars: int | None = 200_000
    max_artifacts: int | None = 10
    max_artifact_bytes: int | None = 50 * 1024 * 1024
    max_total_artifact_bytes: int | None = 100 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """An agent's ``_meta``: every option of ``class Meta``, with its default, frozen.

    UNSET means that the setting decides, when the run starts.
    """

    model: str = UNSET
    fallback_models: tuple[str, ...] = ()
    retry: Retry | None = None
    system: str = ""
    tools: tuple[Any, ...] = ()
    provider: Any = UNSET
    memory: Any = UNSET
    max_steps: int | None = UNSET
    max_tokens: int = 4096
    temperature: float | None = None
    stop_sequences: tuple[str, ...] = ()
    thinking: str | None = UNSET
    effort: str | None = None
    max_parallel_tools: int = UNSET
    output: Any = None
    output_retries: int = 2
    hooks: Any = ()
    compaction: Any = None
    limits: Limits | None = None
    session_limits: Limits | None = None
    quotas: tuple[Quota, ...] = ()
    guardrails: tuple[Any, ...] = ()
    permission: str = ""
    permissions: tuple[Rule, ...] = ()
    ask_question: bool = False
    subagents: tuple[Any, ...] = ()
    handoffs: tuple[Any, ...] = ()
    max_subagent_depth: int = 1
    durable: Durable | bool = False
    schedule: tuple[Any, ...] = ()
    tracing: bool = UNSET
    capture_content: bool = UNSET
    disclose_errors: bool = False
    steering_mode: str = "one-at-a-time"
    follow_up_mode: str = "one-at-a-time"
    abstract: bool = False
    app_label: str = ""
    verbose_name: str = ""
    description: str = ""
    tags: tuple[str, ...] = ()
    object_name: str = field(default="", metadata={"derived": True})
    methods: tuple[Any, ...] = field(default=(), metadata={"derived": True})

    @property
    def label(self) -> str:
        """``app_label.ClassName``."""
        return f"{self.app_label}.{self.object_name}" if self.app_label else self.object_name

    def fingerprint(self) -> str:
        """Return 64 hex characters that change with the model, the prompt, tools or options."""
        values = {name: _described(getattr(self, name)) for name in (*NAMES, "methods")}
        return sha256(dumps(values).encode()).hexdigest()


NAMES = tuple(f.name for f in fields(Options) if not f.metadata.get("derived"))
ALIASES = {"instructions": "system"}
SEQUENCES = (
    "tools",
    "fallback_models",
    "quotas",
    "stop_sequences",
    "tags",
    "subagents",
    "handoffs",
    "schedule",
)
OWN = ("abstract", "app_label", "verbose_name", "description", "schedule")  # not inherited


def read_meta(owner: str, meta: type | None) -> dict[str, Any]:
    """Return what a ``class Meta`` sets. An unknown option raises Misconfigured."""
    if meta is None:
        return {}
    given: dict[str, Any] = {}
    for name in (name for name in dir(meta) if not name.startswith("_")):
        option = ALIASES.get(name, name)
        if option in OWN and name not in vars(meta):
            continue
        if option not in NAMES:
            raise Misconfigured(
                f"{owner}.Meta has no option {name!r}.{did_you_mean(name, NAMES)} "
                f"Options are: {', '.join(sorted((*NAMES, *ALIASES)))}."
            )
        if option in given:
            raise Misconfigured(
                f"{owner}.Meta sets both 'system' and 'instructions', which are one option. "
                f"Set one of them."
            )
        given[option] = getattr(meta, name)
    return given


def build(owner: str, bases: list[Options], meta: type | None, derived: dict[str, Any]) -> Options:
    """Return the options of a class from those of its bases, nearest first, and its Meta."""
    values: dict[str, Any] = {}
    for base in reversed(bases):
        default = Options()
        values |= {
            name: getattr(base, name)
            for name in NAMES
            if name not in OWN and getattr(base, name) != getattr(default, name)
        }
    values |= read_meta(owner, meta)
    if is_schedule(values.get("schedule")):
        values["schedule"] = (values["schedule"],)
    values = derived | values
    check(owner, values)
    if "permissions" in values:
        values["permissions"] = rules_of(values["permissions"])
    for name in SEQUENCES:
        if name in values:
            values[name] = tuple(values[name])
    return replace(Options(), **values)


def check(owner: str, values: dict[str, Any]) -> None:
    """Raise Misconfigured for the first value that cannot be right."""
    for name, value in values.items():
        rule = _RULES.get(name)
        if rule and not rule[0](value):
            raise Misconfigured(f"{owner}.Meta.{name} must be {rule[1]}, not {value!r}.")


def is_count(value: Any) -> bool:
    """Return whether a value is a whole number above zero."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def is_schedule(value: Any) -> bool:
    """Return whether a value says when it is due, as ``Cron`` does."""
    return callable(getattr(value, "due", None))


def _sequence(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _strings(value: Any) -> bool:
    return _sequence(value) and all(isinstance(item, str) for item in value)


def _is_bool(value: Any) -> bool:
    return value is UNSET or isinstance(value, bool)


def _one_of(choices: tuple[Any, ...]) -> tuple[Any, str]:
    listed = ", ".join(repr(choice) for choice in choices)
    return (lambda value: value in choices, f"one of {listed}")


_TEXT = (lambda value: isinstance(value, str), "a string")
_FLAG = (_is_bool, "True or False")
_LIMITS = (lambda value: value is None or isinstance(value, Limits), "Limits(...) or None")
_RULES: dict[str, tuple[Any, str]] = {
    "model": (
        lambda value: isinstance(value, str) and bool(value.strip()),
        "a model such as 'provider/model' or an alias of MLANGO['MODELS']",
    ),
    "fallback_models": (_strings, "a list of models such as 'provider/model'"),
    "retry": (lambda value: value is None or isinstance(value, Retry), "Retry(...) or None"),
    "system": _TEXT,
    "tools": (_sequence, "a list of tools"),
    "max_steps": (lambda v: v is None or v is UNSET or is_count(v), "a positive number or None"),
    "max_tokens": (is_count, "a positive number of tokens"),
    "output_retries": (lambda v: v == 0 or is_count(v), "a number from 0"),
    "max_parallel_tools": (lambda v: v is UNSET or is_count(v), "a positive number"),
    "temperature": (
        lambda v: v is None or (isinstance(v, int | float) and not isinstance(v, bool) and v >= 0),
        "a number from 0, or None",
    ),
    "stop_sequences": (_strings, "a list of strings"),
    "tags": (_strings, "a list of strings"),
    "subagents": (_sequence, "a list of agents, or of their labels"),
    "handoffs": (_sequence, "a list of agents, or of their labels"),
    "max_subagent_depth": (is_count, "a positive number"),
    "schedule": (
        lambda value: _sequence(value) and all(map(is_schedule, value)),
        "Cron(...) or a list of them",
    ),
    "thinking": _one_of((None, UNSET, *THINKING)),
    "effort": _one_of((None, *EFFORTS)),
    "steering_mode": _one_of(STEERING_MODES),
    "follow_up_mode": _one_of(STEERING_MODES),
    "tracing": _FLAG,
    "capture_content": _FLAG,
    "disclose_errors": _FLAG,
    "limits": _LIMITS,
    "session_limits": _LIMITS,
    "quotas": (
        lambda value: _sequence(value) and all(isinstance(each, Quota) for each in value),
        "a list of Quota(...)",
    ),
    "guardrails": (_sequence, "a list of guardrails"),
    "permission": (
        lambda value: value == "" or is_permission(value),
        "a Django permission such as 'shop.use_support'",
    ),
    "permissions": (
        lambda value: isinstance(value, list | tuple | dict),
        "a list of rules, or a dict with allow, ask and deny",
    ),
    "ask_question": _FLAG,
    "durable": (lambda value: isinstance(value, bool | Durable), "True, False or Durable(...)"),
    "abstract": _FLAG,
    "app_label": _TEXT,
    "verbose_name": _TEXT,
    "description": _TEXT,
}
