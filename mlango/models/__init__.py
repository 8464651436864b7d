"""The rows: traces with their spans, and sessions."""

from mlango.models.session import Session
from mlango.models.span import Span
from mlango.models.trace import Trace

__all__ = ["Session", "Span", "Trace"]
