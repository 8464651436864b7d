"""Tools that any agent may use: ``Meta.tools = [http_request, current_date, day_name]``."""

from __future__ import annotations

import datetime
from typing import Any, Literal

from django.utils import timezone
from django.utils.dates import WEEKDAYS

from mlango.agents.toolsets.fetch import fetch
from mlango.core.tools import tool

__all__ = ["current_date", "day_name", "http_request"]


@tool
async def http_request(
    url: str,
    method: Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"] = "GET",
    headers: dict[str, str] | None = None,
    body: str = "",
) -> dict[str, Any]:
    """Send an HTTP request to a public site and return its status, type and text.

    Redirects are not followed: call again with the location that is returned.

    Args:
        url: Where to send it; http or https.
        method: The HTTP method.
        headers: Headers to send.
        body: The text to send.
    """
    return await fetch(url, method, headers, body)


@tool(effect="read")
def current_date() -> str:
    """Return today's date as YYYY-MM-DD."""
    return timezone.localdate().isoformat()


@tool(effect="read")
def day_name(date: datetime.date) -> str:
    """Return the day of the week of a date.

    Args:
        date: The date as YYYY-MM-DD.
    """
    return str(WEEKDAYS[date.weekday()])
