"""Errors of providers, put into our own words.

What a provider writes may repeat the key, the prompt or a URL, so none of it is passed on:
an error tells the provider, the status, and words from a closed alphabet such as
``model_not_found``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from mlango.exceptions import (
    AuthenticationFailed,
    ContentFiltered,
    ContextLengthExceeded,
    InvalidRequest,
    ProviderError,
    ProviderTimeout,
    ProviderUnavailable,
    RateLimited,
)

WORD = re.compile(r"[a-z][a-z_]{1,39}(\.[a-z_]{1,40}){0,2}")
TOO_LONG = re.compile(
    r"context_length|context length|context window|prompt is too long|input is too long|"
    r"too many tokens|maximum number of tokens|reduce the length",
    re.IGNORECASE,
)
FILTERED = re.compile(
    r"content_filter|content_policy|content filter|content management policy|"
    r"ResponsibleAIPolicy|flagged|safety system",
    re.IGNORECASE,
)
NO_MONEY = re.compile(
    r"insufficient_quota|billing|credit balance|insufficient credits", re.IGNORECASE
)
UNSUPPORTED = re.compile(
    r"unsupported|not support|unknown|unrecogni[sz]ed|unexpected|not permitted|not allowed|"
    r"extra inputs|extra fields|deprecated",
    re.IGNORECASE,
)

SENTENCES: dict[type[ProviderError], str] = {
    AuthenticationFailed: "The provider {!r} refused the key",
    RateLimited: "The provider {!r} asks to slow down",
    ProviderTimeout: "The provider {!r} did not answer in time",
    ContextLengthExceeded: "The conversation is too long for the provider {!r}",
    ContentFiltered: "The provider {!r} refused the content",
    InvalidRequest: "The provider {!r} refused the request",
    ProviderUnavailable: "The provider {!r} is out of order",
}


def refusal(
    provider: str,
    status: int,
    answer: Any = None,
    headers: Mapping[str, str] | None = None,
    *,
    key: str = "",
    text: str = "",
) -> ProviderError:
    """Return the error that a provider's answer with ``status`` means.

    ``key`` says where the key comes from; ``text`` is what had arrived of the answer.
    """
    details = details_of(answer)
    written = f"{details} {answer}" if details else str(answer or "")
    kind, retryable = _kind(status, written)
    sentence = SENTENCES[kind].format(provider)
    if kind is AuthenticationFailed and key:
        sentence += f" in {key}"
    if retryable is False:
        sentence = f"The account at the provider {provider!r} has no credit left"
    shown = [f"HTTP {status}", ": ", ", ".join(safe_words(details))]
    return kind(
        f"{sentence} ({''.join(shown if shown[2] else shown[:1])}).",
        provider=provider,
        status=status,
        retryable=retryable,
        retry_after=retry_after(headers or {}),
        text=text,
    )


def _kind(status: int, written: str) -> tuple[type[ProviderError], bool | None]:
    """Return the class of an error, and whether that is an exception to its ``retryable``."""
    if status in (402, 429) and (status == 402 or NO_MONEY.search(written)):
        return RateLimited, False
    if status in (401, 403) and not FILTERED.search(written):
        return AuthenticationFailed, None
    if status == 429:
        return RateLimited, None
    if status in (408, 504):
        return ProviderTimeout, None
    if status == 409 or status >= 500:
        return ProviderUnavailable, None
    if TOO_LONG.search(written):
        return ContextLengthExceeded, None
    if FILTERED.search(written):
        return ContentFiltered, None
    return InvalidRequest, None


def in_stream(provider: str, answer: Any, text: str = "", key: str = "") -> ProviderError:
    """Return the error that came as a chunk of a stream that had begun well."""
    details = details_of(answer)
    for name in ("code", "status", "status_code"):
        try:
            status = int(details[name])
        except (KeyError, TypeError, ValueError):
            continue
        if 400 <= status < 600:
            return refusal(provider, status, answer, key=key, text=text)
    words = " ".join(safe_words(details))
    if "rate_limit" in words or "quota" in words:
        return refusal(provider, 429, answer, key=key, text=text)
    if "invalid_request" in words or TOO_LONG.search(str(answer)) or FILTERED.search(str(answer)):
        return refusal(provider, 400, answer, key=key, text=text)
    return ProviderUnavailable(
        f"The provider {provider!r} broke off its answer with an error"
        f"{f' ({words})' if words else ''}.",
        provider=provider,
        text=text,
    )


def details_of(answer: Any) -> dict[str, Any]:
    """Return the object in a provider's answer that tells about its error."""
    if isinstance(answer, list) and answer:
        answer = answer[0]
    if not isinstance(answer, dict):
        return {}
    error = answer.get("error", answer)
    return error if isinstance(error, dict) else {"message": error}


def safe_words(details: Mapping[str, Any]) -> list[str]:
    """Return the words that say what is wrong and cannot hold a key or a prompt."""
    found = [details.get(name) for name in ("type", "code", "param", "status")]
    words = [str(word).lower() for word in found if isinstance(word, str)]
    return list(dict.fromkeys(word for word in words if WORD.fullmatch(word)))


def refused_option(answer: Any, sent: Mapping[str, Any], removable: tuple[str, ...]) -> str:
    """Return which of the ``removable`` options that were sent the provider does not know."""
    details = details_of(answer)
    message = str(details.get("message") or details.get("detail") or answer)
    words = f"{details.get('code')} {details.get('type')} {message}"
    if not UNSUPPORTED.search(words):
        return ""
    named = str(details.get("param") or "")
    for option in removable:
        if option in sent and (option == named or re.search(rf"\b{option}\b", message)):
            return option
    return ""


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that a provider asks to wait: a number or an HTTP date."""
    found = {name.lower(): value for name, value in headers.items()}
    try:
        return max(0.0, float(found["retry-after-ms"]) / 1000)
    except (KeyError, ValueError):
        pass
    value = found.get("retry-after", "")
    try:
        seconds = float(value)
    except ValueError:
        return _until(value)
    return max(0.0, seconds) if seconds == seconds else None


def _until(date: str) -> float | None:
    try:
        moment = parsedate_to_datetime(date)
    except (TypeError, ValueError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())
