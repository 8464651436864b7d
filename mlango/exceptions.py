"""Every exception of mlango.

MlangoError
├── Misconfigured                  a declaration or a setting is wrong
│   ├── ToolDefinitionError        a function cannot become a tool
│   └── UnknownAgent               no agent has this label
├── Misused                        a call is wrong: an unknown argument, run() in a loop
│   ├── NotResumable               a run can never go on: its content or its user is gone
│   └── WrongStatus                a run has ended, waits, or goes on elsewhere
├── RunError                       a run failed; carries it as ``.run``
│   ├── OverBudget                 a limit was reached that asks to raise
│   └── ProviderError              the model could not be asked or did not answer
│       ├── AuthenticationFailed
│       ├── RateLimited
│       ├── ProviderTimeout
│       ├── ContextLengthExceeded
│       ├── InvalidRequest
│       ├── ContentFiltered
│       ├── ProviderUnavailable
│       └── MalformedResponse
│           └── EmptyResponse
├── IdempotencyConflict            the key was used for another request
├── SessionBusy                    another run has the session's turn
├── AlreadyDecided                 somebody else has decided, or the time is over
├── CassetteError                  a cassette is missing, broken or does not match
├── TraceNotFound                  no trace has this id, or several have
└── ToolError                      told to the model, word for word
    ├── InvalidArguments           the arguments do not fit the tool
    └── SignInRequired             the run's user must sign in somewhere first
"""

from __future__ import annotations

import re
from datetime import timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mlango.core.run import AgentRun

__all__ = [
    "AlreadyDecided",
    "AuthenticationFailed",
    "CassetteError",
    "ContentFiltered",
    "ContextLengthExceeded",
    "EmptyResponse",
    "IdempotencyConflict",
    "InvalidArguments",
    "InvalidRequest",
    "MalformedResponse",
    "Misconfigured",
    "Misused",
    "MlangoError",
    "NotResumable",
    "OverBudget",
    "ProviderError",
    "ProviderTimeout",
    "ProviderUnavailable",
    "RateLimited",
    "RunError",
    "SessionBusy",
    "SignInRequired",
    "ToolDefinitionError",
    "ToolError",
    "TraceNotFound",
    "UnknownAgent",
    "WrongStatus",
    "did_you_mean",
]


def did_you_mean(name: str, choices: Iterable[str], cutoff: float = 0.6) -> str:
    """Return `` Did you mean 'x'?`` for the closest of ``choices``, or an empty string."""
    close = get_close_matches(str(name), list(choices), n=1, cutoff=cutoff)
    return f" Did you mean {close[0]!r}?" if close else ""


class MlangoError(Exception):
    """The base of every exception of mlango."""


class Misconfigured(MlangoError, ImproperlyConfigured):
    """A declaration or a setting is wrong."""


class ToolDefinitionError(Misconfigured):
    """A function cannot become a tool."""


class UnknownAgent(Misconfigured, LookupError):
    """No agent has this label."""


class Misused(MlangoError, TypeError):
    """A call is wrong: an unknown argument, or ``run()`` where a loop is running."""


class NotResumable(Misused):
    """A run can never go on: its content was not recorded, or its user is gone."""


class WrongStatus(Misused):
    """A run has ended, waits for a person, or goes on elsewhere, so it cannot do this now."""


class RunError(MlangoError):
    """A run failed. ``run`` is the AgentRun with all that was done before, or None."""

    def __init__(self, message: str = "", *, run: AgentRun | None = None) -> None:
        super().__init__(message)
        self.run = run


class OverBudget(RunError):
    """A limit was reached whose ``on_exceeded`` is ``"raise"``."""


