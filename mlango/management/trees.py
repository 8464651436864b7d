"""A trace as lines for people: its head, then its spans as a tree."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mlango.core.numbers import plain
from mlango.management.beginnings import BAD
from mlango.management.decisions import asked
from mlango.management.printing import counted
from mlango.management.terminal import cut, one_line, sanitize, width
from mlango.models import Approval, Span, Trace
from mlango.models.naming import MIN_PREFIX

BAR = 24  # columns
WIDE = 100  # columns from which on there is room for bars


def headline(trace: Trace) -> str:
    """Return one line about a trace, without its content."""
    mark = "✗" if trace.status in BAD else "?" if trace.status == Trace.Status.WAITING else " "
    child = "↳ " if trace.parent_id else ""
    return (
        f"{trace.uuid[:8]}  {trace.started_at:%Y-%m-%d %H:%M:%S}  {mark} {trace.status:<9}  "
        f"{child}{trace.agent}  {_used(trace)}"
    )


@dataclass(frozen=True, slots=True)
class Bars:
    """Puts a bar beside a span's line, which tells when in its run it was, and how long."""

    begin: datetime
    seconds: float
    columns: int

    @classmethod
    def of(cls, trace: Trace, columns: int) -> Bars | None:
        """Return the bars of a trace; None where there is no room for them."""
        spans = list(trace.spans.all())
        if columns < WIDE or not spans:
            return None
        begin = min(span.started_at for span in spans)
        end = max(span.ended_at for span in spans)
        return cls(begin, (end - begin).total_seconds(), columns)

    def beside(self, line: str, span: Span) -> str:
        """Return a line, cut and filled up, with the bar of its span."""
        room = self.columns - BAR - 2
        shown = cut(line, room)
        return f"{shown}{' ' * (room - width(shown))}  {self._bar(span)}".rstrip()

    def _bar(self, span: Span) -> str:
        scale = BAR / self.seconds if self.seconds > 0 else 0.0
        offset = (span.started_at - self.begin).total_seconds() * scale
        start = min(int(offset), BAR - 1)
        length = max(1, min(round(span.duration_s * scale), BAR - start))
        return f"{' ' * start}{'█' * length}"


def lines_of(trace: Trace, *, full: bool = False, bars: Bars | None = None) -> Iterator[str]:
    """Yield the lines that tell of a trace; with ``full`` nothing is cut."""
    yield f"trace {trace.uuid}"
    yield headline(trace)
    yield from _content("in", trace.input, full)
    children = children_of(trace.spans.all())
    yield from _branches(children, None, "", full, bars)
    for approval in Approval.objects.open_in(trace):
        yield from _waits_for(approval, full)
    yield from _content("out", trace.output, full)
    yield from _content("✗", trace.error, full)


def _waits_for(approval: Approval, full: bool) -> Iterator[str]:
    kind = approval.get_kind_display()
    yield f"?    approval {approval.uuid[:MIN_PREFIX]}  {kind}  {approval.subject}"
    if full:
        yield from (f"     {line}" for line in asked(approval))


def children_of(spans: Iterable[Span]) -> dict[int | None, list[Span]]:
    """Return the spans below each span, by its ordering; those of the trace by None.

    A span whose parent is not there counts as one of the trace, so that none is left out.
    """
    ordered = list(spans)
    known = {span.ordering for span in ordered}
    children: dict[int | None, list[Span]] = defaultdict(list)
    for span in ordered:
        parent = span.parent_ordering
        children[parent if parent in known and parent != span.ordering else None].append(span)
    return children


def _branches(
    children: dict[int | None, list[Span]],
    parent: int | None,
    indent: str,
    full: bool,
    bars: Bars | None,
) -> Iterator[str]:
    spans = children.get(parent, [])
    for span in spans:
        is_last = span is spans[-1]
        below = indent + ("   " if is_last else "│  ")
        line = f"{indent}{'└─' if is_last else '├─'} {span_line(span)}"
        yield line if bars is None else bars.beside(line, span)
        if full:
            for line in _values(span):
                yield f"{below}{line}"
        yield from _branches(children, span.ordering, below, full, bars)


def span_line(span: Span) -> str:
    """Return one line about a span, without its content."""
    facts = [f"{span.duration_s:.2f} s"]
    if span.kind == Span.Kind.LLM:
        facts.append(counted(span.input_tokens + span.output_tokens, "token"))
    if span.kind == Span.Kind.GUARDRAIL:
        facts.append(f"{span.attributes.get('on')} {span.attributes.get('verdict')}")
    details = span.attributes.get("details")
    if isinstance(details, dict) and "agent" in details and "trace" in details:
        facts.append(f"trace {one_line(str(details['trace'])[:8])}")  # of the sub-agent
    if span.error:
        facts.append(one_line(span.error))
    mark = "✗ " if span.error else ""
    return "  ".join([f"{mark}{span.kind} {span.name}".rstrip(), *facts])


def _values(span: Span) -> Iterator[str]:
    """Yield what a span got and gave, as indented JSON."""
    for name, value in (("in", span.input), ("out", span.output)):
        if value is not None:
            written = value if isinstance(value, str) else _pretty(value)
            yield from f"{name}: {sanitize(written)}".splitlines()


def _pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _content(name: str, text: str, full: bool) -> Iterator[str]:
    if text:
        yield f"{name:<3}  {text if full else one_line(text)}"


def _used(trace: Trace) -> str:
    tokens = trace.input_tokens + trace.output_tokens
    facts = [counted(trace.steps, "step"), counted(tokens, "token")]
    if trace.cost:
        facts.append(f"${plain(trace.cost)}")
    if trace.duration_s is not None:
        facts.append(f"{trace.duration_s:.2f} s")
    return "  ".join(facts)
