"""CPU time of the journal of a 20-step run: a trace and 41 spans.

    python benchmarks/journal.py

The floor writes the same values by SQL in one transaction when the run ends. A row at a time
is what ``create()`` for each span costs.
"""

import asyncio
import json
from datetime import UTC, datetime
from time import time
from uuid import uuid4

import ratios
from django.db import connection

from mlango.core.journal import LLM, TOOL, Entry
from mlango.core.usage import NO_USAGE, Usage
from mlango.models import Span, Trace
from mlango.runtime.journal import RowJournal
from mlango.runtime.rows import (
    INSERT_SPAN,
    INSERT_TRACE,
    SPAN_COLUMNS,
    UPDATE_TRACE,
    trace_values,
)
from tests.helpers import new_run

STEPS = 20
USED = Usage(10, 5)


def entries():
    """Return what the loop tells its journal: 21 model calls, and 20 tool calls between."""
    made = []
    for step in range(1, STEPS + 2):
        call = {"id": f"call_{step}", "type": "function", "function": function(step)}
        said = {"role": "assistant", "content": "", "tool_calls": [call]}
        made.append(entry(LLM, "mock", len(made), step, {"max_tokens": 4096}, said, usage=USED))
        if step <= STEPS:
            arguments = call["function"]["arguments"]
            made.append(entry(TOOL, "add", len(made), step, arguments, str(step + 1)))
            made[-1].tool_call_id = call["id"]
    return made


def function(step):
    return {"name": "add", "arguments": f'{{"a": {step}, "b": 1}}'}


def entry(kind, name, ordering, step, asked, answered, **others):
    return Entry(kind, name, ordering, step, time(), 0.01, asked, answered, **others)


ENTRIES = entries()


def run():
    made = new_run()
    made.uuid = uuid4().hex
    made.started_at = time()
    return made


class StepJournal(RowJournal):
    """Waits at each step, as with TRACE_WRITES="step"."""

    wants_sync = True


def ours(kind):
    async def work():
        journal, own = kind(), run()
        await journal.open(own)
        for item in ENTRIES:
            journal.write(item)
            if item.kind == TOOL and journal.wants_sync:
                await journal.sync()
        await journal.close(own)

    return work


# -- the floor and the ceiling --------------------------------------------------------------


def trace_row(own):
    return dict(zip(INSERT_TRACE.columns, trace_values(own), strict=True))


def span_rows(uuid):
    """Return the values of all spans, as plainly as they can be made."""
    rows = []
    for item in ENTRIES:
        usage = item.usage or NO_USAGE
        started = datetime.fromtimestamp(item.started_at, UTC)
        ended = datetime.fromtimestamp(item.started_at + item.duration_s, UTC)
        asked, said = json.dumps(item.input), json.dumps(item.output)
        counts = (usage.input_tokens, usage.output_tokens, 0, 0, 0, False)
        what = (item.step, item.kind, item.name, item.tool_call_id, asked, said)
        when = (started.isoformat(" "), ended.isoformat(" "))
        rows.append((uuid, item.ordering, None, *what, "", "", *counts, None, *when, ""))
    return rows


def sql(statement):
    text = statement.make_sql(connection)
    return text.replace("%s", "?") if connection.vendor == "sqlite" else text


def floor():
    """Return the work of writing by the driver itself, on a connection that stays open."""
    connection.ensure_connection()
    raw = connection.connection
    insert_trace, insert_span, update = map(sql, (INSERT_TRACE, INSERT_SPAN, UPDATE_TRACE))
    opened = {name: plain(value) for name, value in trace_row(run()).items()}

    async def work():
        uuid = uuid4().hex
        now = str(datetime.now(UTC))
        end = ("finished", "end_turn", "done", "", "", "", 21, 41, 0, 1, 1, 0, 0, 0, False, None)
        cursor = raw.cursor()
        cursor.execute("BEGIN")
        cursor.execute(insert_trace, [*(opened | {"uuid": uuid, "started_at": now}).values()])
        cursor.executemany(insert_span, span_rows(uuid))
        cursor.execute(update, (*end, now, uuid))
        cursor.execute("COMMIT")
        cursor.close()

    return work


def plain(value):
    return str(value) if isinstance(value, datetime) else value


async def a_row_at_a_time():
    await asyncio.to_thread(create_rows)


def create_rows():
    trace = Trace.objects.create(**trace_row(run()))
    for row in span_rows(trace.pk):
        Span.objects.create(**dict(zip(SPAN_COLUMNS, row, strict=True)))
    trace.status, trace.ended_at = "finished", datetime.now(UTC)
    trace.save()


async def main(write_raw):
    works = {
        "raw SQL, one transaction": write_raw,
        "mlango, written behind": ours(RowJournal),
        "mlango, waiting at each step": ours(StepJournal),
        "create() for each span": a_row_at_a_time,
    }
    print(f"the journal of a run of {STEPS} steps, by {ratios.vendor()}")
    await ratios.compare(works, per=1, rounds=25)


with ratios.database():
    asyncio.run(main(floor()))
