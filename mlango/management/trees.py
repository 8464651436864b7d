"""A trace as lines for people: its head, then its spans as a tree."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from mlango.core.numbers import plain
from mlango.management.decisions import asked
from mlango.management.printing import counted
from mlango.management.terminal import one_line, sanitize
from mlango.models import Approval, Span, Trace
from mlango.models.naming import MIN_PREFIX

BAD = (Trace.Status.FAILED, Trace.Status.LOST)


def headline(trace: Trace) -> str:
    """Return one line about a trace, without its content."""
    mark = "✗" if trace.status in BAD else "?" if trace.status == Trace.Status.WAITING else " "
    child = "↳ " if trace.parent_id else ""
    return (
        f"{trace.uuid[:8]}  {trace.started_at:%Y-%m-%d %H:%M:%S}  {mark} {trace.status:<9}  "
        f"{child}{trace.agent}  {_used(trace)}"
    )


def lines_of(trace: Trace, *, full: bool = False) -> Iterator[str]:
    """Yield the lines that tell of a trace; with ``full`` nothing is cut."""
    yield f"trace {trace.uuid}"
    yield headline(trace)
    yield from _content("in", trace.input, full)
    children = children_of(trace.spans.all())
    yield from _branches(children, None, "", full)
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
    children: dict[int | None, list[Span]], parent: int | None, indent: str, full: bool
) -> Iterator[str]:
    spans = children.get(parent, [])
    for span in spans:
        is_last = span is spans[-1]
        below = indent + ("   " if is_last else "│  ")
        yield f"{indent}{'└─' if is_last else '├─'} {span_line(span)}"
        if full:
            for line in _values(span):
                yield f"{below}{line}"
        yield from _branches(children, span.ordering, below, full)


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
