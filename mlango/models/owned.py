"""Rows that belong to someone."""

from __future__ import annotations

from typing import Any, Self, TypeVar

from django.db import models

from mlango.core.memory import owner_key
from mlango.models.rows import RowQuerySet

M = TypeVar("M", bound=models.Model, covariant=True)


class OwnedQuerySet(RowQuerySet[M]):
    """Rows with an ``owner_key``: the owner's primary key as text, "" for nobody."""

    def for_user(self, user: Any) -> Self:
        """Return only what belongs to ``user``; nothing to someone who is not logged in."""
        key = owner_key(user)
        return self.filter(owner_key=key) if key else self.none()
