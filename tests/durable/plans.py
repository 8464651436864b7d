"""How the database does the statements of a test, as it tells by itself."""

import json
import re
from contextlib import contextmanager
from dataclasses import dataclass

from django.db import connection, transaction

WITH_A_PLAN = ("SELECT", "UPDATE", "DELETE")
# What it takes at most to find nothing, and for each row that is found, or changed with all of
# its places in indexes.
PAGES, STEPS = (60, 1, 20), (500, 100, 100)


@dataclass(frozen=True)
class Plan:
    """How one statement was done, and what it took for how many rows.

    The work is counted in pages on PostgreSQL, and in steps of its machine on SQLite.
    """

    sql: str
    told: str
    scanned: frozenset[str]  # tables that were read from their first row to their last
    rows: int
    work: int

    @property
    def is_small(self):
        """Whether it read about what it found."""
        least, read, changed = PAGES if connection.vendor == "postgresql" else STEPS
        each = read if self.sql.startswith("SELECT") else changed
        return self.work <= least + each * self.rows

    def __str__(self):
        return f"{self.work} for {self.rows} rows: {self.sql}\n{self.told}"


@contextmanager
def plans():
    """Gather the plans of the statements within, each tried right before it is executed."""
    found = []

    def explain(execute, sql, params, many, context):
        if sql.startswith(WITH_A_PLAN):
            found.append(plan_of(sql, params))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(explain):
        yield found


def plan_of(sql, params=()):
    """Execute a statement, and leave nothing of it but its plan."""
    tried = _tried_by_postgresql if connection.vendor == "postgresql" else _tried_by_sqlite
    with transaction.atomic(), connection.cursor() as cursor:
        plan = tried(cursor, sql, params)
        transaction.set_rollback(True)
    return plan


def _tried_by_postgresql(cursor, sql, params):
    cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}", params)
    told = cursor.fetchone()[0]
    root = (json.loads(told) if isinstance(told, str) else told)[0]["Plan"]
    scans = [each for each in _nodes(root) if each["Node Type"] == "Seq Scan"]
    return Plan(
        sql,
        json.dumps(root, indent=1),
        frozenset(each["Relation Name"] for each in scans),
        (root if sql.startswith("SELECT") else root["Plans"][0])["Actual Rows"],
        root["Shared Hit Blocks"] + root["Shared Read Blocks"],
    )


def _nodes(node):
    yield node
    for each in node.get("Plans", ()):
        yield from _nodes(each)


def _tried_by_sqlite(cursor, sql, params):
    cursor.execute(f"EXPLAIN QUERY PLAN {sql}", params)
    told = "\n".join(row[-1] for row in cursor.fetchall())
    steps = []
    # It takes an end that is not WITH_A_PLAN, or it would be explained again.
    connection.connection.set_progress_handler(lambda: steps.append(1), 1)
    try:
        cursor.execute(f"\n{sql}", params)
        rows = len(cursor.fetchall()) if sql.startswith("SELECT") else cursor.rowcount
    finally:
        connection.connection.set_progress_handler(None, 1)
    scanned = re.findall(r"^SCAN (\w+)$", told, re.MULTILINE)
    return Plan(sql, told, frozenset(scanned), rows, len(steps))
