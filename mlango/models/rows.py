"""Rows that are read where they are written.

A run asks for what it, or another process, has just written; a replica may not have it yet.
With ``base_manager_name`` that holds for relations and ``refresh_from_db()`` too.
"""

from __future__ import annotations

from typing import TypeVar

from django.db import models

M = TypeVar("M", bound=models.Model, covariant=True)


class RowQuerySet(models.QuerySet[M]):
    """Rows of the database that ``db_for_write`` names, whatever ``db_for_read`` says."""

    @property
    def db(self) -> str:
        self._for_write = True
        return super().db
