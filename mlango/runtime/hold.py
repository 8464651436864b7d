"""The statement with which each transaction of a durable run begins, made once.

The ORM takes longer to make it than the database to do it, and no other is done as often.
"""

from __future__ import annotations

from datetime import timedelta
from functools import lru_cache
from typing import Any

from django.db import connections
from django.db.models import F

from mlango.clock import Now
from mlango.models import DurableRun
from mlango.runtime.statements import VENDORS


def hold(
    alias: str,
    uuid: str,
    token: int,
    seconds: float,
    done: int = 0,
    number: int | None = None,
) -> bool:
    """Touch a run's row if a token holds it still; return whether it does.

    Its lease lasts so many seconds from now, and ``done`` more is finished of it. ``number`` is
    that of the transaction, by which it is known to have committed.
    """
    connection = connections[alias]
    if connection.vendor not in VENDORS:
        held = DurableRun.objects.using(alias).held(uuid, token)
        until = Now() + timedelta(seconds=seconds)
        written = F("written") if number is None else number
        progress = F("progress") + done
        return bool(held.update(due_at=until, progress=progress, written=written))
    sql, lease = _statement(alias, connection.vendor, seconds)
    with connection.cursor() as cursor:
        cursor.execute(sql, [*lease, done, number, uuid, token])
        return bool(cursor.rowcount)


@lru_cache(maxsize=64)
def _statement(alias: str, vendor: str, seconds: float) -> tuple[str, tuple[Any, ...]]:
    """Return the SQL, and the values that come before those of a run."""
    query = DurableRun.objects.using(alias).all().query
    until = (Now() + timedelta(seconds=seconds)).resolve_expression(query)
    due, values = query.get_compiler(alias).compile(until)
    table = connections[alias].ops.quote_name(DurableRun._meta.db_table)
    sql = (
        f"UPDATE {table} SET due_at = {due}, progress = progress + %s, "
        f"written = COALESCE(%s, written) "
        f"WHERE trace_id = %s AND token = %s AND due_at IS NOT NULL AND worker <> ''"
    )
    return sql, tuple(values)
