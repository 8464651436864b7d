"""Looking after durable runs that wait: for people who did not come in time."""

from __future__ import annotations

from mlango.clock import Now
from mlango.models import Approval

BATCH = 100


def sweep(alias: str) -> int:
    """Have the runs go on whose approvals nobody decided in time; return how many there were.

    What somebody left is not looked for here: when its lease is over, it is due.
    """
    late = Approval.objects.using(alias).filter(
        status=Approval.Status.PENDING,
        expires_at__lte=Now(),
        trace__status="waiting",
    )
    found = list(late.order_by("expires_at")[:BATCH])
    for approval in found:
        Approval.objects.using(alias).filter(pk=approval.pk).expire()
        approval.wake()
    return len(found)
