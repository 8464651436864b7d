"""Files that tools hand over: how many, and how large."""

import pytest

from mlango.agents import Agent, Context, tool
from mlango.agents.providers import ScriptedProvider, ToolCall


@tool
def make(sizes: list[int], ctx: Context) -> str:
    """Make files."""
    for number, size in enumerate(sizes):
        ctx.artifact(b"x" * size, "text/plain", f"{number}.txt")
    return "made"


class Maker(Agent):
    class Meta:
        tools = [make]
        tracing = False


def run(*sizes):
    turns = [[ToolCall("", "make", {"sizes": list(sizes)})], "ok"]
    return Maker().run("hi", provider=ScriptedProvider(turns))


@pytest.fixture(autouse=True)
def _small(settings):
    limits = {"MAX_ARTIFACTS": 3, "MAX_ARTIFACT_BYTES": 10, "MAX_TOTAL_ARTIFACT_BYTES": 15}
    settings.MLANGO = {**settings.MLANGO, **limits}


def test_as_many_as_are_allowed_are_kept():
    done = run(5, 5, 5)
    assert done.tool_results[0].content == "made"
    assert [len(artifact.data) for artifact in done.artifacts] == [5, 5, 5]


@pytest.mark.parametrize(
    ("sizes", "kept", "words"),
    [
        ([1, 1, 1, 1], 3, "3.txt' was not added: at most 3 files"),
        ([11], 0, "at most 10 bytes in one file"),
        ([8, 8], 1, "at most 15 bytes in all files"),
    ],
)
def test_what_is_too_much_is_told_and_not_kept(sizes, kept, words):
    done = run(*sizes)
    assert words in done.tool_results[0].content
    assert len(done.artifacts) == kept
    assert done.ok
