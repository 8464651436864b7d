"""Rows on their way to the database."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from django.db import connections, transaction

from mlango.runtime.statements import Statement, Values


class Source(Protocol):
    """Who wants a row written."""

    lost: bool

    def failed(self, statement: Statement, error: Exception) -> None:
        """Note that a row could not be written; called in the thread that tried."""


class Write:
    """A row to be written. ``make(thing)`` gives its values, in the thread that writes."""

    __slots__ = ("alias", "make", "source", "statement", "thing")

    def __init__(
        self,
        source: Source,
        alias: str,
        statement: Statement,
        make: Callable[[Any], Values],
        thing: Any,
    ) -> None:
        self.source = source
        self.alias = alias
        self.statement = statement
        self.make = make
        self.thing = thing

    def values(self) -> Values:
        return self.make(self.thing)


class Packet:
    """Writes that belong together: all are written in one transaction, in their order."""

    __slots__ = ("writes",)

    def __init__(self, writes: list[Write]) -> None:
        self.writes = writes


Rows = list[tuple[Write, Values]]


def execute(alias: str, rows: Rows) -> None:
    """Write rows all or none, in one savepoint of the transaction if one is open."""
    by_statement: dict[Statement, list[Values]] = {}
    for write, values in rows:
        by_statement.setdefault(write.statement, []).append(values)
    connection = connections[alias]
    if len(by_statement) == 1 and not connection.in_atomic_block:
        [(statement, values)] = by_statement.items()
        if statement.execute_at_once(connection, values):
            return
    with transaction.atomic(using=alias):
        for statement in sorted(by_statement, key=lambda statement: statement.rank):
            statement.execute(connection, by_statement[statement])


def made(writes: Iterable[Write]) -> Rows:
    """Return writes with their values, without those that cannot be made."""
    rows: Rows = []
    for write in writes:
        if write.source.lost:
            continue
        try:
            rows.append((write, write.values()))
        except Exception as error:  # noqa: BLE001 - best effort: one row, not the group
            write.source.failed(write.statement, error)
    return rows
