"""Values that one database or another refuses are stored, and the same on all."""

import asyncio
import datetime
import math
import uuid
from decimal import Decimal

import pytest
from django.utils import timezone

from mlango.agents.providers.scripted import call
from mlango.core.journal import Entry
from mlango.core.provider import Completion, ToolCall
from mlango.core.tools import tool
from mlango.core.usage import Usage
from mlango.exceptions import ProviderUnavailable
from mlango.models import Trace
from mlango.runtime.rows import moment
from tests.helpers import afinish, finish, new_run

INLINE = pytest.param("inline", marks=pytest.mark.django_db)
WRITER = pytest.param("writer", marks=pytest.mark.django_db(transaction=True))
everywhere = pytest.mark.parametrize("where", [INLINE, WRITER])

LOOP = []
LOOP.append(LOOP)

# What a tool returns, and what the rows and the model have of it.
VALUES = {
    "nul": ("W\0s\0", "W␀s␀"),
    "nul in a key": ({"k\0": "v\0"}, '{"k␀": "v␀"}'),
    "half a surrogate pair": ("a\ud800b", "a\ufffdb"),
    "both halves": ("\ud83c\udf78", "🍸"),
    "an escape as text": ("\\u0000 \\ud800", "\\u0000 \\ud800"),
    "emoji of several": ("👩‍💻", "👩‍💻"),
    "right to left": ("\u202eabc\u202c", "\u202eabc\u202c"),
    "not a number": ({"x": math.nan, "y": math.inf}, '{"x": null, "y": null}'),
    "a huge number": ({"n": 10**30}, '{"n": "1000000000000000000000000000000"}'),
    "a number of 5000 digits": ([10**5000], None),
    "decimal": (Decimal("1.10"), "1.10"),
    "date": (datetime.date(2026, 2, 3), "2026-02-03"),
    "uuid": (uuid.UUID(int=7), "00000000-0000-0000-0000-000000000007"),
    "bytes": (b"\xff\x00", "base64:/wA="),
    "set": ({3, 1, 2}, "[1, 2, 3]"),
    "a loop": (LOOP, '["<cycle>"]'),
    "nothing": (None, "null"),
    "an empty string": ("", ""),
    "percent": ("100%s %(x)s %%", "100%s %(x)s %%"),
    "quotes": ("'; DROP TABLE mlango_trace; --", "'; DROP TABLE mlango_trace; --"),
    "very long": ("x" * 15_000, "x" * 15_000),
}


def trace_of(run):
    return Trace.objects.get(uuid=run.uuid)


@everywhere
@pytest.mark.parametrize(("value", "stored"), VALUES.values(), ids=VALUES)
def test_what_a_tool_returns_is_stored(where, value, stored):
    @tool
    def give() -> object:
        """Return it."""
        return value

    run = finish(new_run([call("give"), "Done."], [give]))

    trace = trace_of(run)
    assert run.status == "finished"
    assert trace.messages == run.messages
    assert trace.span_count == trace.spans.count() == 3
    if stored is not None:
        assert trace.spans.get(kind="tool").output == stored
        assert run.messages[2]["content"] == stored


@everywhere
@pytest.mark.parametrize(
    ("arguments", "stored"),
    [
        ('{"x": "\\ud800"}', {"x": "\ufffd"}),
        ('{"x": "\\u0000"}', {"x": "␀"}),
        ('{"x": "\0"}', '{"x": "␀"}'),
        ('{"x": NaN}', '{"x": NaN}'),
        ('{"x": 1', '{"x": 1'),
        ("", ""),
        ('{"x": 1, "x": 2}', '{"x": 1, "x": 2}'),
        ("[" * 5000, "[" * 5000),
        ('{"x": 1e999}', '{"x": 1e999}'),
        ('{"x": 123456789012345678901234567890}', {"x": 123456789012345678901234567890}),
        ({"x": math.nan}, {"x": None}),
        ({"x": "é"}, {"x": "é"}),
    ],
)
def test_what_a_model_writes_as_arguments_is_stored(where, arguments, stored):
    @tool
    def take(x: str) -> str:
        """Take it."""
        return x

    turns = [Completion(tool_calls=[ToolCall("c1", "take", arguments)]), "Done."]

    run = finish(new_run(turns, [take]))

    trace = trace_of(run)
    assert trace.spans.get(kind="tool").input == stored
    assert trace.messages == run.messages


ODD = "a\0b\ud800c\ud83c\udf78"
EVEN = "a␀b\ufffdc🍸"


@everywhere
def test_odd_text_is_stored_wherever_it_comes_from(where):
    error = ProviderUnavailable(f"down {ODD}", retryable=False)

    run = finish(
        new_run(
            [call(ODD), Completion("x", raw_content=[{ODD: ODD}], model=ODD), error],
            said=[{"role": "user", "content": EVEN}],
            metadata={ODD: ODD},
            system=ODD,
            label="shop.Support",
        )
    )

    trace = trace_of(run)
    assert trace.input == EVEN
    assert trace.metadata == {EVEN: EVEN}
    assert trace.opening["system"] == EVEN
    assert trace.spans.all()[1].name == EVEN
    assert trace.spans.all()[2].attributes["response_model"] == EVEN
    assert trace.messages[-1]["raw_content"] == [{EVEN: EVEN}]


@everywhere
def test_an_error_of_a_tool_may_have_any_text(where):
    @tool
    def fail() -> str:
        """Fail."""
        raise ValueError(ODD)

    run = finish(new_run([call("fail"), "Done."], [fail]))

    assert trace_of(run).spans.get(kind="tool").error == f"ValueError: {EVEN}"


@everywhere
def test_counts_beyond_the_column_are_cut(where):
    usage = Usage(10**30, -5, 1)

    run = finish(new_run([Completion("x", usage=usage)], price=lambda *given: Decimal(10) ** 30))

    trace = trace_of(run)
    assert trace.usage == Usage(2**63 - 1, 0, 1)
    assert trace.cost == Decimal(10) ** 9


@everywhere
def test_a_message_that_cannot_be_encoded_strictly_is_stored_as_far_as_possible(where):
    message = {"role": "assistant", "content": "x", "raw_content": [{"score": math.nan}]}
    run = new_run(["Done."])

    async def run_with_odd_entry():
        await run.journal.open(run)
        run.journal.write(Entry("llm", "m", 1, 1, 0.0, 0.0, output=message))
        await run.journal.close(run)

    asyncio.run(run_with_odd_entry())

    assert trace_of(run).turn[-1]["raw_content"] == [{"score": None}]


@pytest.mark.parametrize("use_tz", [True, False])
def test_times_are_as_django_keeps_them(settings, use_tz):
    settings.USE_TZ = use_tz

    kept = moment(1_000_000.5)

    assert timezone.is_aware(kept) is use_tz
    assert kept.timestamp() == 1_000_000.5


@everywhere
def test_an_async_run_stores_the_same(where):
    run = asyncio.run(afinish(new_run([call("nothing"), ODD])))

    trace = trace_of(run)
    assert trace.output == EVEN
    assert trace.messages == run.messages
