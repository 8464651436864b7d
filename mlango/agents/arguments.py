"""The options of ``run`` and its like, and what each must be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlango.core.limits import Limits
from mlango.core.memory import Memory
from mlango.core.options import WANTED as WANTED_OF_META
from mlango.core.provider import PROVIDER
from mlango.core.wanted import COUNT, FLAG, FUNCTION, TEXT, USER, Wanted, check, instance_of
from mlango.exceptions import Misused, did_you_mean

ANYTHING = Wanted(lambda value: True, "anything")
MAX_KEY = 255
CLOSE = 0.75  # how alike a misspelt option must be to be taken for one


def is_memory(value: Any) -> bool:
    """Return whether a value is a memory, or a class of them."""
    return issubclass(value if isinstance(value, type) else type(value), Memory)


# What an iterable holds is looked at where messages are made of it.
RUN: dict[str, Wanted] = {
    "session_id": TEXT,
    "user": Wanted(USER.fits, f"{USER.words} or a row of the user model"),
    "request": Wanted(lambda value: hasattr(value, "META"), "an HttpRequest"),
    "state": ANYTHING,
    "history": ANYTHING,
    "images": ANYTHING,
    "files": ANYTHING,
    "memory": Wanted(is_memory, "a memory such as BufferMemory(k=20)"),
    "provider": PROVIDER,
    "model": Wanted(TEXT.fits, "a model such as 'provider/model' or an alias"),
    "limits": instance_of("Limits(...)", Limits),
    "max_steps": COUNT,
    "approve": Wanted(FUNCTION.fits, "a function that returns True, False, a reason or None"),
    "metadata": instance_of("a dict", dict),
    "buffered": FLAG,
    "idempotency_key": Wanted(
        lambda value: isinstance(value, str) and 0 < len(value) <= MAX_KEY,
        f"text of 1 to {MAX_KEY} characters",
    ),
    "raise_on_error": FLAG,
}
RUN_OPTIONS = tuple(RUN)
REQUEST_OPTIONS = ("max_tokens", "temperature", "stop_sequences", "thinking", "effort")
WANTED = {
    name: wanted.or_none()
    for name, wanted in {**RUN, **{name: WANTED_OF_META[name] for name in REQUEST_OPTIONS}}.items()
}


def check_options(owner: str, options: Mapping[str, Any]) -> None:
    """Raise Misused for an option that cannot be, or that was meant for the run."""
    check("{}", options, WANTED, Misused)
    for name in options:
        hint = "" if name in WANTED else did_you_mean(name, WANTED, cutoff=CLOSE)
        if hint:
            raise Misused(f"{owner}.run() has no option {name!r}.{hint}")
