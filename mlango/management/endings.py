"""The exit codes that tell how a run ended."""

from __future__ import annotations

from mlango.core.run import CANCELLED, FAILED, STOPPED, WAITING, AgentRun
from mlango.exceptions import AuthenticationFailed, ProviderTimeout, ProviderUnavailable

OK = 0
ERROR = 1
USAGE = 2
APPROVAL = 3
LIMIT = 4
DENIED = 5
UNAVAILABLE = 69
TIMEOUT = 124
INTERRUPTED = 130


class Left(Exception):
    """The user leaves a chat or a run; ``code`` is the exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def exit_code(result: AgentRun, error: BaseException | None) -> int:
    """Return the exit code of a run; ``error`` is what made it fail."""
    if result.status == FAILED:
        return _failure_code(error)
    if result.status == STOPPED:
        return TIMEOUT if result.stop_reason == "timeout" else LIMIT
    return {WAITING: APPROVAL, CANCELLED: INTERRUPTED}.get(result.status, OK)


def _failure_code(error: BaseException | None) -> int:
    if isinstance(error, ProviderTimeout):
        return TIMEOUT
    if isinstance(error, ProviderUnavailable | AuthenticationFailed):
        return UNAVAILABLE
    return ERROR
