"""Options that a model does not take: left out from then on, with one warning each."""

from __future__ import annotations

import logging
from collections.abc import Set

logger = logging.getLogger("mlango.providers")


# Every model of a server knows this one, or none.
OF_SERVER = "stream_options"
# Nobody set these two, or they are sent under another name.
QUIET = (OF_SERVER, "max_tokens")
NONE: frozenset[str] = frozenset()


class Unsupported:
    """What each model of one provider was found not to take."""

    def __init__(self) -> None:
        self._options: dict[str, set[str]] = {}

    def of(self, model: str) -> Set[str]:
        if not self._options:
            return NONE
        return self._options.get(model, NONE) | self._options.get("", NONE)

    def add(self, provider: str, model: str, option: str) -> None:
        known = self._options.setdefault("" if option == OF_SERVER else model, set())
        if option in known:
            return
        known.add(option)
        if option not in QUIET:
            logger.warning(
                "The model %r of the provider %r does not take %r: it is left out.",
                model,
                provider,
                option,
            )
