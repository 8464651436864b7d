"""What must hold of a durable run and its effects, whatever happened to its processes."""

from collections import Counter
from itertools import pairwise

from django.contrib.auth.models import Group

from mlango.models import Approval, Attempt, DurableRun, Event, Span, Trace

RESTING = (*Trace.ENDED, Trace.Status.WAITING)


def violations(trace, effects):
    """Return what is wrong with a run that nobody does any more, in sentences.

    ``effects`` are what its tools did outside of the database: a dict with the ``run``, the
    ``tool`` and the ``key`` of each.
    """
    found = [*_of_lease(trace)]
    for each in tree(trace):
        for rule in RULES:
            found += [f"{each.agent}: {wrong}" for wrong in rule(each)]
        mine = Counter(effect["key"] for effect in effects if effect["run"] == each.pk)
        found += [f"{each.agent}: {wrong}" for wrong in _of_effects(each, mine, effects)]
    return found


def tree(trace):
    """Return a run and all that worked for it."""
    found = [Trace.objects.get(pk=trace.pk)]
    for each in found:
        found += each.children.all()
    return found


def _of_lease(trace):
    durable = DurableRun.objects.get(pk=trace.pk)
    if durable.worker or durable.due_at:
        yield f"{durable.worker!r} has it until {durable.due_at}."


def _of_the_end(trace):
    if trace.status not in RESTING:
        yield f"It is {trace.status}."
    if (trace.status in Trace.ENDED) != (trace.ended_at is not None) and trace.status != "waiting":
        yield f"It is {trace.status} since {trace.ended_at}."
    lead = Trace.objects.filter(pk=trace.parent_id, status__in=Trace.ENDED)
    if trace.status == Trace.Status.WAITING and lead.exists():
        yield "It waits, and its lead has ended."
    asked = Approval.objects.filter(trace=trace, status="pending")
    if trace.status in Trace.ENDED and asked.exists():
        yield "It has ended, and a question is open."


def _of_history(trace):
    """Each call has one result, right after it and in its order."""
    if trace.parent_id and trace.status == Trace.Status.CANCELLED:
        return  # given up with its lead: its calls are settled if somebody goes on with it
    wanted, seen = [], set()
    for message in trace.messages:
        if message["role"] == "tool":
            if not wanted or message["tool_call_id"] != wanted.pop(0):
                yield f"The result {message['tool_call_id']} answers nothing."
            continue
        if wanted:
            yield f"The calls {wanted} have no result."
        wanted = [call["id"] for call in message.get("tool_calls") or ()]
        if seen & set(wanted):
            yield f"An id is used twice: {wanted}."
        seen |= set(wanted)
    if wanted and trace.status != Trace.Status.WAITING:
        yield f"The calls {wanted} have no result."


def _of_spans(trace):
    spans = list(trace.spans.all())
    answers = Counter(each.tool_call_id for each in spans if each.kind == Span.Kind.TOOL)
    for call, times in answers.items():
        if times > 1:
            yield f"The call {call} was answered {times} times."
    counts = (len(spans), sum(bool(each.error_type) for each in spans))
    if (trace.span_count, trace.error_count) != counts:
        yield f"It counts {(trace.span_count, trace.error_count)} spans and errors, not {counts}."
    for each in spans:
        if each.kind == Span.Kind.TOOL and not _asked_for(each, spans):
            yield f"The call {each.tool_call_id} stands below {each.parent_ordering}."
    if trace.usage != trace.used[0]:
        yield f"It counts {trace.usage}, and its model calls {trace.used[0]}."


def _asked_for(span, spans):
    parent = next((each for each in spans if each.ordering == span.parent_ordering), None)
    calls = parent.output["tool_calls"] if parent is not None else ()
    return span.tool_call_id in [call["id"] for call in calls]


def _of_events(trace):
    """The log tells each event once, in order, and how the run ended as the last one."""
    log = [told for row in Event.objects.filter(trace=trace) for told in row.told()]
    for before, after in pairwise(log):
        if not before.cursor.is_followed_by(after.cursor):
            yield f"Its log has {after.cursor} behind {before.cursor}."
        if before.is_last and before.describe()["status"] != Trace.Status.WAITING:
            yield f"Its log goes on with {after.kind} when it has ended."
    if log and not log[-1].is_last:
        yield f"Its log ends with {log[-1].kind}."


def _of_effects(trace, mine, effects):
    attempts = Attempt.objects.filter(trace=trace, kind="tool")
    calls = {each.idempotency_key: each for each in attempts}
    answers = {each.tool_call_id: each for each in trace.spans.all() if each.kind == "tool"}
    for key, call in calls.items():
        answer = answers.get(call.tool_call_id)
        worked = answer is not None and not answer.error_type
        times = _times(call, mine[key])
        if worked and times < 1 and not call.name.startswith(("transfer", "clerk")):
            yield f"{call.name} ended well and had no effect."
        if times and answer is not None and not worked and call.effect == "transactional":
            yield f"{call.name} failed, and what it wrote has stayed."
        if times > _allowed(call):
            yield f"{call.name}, which is {call.effect}, had its effect {times} times."
    for effect in effects:
        is_mine = effect["run"] == trace.pk and effect["tool"] != "look"
        if is_mine and effect["key"] not in calls:
            yield f"{effect['tool']} had an effect that the journal does not know."


def _times(call, outside):
    if call.effect == "transactional":
        return Group.objects.filter(name=call.idempotency_key).count()
    return outside


def _allowed(call):
    """Return how often a call may have its effect: at the will of a person, once more."""
    if call.effect == "idempotent":
        return float("inf")
    again = Approval.objects.filter(
        trace=call.trace_id, tool_call_id=call.tool_call_id, choice=Approval.Choice.AGAIN
    )
    return 1 + again.count()


RULES = (_of_the_end, _of_history, _of_spans, _of_events)
