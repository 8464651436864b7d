"""What must never be written to a cassette: keys and passwords, known by value or by form."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

from django.conf import settings as django_settings

REDACTED = "[REDACTED]"
MIN_LENGTH = 12  # a shorter value would be found in ordinary words

NAMES = re.compile(r"(?i)(api_?key|secret|token|password|passwd|credential|private_?key)s?$")
PATTERNS = re.compile(
    r"""
    \b(?:sk|pk|rk)-[A-Za-z0-9_-]{16,}             # OpenAI, Anthropic, OpenRouter, …
    | \b(?:sk|rk)_(?:live|test)_[A-Za-z0-9]{16,}  # Stripe
    | \bAIza[A-Za-z0-9_-]{30,}                    # Google
    | \bgh[pousr]_[A-Za-z0-9]{30,}                # GitHub
    | \bgithub_pat_[A-Za-z0-9_]{30,}
    | \bglpat-[A-Za-z0-9_-]{16,}                  # GitLab
    | \bxox[abeprs]-[A-Za-z0-9-]{10,}             # Slack
    | \b(?:AKIA|ASIA)[A-Z0-9]{16}\b               # AWS
    | \bhf_[A-Za-z0-9]{30,}                       # Hugging Face
    | (?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*  # JSON Web Token
    | (?<=\bBearer\s)[A-Za-z0-9._~+/-]{16,}=*
    | (?<=://)[^\s/:@]+:[^\s/@]+(?=@)             # user and password in an address
    | -----BEGIN[ A-Z]*PRIVATE\ KEY-----.*?(?:-----END[ A-Z]*PRIVATE\ KEY-----|\Z)
    """,
    re.VERBOSE | re.DOTALL,
)


class Scrubber:
    """Replaces secrets in JSON data. It knows the values that are configured when it is made."""

    def __init__(self) -> None:
        values = sorted(set(_configured()), key=len, reverse=True)
        found = "|".join(map(re.escape, values))
        self._values = re.compile(found) if found else None

    def text(self, text: str, replacement: str = REDACTED) -> str:
        if self._values is not None:
            text = self._values.sub(lambda match: replacement, text)
        return PATTERNS.sub(lambda match: replacement, text)

    def data(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list | tuple):
            return [self.data(item) for item in value]
        if not isinstance(value, dict):
            return value
        return {
            key: REDACTED if _is_secret(key, item) else self.data(item)
            for key, item in value.items()
        }


def _is_secret(key: Any, value: Any) -> bool:
    return isinstance(key, str) and isinstance(value, str) and bool(NAMES.search(key))


def _configured() -> Iterator[str]:
    """Yield the secrets in the environment and in the settings."""
    for name, value in os.environ.items():
        if NAMES.search(name) and len(value) >= MIN_LENGTH:
            yield value
    databases: Any = django_settings.DATABASES
    passwords = [database.get("PASSWORD") for database in databases.values()]
    for value in (django_settings.SECRET_KEY, *passwords):
        if value and len(str(value)) >= MIN_LENGTH:
            yield str(value)
    for declared in getattr(django_settings, "MLANGO", {}).get("PROVIDERS", {}).values():
        options = declared.get("OPTIONS", {}) if isinstance(declared, dict) else {}
        for name, value in options.items():
            if NAMES.search(name) and isinstance(value, str) and len(value) >= MIN_LENGTH:
                yield value
