"""Rows named by the beginning of their id, as people type it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from django.db import models

M = TypeVar("M", bound=models.Model)

MIN_PREFIX = 8
MAX_CANDIDATES = 10
PREFIX = re.compile(rf"[0-9a-f]{{{MIN_PREFIX},32}}")


def one_named(rows: models.QuerySet[M], ref: str, about: Callable[[M], str]) -> M:
    """Return the one of ``rows`` whose id begins with ``ref``.

    Raises LookupError, with a sentence for people, if there is none or more than one;
    ``about`` tells those apart.
    """
    noun = str(rows.model._meta.model_name)
    prefix = str(ref).strip().replace("-", "").lower()
    if not PREFIX.fullmatch(prefix):
        raise LookupError(
            f"{ref!r} is not the id of {_article(noun)}. Give at least the first "
            f"{MIN_PREFIX} of its 32 characters, which are 0-9 and a-f."
        )
    found = list(rows.filter(uuid__startswith=prefix)[: MAX_CANDIDATES + 1])
    if not found:
        raise LookupError(f"No {noun} has an id that begins with {prefix!r}.")
    if len(found) > 1:
        names = [f"{row.pk} ({about(row)})" for row in found[:MAX_CANDIDATES]]
        more = " and more" if len(found) > MAX_CANDIDATES else ""
        raise LookupError(f"Several {noun}s begin with {prefix!r}: {', '.join(names)}{more}.")
    return found[0]


def _article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"
