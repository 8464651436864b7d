"""What must not be written down: keys, passwords, and what ``MLANGO["REDACT"]`` says besides.

It is replaced before anything is stored, so that no row, backup or export ever holds it.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from json import loads
from typing import Any
from urllib.parse import quote

from django.conf import settings as django_settings
from django.core.signals import setting_changed

from mlango.conf import SECRETS, settings
from mlango.core.values import dumps

REDACTED = "[REDACTED]"
MIN_LENGTH = 12  # a shorter value would be found in ordinary words

NAMES = re.compile(r"(?i)(api_?key|secret|token|password|passwd|credential|private_?key)s?$")
# How secrets look, each behind marks of which one is in it: looking for those first takes a
# tenth of the time.
FORMS = [
    (marks, re.compile(pattern, re.DOTALL))
    for *marks, pattern in (
        ("sk-", "pk-", "rk-", r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{16,}"),  # OpenAI, Anthropic, …
        ("k_live_", "k_test_", r"\b(?:sk|rk)_(?:live|test)_[A-Za-z0-9]{16,}"),  # Stripe
        ("AIza", r"\bAIza[A-Za-z0-9_-]{30,}"),  # Google
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", r"\bgh[pousr]_[A-Za-z0-9]{30,}"),  # GitHub
        ("github_pat_", r"\bgithub_pat_[A-Za-z0-9_]{30,}"),
        ("glpat-", r"\bglpat-[A-Za-z0-9_-]{16,}"),  # GitLab
        ("xox", r"\bxox[abeprs]-[A-Za-z0-9-]{10,}"),  # Slack
        ("AKIA", "ASIA", r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),  # AWS
        ("hf_", r"\bhf_[A-Za-z0-9]{30,}"),  # Hugging Face
        (  # JSON Web Token
            "eyJ",
            r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*",
        ),
        ("Bearer", r"(?<=\bBearer\s)[A-Za-z0-9._~+/-]{16,}=*"),
        ("://", r"(?<=://)[^\s/:@]+:[^\s/@]+(?=@)"),  # user and password in an address
        (
            "PRIVATE KEY",
            r"-----BEGIN[ A-Z]*PRIVATE KEY-----.*?(?:-----END[ A-Z]*PRIVATE KEY-----|\Z)",
        ),
    )
]


class Redactor:
    """Replaces secrets, and what other patterns find.

    It knows the values that are configured when it is made.
    """

    def __init__(self, patterns: Iterable[re.Pattern[str]] = (), *, secrets: bool = True) -> None:
        values = sorted(set(_forms(_configured())), key=len, reverse=True) if secrets else []
        self._forms = FORMS[:] if secrets else []
        if values:
            self._forms.insert(0, (values, re.compile("|".join(map(re.escape, values)))))
        self._patterns = list(patterns)
        # As JSON writes them.
        self._marks = [dumps(mark)[1:-1] for marks, _ in self._forms for mark in marks]

    def text(self, text: str, replacement: str = REDACTED) -> str:
        found = [pattern for marks, pattern in self._forms if _holds(text, marks)]
        for pattern in (*found, *self._patterns):
            text = pattern.sub(lambda match: replacement, text)
        return text

    def json(self, text: str) -> str:
        """Return the JSON text of the same data without what must not be in it."""
        if not self._patterns and not _holds(text, self._marks):
            return text
        value = loads(text)
        redacted = self.data(value)
        return text if redacted == value else dumps(redacted)

    def data(self, value: Any) -> Any:
        """Return JSON data without what must not be in it."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list | tuple):
            return [self.data(item) for item in value]
        if isinstance(value, dict):
            return {self.text(key): self.item(key, item) for key, item in value.items()}
        if self._patterns and type(value) in (int, float):  # such as the number of a card
            number = str(value)
            text = self.text(number)
            return value if text == number else text
        return value

    def item(self, key: str, value: Any) -> Any:
        """Return what is kept under a key."""
        return self.data(value)


def _holds(text: str, marks: list[str]) -> bool:
    for mark in marks:  # noqa: SIM110 - twice as fast as any()
        if mark in text:
            return True
    return False


def redact(text: str) -> str:
    """Return a text as ``MLANGO["REDACT"]`` lets it be kept."""
    return redactor().text(text)


def redact_json(text: str) -> str:
    """Return JSON text as ``MLANGO["REDACT"]`` lets it be kept."""
    return redactor().json(text)


def redactor() -> Redactor:
    """Return the Redactor that the settings ask for."""
    return _redactor_of(tuple(settings.REDACT))


@lru_cache(maxsize=8)
def _redactor_of(items: tuple[str | re.Pattern[str], ...]) -> Redactor:
    others = [re.compile(item) for item in items if item != SECRETS]
    return Redactor(others, secrets=SECRETS in items)


def _forget(**kwargs: Any) -> None:
    _redactor_of.cache_clear()


setting_changed.connect(_forget, dispatch_uid="mlango.redaction")


def _configured() -> Iterator[str]:
    """Yield the secrets in the environment and in the settings."""
    for name, value in os.environ.items():
        if NAMES.search(name):
            yield value
    databases: Any = django_settings.DATABASES
    yield from (str(database.get("PASSWORD") or "") for database in databases.values())
    yield str(django_settings.SECRET_KEY)
    for declared in getattr(django_settings, "MLANGO", {}).get("PROVIDERS", {}).values():
        options = declared.get("OPTIONS", {}) if isinstance(declared, dict) else {}
        for name, value in options.items():
            if NAMES.search(name) and isinstance(value, str):
                yield value


def _forms(values: Iterable[str]) -> Iterator[str]:
    """Yield each value that is long enough, as it is and as it may be in an address or header."""
    for value in values:
        if len(value) >= MIN_LENGTH:
            yield from (value, quote(value, safe=""), base64.b64encode(value.encode()).decode())
