"""What the runs of a session have used, from their traces."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING

from mlango.core.limits import Spent
from mlango.core.usage import Usage

if TYPE_CHECKING:
    from mlango.core.memory import SessionKey

COUNTS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")


def earlier_in(key: SessionKey | None) -> Callable[[], Spent]:
    """Return a function that adds up what a session's ended runs have used."""

    def spent() -> Spent:
        # Rows can be imported only once the apps are loaded.
        from django.db.models import Count, Q, Sum

        from mlango.models import Span, Trace

        assert key is not None
        traces = Trace.objects.filter(
            agent=key.agent, owner_key=key.owner, session_key=key.session_id
        ).exclude(ended_at=None)
        sums = traces.aggregate(
            *(Sum(name, default=0) for name in (*COUNTS, "steps")),
            money=Sum("cost", default=Decimal(0)),
            unknown=Count("pk", filter=Q(cost=None)),
        )
        calls = Span.objects.filter(trace__in=traces, kind=Span.Kind.TOOL).count()
        return Spent(
            Usage(*[int(sums[f"{name}__sum"]) for name in COUNTS]),  # type: ignore[arg-type]
            None if sums["unknown"] else sums["money"],
            int(sums["steps__sum"]),
            calls,
        )

    return spent
