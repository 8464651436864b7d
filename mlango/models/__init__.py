"""The rows: traces with their spans, sessions, approvals, and what was spent of quotas."""

from mlango.models.approval import Approval
from mlango.models.quota import QuotaReservation, QuotaUsage
from mlango.models.session import Session
from mlango.models.span import Span
from mlango.models.trace import Trace

__all__ = ["Approval", "QuotaReservation", "QuotaUsage", "Session", "Span", "Trace"]
