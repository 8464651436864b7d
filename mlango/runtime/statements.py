"""SQL that is made once and then run for many rows, past the ORM's instances and compiler.

That is a quarter of the time of ``bulk_create``, and traces are what is written most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC
from functools import cached_property
from itertools import chain
from typing import Any

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper

Values = Sequence[Any]
Adapter = Callable[[Any], Any]

# Databases that take plain values as the fields hold them. For others the ORM does it.
VENDORS = ("sqlite", "postgresql", "mysql")
CHANNEL = "mlango_events"
FEW = 10  # rows; SQLite takes 999 values in a statement if it is old
_PLAIN = (models.CharField, models.TextField, models.IntegerField, models.BooleanField)


def execute(connection: BaseDatabaseWrapper, sql: str, rows: list[list[Any]]) -> None:
    """Execute a statement for each row; for one, without what drivers do to do many."""
    with connection.cursor() as cursor:
        if len(rows) == 1:
            cursor.execute(sql, rows[0])
        else:
            cursor.executemany(sql, rows)


class Statement:
    """Writes rows of one model: values in the order of ``columns``, which are attnames."""

    # Rows that others point to are written first, and are changed last.
    rank = 0

    def __init__(self, model: type[models.Model], columns: Sequence[str]) -> None:
        self.model = model
        self.columns = tuple(columns)
        by_name: dict[str, Any] = {f.attname: f for f in model._meta.concrete_fields}
        self.fields = [by_name[name] for name in columns]
        self._sql: dict[tuple[str, int], str] = {}

    def execute(self, connection: BaseDatabaseWrapper, rows: list[Values]) -> None:
        """Write rows; call it in a transaction."""
        if connection.vendor not in VENDORS:
            self.save(connection.alias, [dict(zip(self.columns, r, strict=True)) for r in rows])
            return
        execute(connection, self.sql(connection), self._adapted(connection, rows))

    def sql(self, connection: BaseDatabaseWrapper, count: int = 1) -> str:
        """Return the SQL that takes the values of so many rows at once."""
        key = connection.vendor, count
        if key not in self._sql:
            self._sql[key] = self.make_sql(connection, count)
        return self._sql[key]

    def execute_at_once(self, connection: BaseDatabaseWrapper, rows: list[Values]) -> bool:
        """Write a few rows by one statement, which needs no transaction; return if it could."""
        return False

    def make_sql(self, connection: BaseDatabaseWrapper, count: int = 1) -> str:
        raise NotImplementedError

    def save(self, alias: str, rows: list[dict[str, Any]]) -> None:
        """Write rows with the ORM."""
        raise NotImplementedError

    def _adapted(self, connection: BaseDatabaseWrapper, rows: list[Values]) -> list[list[Any]]:
        """Return rows as the driver takes them."""
        adapted = [list(row) for row in rows]
        for index, field in self._special:
            adapt = _adapter(field, connection)
            if adapt is None:
                continue
            for row in adapted:
                if (value := row[index]) is not None:
                    row[index] = adapt(value)
        return adapted

    @cached_property
    def _special(self) -> list[tuple[int, Any]]:
        """The columns whose values drivers may not take as they are."""
        return [
            (index, field)
            for index, field in enumerate(map(_target, self.fields))
            if not isinstance(field, _PLAIN)
        ]


class Insert(Statement):
    """Adds rows. All columns but an automatic key must be given."""

    def __init__(self, model: type[models.Model], columns: Sequence[str], rank: int = 0) -> None:
        super().__init__(model, columns)
        self.rank = rank
        needed = {f.attname for f in model._meta.concrete_fields if not _is_automatic(f)}
        if needed != set(columns):
            raise ValueError(
                f"The columns of {model.__name__} are {sorted(needed)}, not {sorted(columns)}."
            )

    def execute_at_once(self, connection: BaseDatabaseWrapper, rows: list[Values]) -> bool:
        if len(rows) > FEW or connection.vendor not in VENDORS:
            return False
        values = list(chain.from_iterable(self._adapted(connection, rows)))
        with connection.cursor() as cursor:
            cursor.execute(self.sql(connection, len(rows)), values)
        return True

    def make_sql(self, connection: BaseDatabaseWrapper, count: int = 1) -> str:
        quote = connection.ops.quote_name
        names = ", ".join(quote(field.column) for field in self.fields)
        marks = ", ".join(["%s"] * len(self.fields))
        rows = ", ".join([f"({marks})"] * count)
        return f"INSERT INTO {quote(self.model._meta.db_table)} ({names}) VALUES {rows}"

    def save(self, alias: str, rows: list[dict[str, Any]]) -> None:
        self.model._base_manager.using(alias).bulk_create([self.model(**row) for row in rows])


class Notifying(Insert):
    """Adds rows, and has PostgreSQL tell who listens to CHANNEL what the first column holds."""

    def execute(self, connection: BaseDatabaseWrapper, rows: list[Values]) -> None:
        super().execute(connection, rows)
        if connection.vendor == "postgresql":
            names = [[CHANNEL, name] for name in dict.fromkeys(row[0] for row in rows)]
            execute(connection, "SELECT pg_notify(%s, %s)", names)

    def execute_at_once(self, connection: BaseDatabaseWrapper, rows: list[Values]) -> bool:
        if connection.vendor == "postgresql":  # that takes two statements
            return False
        return super().execute_at_once(connection, rows)


class Update(Statement):
    """Changes rows by their primary key, which is the last column."""

    rank = 9

    def make_sql(self, connection: BaseDatabaseWrapper, count: int = 1) -> str:
        quote = connection.ops.quote_name
        *changed, key = (f"{quote(field.column)} = %s" for field in self.fields)
        table = quote(self.model._meta.db_table)
        return f"UPDATE {table} SET {', '.join(changed)} WHERE {key}"

    def save(self, alias: str, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            key = {self.columns[-1]: row.pop(self.columns[-1])}
            self.model._base_manager.using(alias).filter(**key).update(**row)


def _is_automatic(field: Any) -> bool:
    return field.primary_key and isinstance(field, models.AutoField | models.BigAutoField)


def _target(field: Any) -> Any:
    """Return the field whose values a field holds, which is another one for a foreign key."""
    while field.remote_field:
        field = field.target_field
    return field


def _adapter(field: Any, connection: BaseDatabaseWrapper) -> Adapter | None:
    """Return what turns a field's value into what the driver takes; None for nothing."""
    if isinstance(field, models.DateTimeField):
        return _datetime_adapter(connection)
    return lambda value: field.get_db_prep_save(value, connection)


def _datetime_adapter(connection: BaseDatabaseWrapper) -> Adapter | None:
    if connection.vendor == "postgresql":
        return None
    if connection.vendor == "sqlite" and connection.timezone is UTC:
        # As SQLite's own adapter does it, but six times as fast: all these times are in UTC.
        return lambda value: value.isoformat(" ")[:-6]
    adapt: Adapter = connection.ops.adapt_datetimefield_value
    return adapt
