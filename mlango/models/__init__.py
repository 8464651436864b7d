"""The rows: traces with their spans, sessions, and approvals."""

from mlango.models.approval import Approval
from mlango.models.session import Session
from mlango.models.span import Span
from mlango.models.trace import Trace

__all__ = ["Approval", "Session", "Span", "Trace"]
