"""``manage.py traces export``: a run that happened becomes a cassette."""

import pytest

from mlango.agents.providers import Completion, ReplayProvider, ToolCall
from mlango.exceptions import InvalidRequest
from mlango.models import Trace
from tests.commands.shouting import Scripted, Shouter, script

pytestmark = pytest.mark.django_db


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "cassette.jsonl")


def test_an_exported_run_is_replayed_to_the_letter(manage, path):
    Shouter().run("hello")

    _, err, code = manage("traces", "export", "last", "--cassette", path)

    replay = ReplayProvider(path, strict=True)
    assert Shouter().run("hello", provider=replay).text == "HELLO"
    replay.assert_all_used()
    assert err == f"2 model calls written to {path}.\n"
    assert code == 0


def test_the_session_belongs_to_what_was_asked(manage, path):
    Shouter().run("one", session_id="s")
    Shouter().run("two", session_id="s")

    manage("traces", "export", "last", "--cassette", path)

    recorded = ReplayProvider(path).cassette.recordings[0]
    assert [each["content"] for each in recorded.messages if each["role"] == "user"] == [
        "one",
        "two",
    ]


def test_parallel_calls_and_their_words_are_kept(manage, path):
    calls = [ToolCall("a", "shout", {"text": "x"}), ToolCall("b", "shout", {"text": "y"})]
    script(Completion("Let me see.", calls), "Done.")
    Scripted().run("hi")

    manage("traces", "export", "last", "--cassette", path)

    run = Scripted().run("hi", provider=ReplayProvider(path, strict=True))
    assert run.text == "Done."
    assert run.messages[1]["content"] == "Let me see."
    assert [call["id"] for call in run.messages[1]["tool_calls"]] == ["a", "b"]


def test_what_a_provider_wants_to_read_again_is_kept(manage, path):
    script(Completion("", [ToolCall("a", "shout", {"text": "x"})], raw_content=[{"sign": 1}]), "!")
    Scripted().run("hi")

    manage("traces", "export", "last", "--cassette", path)

    run = Scripted().run("hi", provider=ReplayProvider(path, strict=True))
    assert run.messages[1]["raw_content"] == [{"sign": 1}]


def test_a_failed_call_is_exported_as_it_failed(manage, path):
    script(InvalidRequest("No such model."))
    Scripted().run("hi", raise_on_error=False)

    manage("traces", "export", "last", "--cassette", path)

    run = Scripted().run("hi", provider=ReplayProvider(path, strict=True), raise_on_error=False)
    assert run.status == "failed"
    assert Trace.objects.latest().spans.get().error_type == "InvalidRequest"


def test_a_file_that_is_there_is_kept(manage, tmp_path):
    path = tmp_path / "kept"
    path.write_text("kept")
    Shouter().run("hello")

    _, err, code = manage("traces", "export", "last", "--cassette", str(path))

    assert "is already there" in err
    assert (path.read_text(), code) == ("kept", 1)


def test_a_trace_without_content_cannot_be_exported(manage, path, settings):
    settings.MLANGO = settings.MLANGO | {"CAPTURE_CONTENT": False}
    Shouter().run("hello")

    _, err, code = manage("traces", "export", "last", "--cassette", path)

    assert "holds no content. Set Meta.capture_content = True." in err
    assert code == 1


def test_a_run_that_never_asked_a_model_cannot_be_exported(manage, path):
    script(KeyError("no"))
    Scripted().run("hi", raise_on_error=False)

    _, err, code = manage("traces", "export", "last", "--cassette", path)

    assert "has no model call to export" in err
    assert code == 1


def test_an_export_that_cannot_be_written_is_told(manage, tmp_path):
    Shouter().run("hello")

    _, err, code = manage("traces", "export", "last", "--cassette", str(tmp_path / ("long" * 99)))

    assert "cannot be written: File name too long." in err
    assert code == 1
