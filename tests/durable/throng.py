"""A process of a site with many users, who all run agents, beside others like it.

    python -m tests.durable.throng 50

Prints what went wrong for any of them, and nothing else.
"""

import logging
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

AT_ONCE = 4


def main():
    import django

    django.setup()
    logging.basicConfig(stream=sys.stdout, level=logging.ERROR)
    with ThreadPoolExecutor(AT_ONCE) as users:
        list(users.map(come, range(int(sys.argv[1]))))


def come(number):
    """Come as the user of this number does, and leave no connection, as after a request."""
    from django.db import connections

    try:
        VISITS[number % len(VISITS)]()
    except Exception:  # noqa: BLE001 - the test that waits is told all
        traceback.print_exc(file=sys.stdout)
    finally:
        connections.close_all()


def run():
    from tests.durable.crashing import Clerk

    Clerk().run(said())


def enqueue():
    from mlango.agents.execution import execute_now
    from tests.durable.crashing import Clerk

    execute_now(Clerk().enqueue(said()).pk)


def enqueue_in_a_transaction():
    from django.contrib.auth.models import Group
    from django.db import transaction

    from mlango.agents.execution import execute_now
    from tests.durable.crashing import Clerk

    with transaction.atomic():
        Group.objects.create(name=uuid4().hex)
        trace = Clerk().enqueue(said())
    execute_now(trace.pk)


def approve():
    from mlango.models.approval import Operator
    from tests.durable.agents import plan
    from tests.durable.crashing import Clerk

    asked = Clerk().run(plan([["pay", {"amount": 3}]], "Paid."))
    asked.trace.approvals.get().approve(by=Operator())
    Clerk().resume(asked)


def remember():
    from tests.durable.crashing import Keeper

    session = uuid4().hex
    for _ in range(2):
        Keeper().run(said(), session_id=session)


VISITS = [run, enqueue, enqueue_in_a_transaction, approve, remember]


def said():
    from tests.durable.agents import plan

    return plan([["put", {"what": "a"}], ["found", {"what": "b"}]], [["send", {"to": "c"}]], "Ok.")


if __name__ == "__main__":
    main()
