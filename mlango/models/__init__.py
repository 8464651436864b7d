"""The rows: traces, their spans, events and files, sessions, approvals, durable runs, quotas."""

from mlango.models.approval import Approval
from mlango.models.artifact import Artifact
from mlango.models.attempt import Attempt
from mlango.models.durable import DurableRun
from mlango.models.event import Event
from mlango.models.instruction import Instruction
from mlango.models.quota import QuotaReservation, QuotaUsage
from mlango.models.session import Session
from mlango.models.span import Span
from mlango.models.trace import Trace

__all__ = [
    "Approval",
    "Artifact",
    "Attempt",
    "DurableRun",
    "Event",
    "Instruction",
    "QuotaReservation",
    "QuotaUsage",
    "Session",
    "Span",
    "Trace",
]
