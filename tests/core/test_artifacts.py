"""Files that tools and models hand over: how many, and how large."""

import base64

import pytest

from mlango.agents import Agent, Context, tool
from mlango.agents.providers import Completion, ScriptedProvider, ToolCall


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


def image(data=b"pixels", mime="image/png", **part):
    url = f"data:{mime};base64,{base64.b64encode(data).decode()}"
    return {"type": "image_url", "image_url": {"url": url}} | part


def painted(*images, text=""):
    provider = ScriptedProvider([Completion(text, images=list(images))])
    stream = Maker().stream("Paint.", provider=provider)
    return list(stream), stream.run


def test_images_of_the_model_are_files_of_the_run():
    events, done = painted(image(), image(b"more", "image/webp"), text="Here:")
    assert done.ok
    assert [(each.data, each.mime_type, each.name) for each in done.artifacts] == [
        (b"pixels", "image/png", "image-1-1.png"),
        (b"more", "image/webp", "image-1-2.webp"),
    ]
    assert [event.name for event in events if event.kind == "artifact_added"] == [
        "image-1-1.png",
        "image-1-2.webp",
    ]
    assert [event.seq for event in events] == list(range(len(events)))
    assert events[-1].kind == "finished"


def test_an_answer_may_be_an_image_alone():
    _, done = painted(image())
    assert (done.status, done.text, len(done.artifacts)) == ("finished", "", 1)


@pytest.mark.parametrize(
    "part",
    [
        image(b"x" * 11),
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,A"}},
        {"type": "image_url", "image_url": None},
        {"type": "image_url"},
    ],
)
def test_what_is_too_large_or_elsewhere_is_in_the_message_only(part):
    _, done = painted(part)
    assert (done.ok, done.artifacts) == (True, [])
    assert part in done.messages[-1]["content"]


@pytest.mark.django_db(transaction=True)
def test_images_of_an_agent_without_tools_are_kept(settings, tmp_path):
    settings.MEDIA_ROOT = str(tmp_path)

    class Painter(Agent):
        class Meta:
            app_label = "painting"

    done = Painter().run("Paint.", provider=ScriptedProvider([Completion("", images=[image()])]))
    row = done.trace.artifacts.get()
    with row.open() as file:
        assert file.read() == b"pixels"
