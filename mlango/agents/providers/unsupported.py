"""Options that a model does not take: left out from then on, with one warning each."""

from __future__ import annotations

import logging

logger = logging.getLogger("mlango.providers")


class Unsupported:
    """What each model of one provider was found not to take."""

    def __init__(self) -> None:
        self._options: dict[str, set[str]] = {}

    def of(self, model: str) -> set[str]:
        return self._options.get(model, set())

    def add(self, provider: str, model: str, option: str) -> None:
        known = self._options.setdefault(model, set())
        if option in known:
            return
        known.add(option)
        # These two were not set by anybody, or have another name.
        if option not in ("stream_options", "max_tokens"):
            logger.warning(
                "The model %r of the provider %r does not take %r: it is left out.",
                model,
                provider,
                option,
            )
