"""The spans of a trace as HTML.

It is written here and not in a template: for 400 spans that takes most of a second.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.db.models import QuerySet
from django.db.models.functions import Left, Length
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from mlango.admin.values import MAX_SHOWN, block, cut, dollars, readable, seconds
from mlango.core.usage import Usage
from mlango.models import Trace

LARGE = ("input_json", "output_json", "attributes_json", "error")
MAX_DEPTH = 6  # levels that are indented
FEW = 8  # spans of a trace that are all open from the start

ROW = """<li class="depth-{}{}"><details{}><summary>
<span class="number">{}</span><span class="what"><b>{}</b> {} <em>{}</em></span>
<span class="figure">{}</span><span class="figure">{}</span><span class="figure">{}</span>
</summary><dl>{}</dl></details></li>
"""
USED = (
    ("input_tokens", _("input")),
    ("cache_read_tokens", _("of that read from the cache")),
    ("cache_write_tokens", _("of that written to the cache")),
    ("output_tokens", _("output")),
    ("reasoning_tokens", _("of that reasoning")),
)


def list_spans(trace: Trace) -> SafeString:
    """Return the spans in order, each with what it got, gave, used and what went wrong."""
    spans = list(_spans(trace))
    depths: dict[int | None, int] = {None: -1}
    rows = []
    for span in spans:
        depth = depths[span.ordering] = depths.get(span.parent_ordering, -1) + 1
        rows.append(_row(span, min(depth, MAX_DEPTH), len(spans) <= FEW))
    return format_html_join("", "{}", ((row,) for row in rows))


def _spans(trace: Trace) -> QuerySet[Any]:
    """Return the spans with only the beginnings of what may be large."""
    heads = {f"{column}_head": Left(column, MAX_SHOWN) for column in LARGE}
    lengths = {f"{column}_length": Length(column) for column in LARGE}
    return trace.spans.defer(*LARGE).annotate(**heads, **lengths).order_by("ordering")


def _row(span: Any, depth: int, is_open: bool) -> SafeString:
    failed = bool(span.error_type or span.error_head)
    tokens = span.usage.total_tokens if span.usage else 0
    return format_html(
        ROW,
        depth,
        " failed" if failed else "",
        " open" if is_open or failed else "",
        span.ordering,
        span.get_kind_display(),
        span.name,
        span.error_type or _("failed") if failed else "",
        f"{tokens:,}" if tokens else "",
        dollars(span.cost) if span.cost else "",
        seconds(span.duration_s),
        format_html_join("", "<dt>{}</dt><dd>{}</dd>", _facts(span)),
    )


def _facts(span: Any) -> Iterator[tuple[Any, Any]]:
    facts = [
        (_("Error"), cut(span.error_head, span.error_length)),
        (_("Input"), readable(span.input_json_head, span.input_json_length)),
        (_("Output"), readable(span.output_json_head, span.output_json_length)),
        (_("Tokens"), _used(span.usage)),
        (_("More"), readable(span.attributes_json_head, span.attributes_json_length)),
    ]
    return ((name, block(text)) for name, text in facts if text)


def _used(usage: Usage | None) -> str:
    if usage is None or not usage.total_tokens:
        return ""
    counts = [(getattr(usage, column), name) for column, name in USED]
    parts = [f"{count:,} {name}" for count, name in counts if count]
    return ", ".join([*parts, str(_("estimated"))] if usage.estimated else parts)
