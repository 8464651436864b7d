"""Runs of every shape, to be killed at every kill point, and somebody who sees them through."""

import json
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

from mlango.agents.execution import execute_now
from mlango.clock import Now
from mlango.models import Approval, DurableRun, Trace
from mlango.models.approval import Operator
from tests.durable.agents import plan
from tests.durable.checker import tree
from tests.durable.crashing import Clerk, Keeper, Lead, Starter

MANY = 20  # processes that a run takes at most
EACH = [["look", {"at": "sky"}], ["send", {"to": "ann"}], ["put", {"what": "a"}]]
EACH += [["found", {"what": "x"}], ["refuse", {"what": "no"}]]
INNER = plan([["send", {"to": "bob"}]], [["pay", {"amount": 2}], ["found", {"what": "y"}]], "Sub.")


@dataclass(frozen=True)
class Shape:
    """What is asked of which agent, and in how many parts it is done.

    ``points`` are about as many as the kill points of its longest part.
    """

    agent: type
    said: str
    points: int
    parts: int = 1
    has_session: bool = False

    def enqueue(self):
        options = {"session_id": uuid4().hex} if self.has_session else {}
        return self.agent().enqueue(self.said, **options)


SHAPES = {
    "plain": Shape(Clerk, plan("Hello."), 14),
    "tools": Shape(Clerk, plan(*([call] for call in EACH), "Done."), 74),
    "parallel": Shape(Clerk, plan([*EACH, ["send", {"to": "bob"}]], "Done."), 56),
    "approval": Shape(
        Clerk, plan([["pay", {"amount": 3}], ["put", {"what": "a"}]], "Paid."), 30, parts=2
    ),
    "sub-agent": Shape(
        Lead, plan([["clerk", {"message": INNER}], ["put", {"what": "b"}]], "All."), 56, parts=2
    ),
    "handoff": Shape(
        Starter, plan([["transfer_to_clerk", {}]], [["send", {"to": "c"}]], "There."), 36
    ),
    "session": Shape(Keeper, plan([["put", {"what": "a"}]], "Kept."), 30, has_session=True),
}


class Ledger:
    """What was done to the world, by all processes."""

    def __init__(self, path):
        self.path = Path(path)

    def read(self):
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return [json.loads(line) for line in lines]

    def has(self, approval):
        """Return whether the call that an approval asks about had its effect."""
        attempt = approval.trace.attempts.filter(tool_call_id=approval.tool_call_id).last()
        return any(effect["key"] == attempt.idempotency_key for effect in self.read())


def let_lapse(uuid):
    """Have the lease of a process that is gone be over."""
    late = Now() - timedelta(seconds=1)
    DurableRun.objects.filter(pk=uuid, due_at__isnull=False).update(due_at=late)


def decide(ledger):
    """Decide about all that waits, as a person who looks into the matter does."""
    for approval in Approval.objects.open():
        if approval.kind != Approval.Kind.UNKNOWN:
            approval.approve(by=Operator())
        elif ledger.has(approval):
            approval.happened(by=Operator(), note="I saw it.")
        else:
            approval.run_again(by=Operator())


def course(trace):
    """Return how a run and those that worked for it went, whatever a crash made of a result."""
    return [
        (each.status, message["role"], message.get("tool_call_id"))
        for each in tree(trace)
        for message in each.messages
    ]


def see_through(trace, ledger, do=execute_now):
    """Go on with a run until it has ended, in this process or, by ``do``, in others."""
    for _ in range(MANY):
        let_lapse(trace.pk)
        do(trace.pk)
        trace = Trace.objects.get(pk=trace.pk)
        if trace.status in Trace.ENDED:
            return trace
        decide(ledger)
    raise AssertionError(f"The run {trace.pk} is {trace.status} still.")