class ProviderError(RunError):
    """The model could not be asked or did not answer.

    The message names the provider and the status and never holds a key or a prompt.
    ``retry_after`` is in seconds, None when the provider said nothing; ``text`` is the
    part of the answer that had arrived.
    """

    retryable = False

    def __init__(
        self,
        message: str = "",
        *,
        provider: str = "",
        status: int | None = None,
        retryable: bool | None = None,
        retry_after: float | None = None,
        text: str = "",
        run: AgentRun | None = None,
    ) -> None:
        super().__init__(message, run=run)
        self.provider = provider
        self.status = status
        self.retry_after = retry_after
        self.text = text
        if retryable is not None:
            self.retryable = retryable

    def describe(self) -> dict[str, Any]:
        """Return what is safe to store and to replay, JSON-safe."""
        return {
            "type": type(self).__name__,
            "message": str(self),
            "provider": self.provider,
            "status": self.status,
            "retryable": self.retryable,
            "retry_after": self.retry_after,
            "text": self.text,
        }


class AuthenticationFailed(ProviderError):
    """The provider refused the key, or none is set."""


class RateLimited(ProviderError):
    """The provider asks to wait (HTTP 429)."""

    retryable = True


class ProviderTimeout(ProviderError):
    """Nothing arrived in time: no connection, no first chunk, or a gap in the stream."""

    retryable = True


class ContextLengthExceeded(ProviderError):
    """The messages are longer than the model can read."""


class InvalidRequest(ProviderError):
    """The provider refused the request (HTTP 400, 404, 422)."""


class ContentFiltered(ProviderError):
    """The provider refused to read the input or to answer."""


class ProviderUnavailable(ProviderError):
    """The provider cannot be reached or is out of order (HTTP 5xx)."""

    retryable = True


class MalformedResponse(ProviderError):
    """What came back is not an answer: HTML, half a JSON document, a cut stream."""

    retryable = True


class EmptyResponse(MalformedResponse):
    """The answer holds neither text nor a tool call."""


def provider_error(name: str) -> type[ProviderError] | None:
    """Return the kind of ProviderError with this name; None for what is none."""
    kind = globals().get(name)
    return kind if isinstance(kind, type) and issubclass(kind, ProviderError) else None


class SessionBusy(MlangoError):
    """Another run has the session's turn and did not end in time. ``run`` is what was refused."""

    run: AgentRun | None = None


class IdempotencyConflict(MlangoError):
    """An idempotency key was used before. ``run`` is what was refused, if it was begun."""

    run: AgentRun | None = None


class AlreadyDecided(MlangoError):
    """An approval was decided before, or its time is over."""


class CassetteError(MlangoError):
    """A cassette is missing, broken, of another version, or does not match."""


class TraceNotFound(MlangoError, LookupError):
    """No trace has this id, or several have this prefix."""


class ToolError(MlangoError):
    """What a tool tells the model, word for word. Raise it in a tool."""


class InvalidArguments(ToolError):
    """The arguments of a tool call do not fit the tool."""


class SignInRequired(ToolError):
    """A tool cannot do its work before the run's user has signed in at ``url``. Raise it there.

    The run waits until its user says that it is done, and then the call is made again. The
    model never reads the url. ``label`` names the place, else the url's host does; ``expires``
    is a timedelta, or None for never.
    """

    def __init__(self, url: str, *, label: str = "", expires: timedelta | None = None) -> None:
        super().__init__("The user must sign in somewhere first, and cannot be asked here.")
        if expires is not None and not (isinstance(expires, timedelta) and expires > timedelta()):
            raise Misused(f"SignInRequired(expires={expires!r}): expires is a positive timedelta.")
        if not isinstance(label, str):
            raise Misused(f"SignInRequired(label={label!r}): label is text.")
        self.url = url
        self.label = label or _host_of(url)
        self.expires = expires


def _host_of(url: Any) -> str:
    """Return the host of a page to open; raise Misused, without the url, unless it is one."""
    if isinstance(url, str) and re.fullmatch(r"https?://[!-~]{1,4000}", url, re.IGNORECASE):
        try:
            parts = urlsplit(url)
        except ValueError:
            parts = urlsplit("")
        # What stands before an "@" looks like the host and is not.
        if parts.hostname and "@" not in parts.netloc and "\\" not in parts.netloc:
            return parts.hostname
    raise Misused(
        "SignInRequired(url): the url must be absolute, in ASCII, of http or https, and without "
        "a user, such as request.build_absolute_uri('/accounts/github/login/')."
    )
