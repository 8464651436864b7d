"""The pages of mlango in Django's admin."""

from mlango.admin.approvals import ApprovalAdmin
from mlango.admin.sessions import SessionAdmin
from mlango.admin.traces import TraceAdmin

__all__ = ["ApprovalAdmin", "SessionAdmin", "TraceAdmin"]
