"""What an agent declares (``Meta`` → ``_meta``) and what bounds its runs."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from hashlib import sha256
from typing import Any

from mlango.core.durability import Durable
from mlango.core.limits import Limits
from mlango.core.numbers import is_count, is_number_from
from mlango.core.policy import NO_OR_PERMISSION, Rule, rules_of
from mlango.core.provider import PROVIDER
from mlango.core.quota import Quota
from mlango.core.retry import Retry
from mlango.core.values import dumps
from mlango.core.wanted import (
    COUNT,
    FLAG,
    STRINGS,
    TEXT,
    Wanted,
    check,
    instance_of,
    one_of,
)
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
    check(f"{owner}.Meta.{{}}", values, WANTED)
    if "permissions" in values:
        values["permissions"] = rules_of(values["permissions"])
    for name in SEQUENCES:
        if name in values:
            values[name] = tuple(values[name])
    return replace(Options(), **values)


def is_schedule(value: Any) -> bool:
    """Return whether a value says when it is due, as ``Cron`` does."""
    return callable(getattr(value, "due", None))


def _or_unset(wanted: Wanted) -> Wanted:
    return Wanted(lambda v: v is UNSET or wanted.fits(v), wanted.words, wanted.choices)


_LIST = instance_of("a list", list, tuple)
_FLAG = _or_unset(FLAG)
_LIMITS = instance_of("Limits(...)", Limits).or_none()
_AGENTS = Wanted(_LIST.fits, "a list of agents, or of their labels")
WANTED = {
    "model": Wanted(
        lambda value: isinstance(value, str) and bool(value.strip()),
        "a model such as 'provider/model' or an alias of MLANGO['MODELS']",
    ),
    "fallback_models": Wanted(STRINGS.fits, "a list of models such as 'provider/model'"),
    "retry": instance_of("Retry(...)", Retry).or_none(),
    "system": TEXT,
    "tools": Wanted(_LIST.fits, "a list of tools"),
    "provider": _or_unset(PROVIDER),
    "max_steps": _or_unset(COUNT.or_none("None for no bound")),
    "max_tokens": Wanted(is_count, "a whole number of tokens above 0"),
    "output_retries": Wanted(lambda v: is_number_from(v, 0, (int,)), "a whole number from 0"),
    "max_parallel_tools": _or_unset(COUNT),
    "temperature": Wanted(lambda v: is_number_from(v, 0), "a number from 0").or_none(),
    "stop_sequences": STRINGS,
    "tags": STRINGS,
    "subagents": _AGENTS,
    "handoffs": _AGENTS,
    "max_subagent_depth": COUNT,
    "schedule": Wanted(
        lambda value: _LIST.fits(value) and all(map(is_schedule, value)),
        "Cron(...) or a list of them",
    ),
    "thinking": _or_unset(one_of(None, *THINKING)),
    "effort": one_of(None, *EFFORTS),
    "steering_mode": one_of(*STEERING_MODES),
    "follow_up_mode": one_of(*STEERING_MODES),
    "tracing": _FLAG,
    "capture_content": _FLAG,
    "disclose_errors": FLAG,
    "limits": _LIMITS,
    "session_limits": _LIMITS,
    "quotas": Wanted(
        lambda value: _LIST.fits(value) and all(isinstance(each, Quota) for each in value),
        "a list of Quota(...)",
    ),
    "guardrails": Wanted(_LIST.fits, "a list of guardrails"),
    "permission": NO_OR_PERMISSION,
    "permissions": instance_of(
        "a list of rules, or a dict with allow, ask and deny", list, tuple, dict
    ),
    "ask_question": FLAG,
    "durable": instance_of("True, False or Durable(...)", bool, Durable),
    "abstract": FLAG,
    "app_label": TEXT,
    "verbose_name": TEXT,
    "description": TEXT,
}
