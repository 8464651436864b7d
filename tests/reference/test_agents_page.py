"""Whatever a page about agents would show runs as it stands, offline."""

import enum
import io
import json
from typing import Literal

import pytest
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.dispatch import receiver

from mlango.agents import (
    Agent,
    AgentRun,
    BufferMemory,
    Failed,
    Finished,
    MetastoreMemory,
    NullMemory,
    RecordingProvider,
    ReplayProvider,
    Started,
    StepFinished,
    TextChunk,
    Thinking,
    ToolCalled,
    ToolError,
    ToolFinished,
    WindowMemory,
    fields,
    get_trace,
    recent_traces,
    tool,
)
from mlango.agents.providers import (
    Completion,
    Provider,
    ScriptedProvider,
    ToolCall,
    Usage,
    get_provider,
)
from mlango.core.signals import agent_finished, agent_started, agent_step, tool_called
from mlango.exceptions import Misused, RunError
from mlango.models import Trace
from mlango.serve import path

User = get_user_model()

pytestmark = pytest.mark.django_db

BOOKS = {"emma": "Jane Austen", "dracula": "Bram Stoker"}


@tool
def find_author(title: str, most: int = 5) -> list[str]:
    """Find who wrote a book.

    Args:
        title: Words of the title.
        most: How many authors
            at the most.
    """
    return [name for book, name in BOOKS.items() if book in title.lower()][:most]


@tool
def lend(ticket: str, state: Literal["out", "back"]) -> str:
    """Note where a book is.

    Args:
        ticket: The book's ticket, such as B-1.
        state: Whether it is out or back.
    """
    if not ticket.startswith("B-"):
        raise ToolError("Tickets of books start with B-.")
    return f"{ticket} is {state}"


class Librarian(Agent):
    """Answers questions about books."""

    class Meta:
        app_label = "support"
        model = "claude-opus-5"
        provider = "echo"
        system = "You are a librarian. Name the book."
        tools = [find_author]
        memory = BufferMemory(k=20)
        max_steps = 8
        effort = "high"


class Desk(Agent):
    """Lends books."""

    class Meta:
        app_label = "support"
        provider = "echo"
        tools = [lend]


class Stored(Agent):
    class Meta:
        app_label = "support"
        provider = "echo"
        memory = MetastoreMemory(max_turns=20)


ASK = 'use find_author {"title": "Emma"}'


def schema(function):
    return tool(function).to_schema()["function"]["parameters"]


def manage(*arguments):
    out = io.StringIO()
    call_command(*arguments, stdout=out, stderr=io.StringIO())
    return out.getvalue()


class TestDeclaring:
    def test_a_run_tells_what_came_out_and_what_it_used(self):
        result = Librarian().run(ASK)

        assert "Jane Austen" in result.output
        assert result.tools_used == ["find_author"]
        assert result.usage.total_tokens > 0
        assert get_trace(result.trace_uuid).agent == "support.Librarian"

    async def test_async_code_runs_it_too(self):
        class Quick(Agent):
            class Meta:
                provider = "echo"
                tracing = False

        assert (await Quick().arun("Hello")).output == "echo: Hello"

    def test_every_option_can_be_declared(self):
        class Whole(Agent):
            class Meta:
                model = "m"
                system = "s"
                tools = [find_author]
                provider = "echo"
                memory = NullMemory()
                max_steps = 3
                max_tokens = 512
                thinking = "adaptive"
                effort = "max"
                tracing = False

        result = Whole().run("Hello Emma")

        assert result.ok
        assert result.trace is None

    def test_what_is_not_declared_has_a_default(self):
        meta = Desk._meta

        assert (meta.system, meta.max_tokens, meta.effort) == ("", 4096, None)
        assert Stored._meta.tools == ()

    def test_the_prompt_may_be_made_of_the_agents_own_fields(self):
        class Toned(Agent):
            tone = fields.ChoiceField(["dry", "warm"], default="warm")

            def get_system(self) -> str:
                return f"Write in a {self.tone} tone."

        model = ScriptedProvider(["Hi.", "Hi."])
        Toned().run("Hello", provider=model)
        Toned(tone="dry").run("Hello", provider=model)

        assert [call.system[11:] for call in model.calls] == ["warm tone.", "dry tone."]
        with pytest.raises(Misused):
            Toned(tone="loud")


class TestTools:
    def test_types_and_docstring_describe_the_tool(self):
        function = find_author.to_schema()["function"]
        properties = function["parameters"]["properties"]

        assert function["description"].startswith("Find who wrote a book.")
        assert function["parameters"]["required"] == ["title"]
        assert properties["title"] == {"type": "string", "description": "Words of the title."}
        assert properties["most"]["type"] == "integer"
        assert properties["most"]["default"] == 5
        assert properties["most"]["description"] == "How many authors at the most."

    def test_each_annotation_has_its_schema(self):
        class Shelf(enum.Enum):
            LOW = "low"
            HIGH = "high"

        def sort(
            a: str,
            b: int,
            c: float,
            d: bool,
            e: Literal["x", "y"],
            f: list[int],
            g: dict[str, int],
            h: Shelf,
            i: int | None = None,
        ) -> str:
            """Sort."""
            return ""

        properties = schema(sort)["properties"]

        kinds = " ".join(properties[name]["type"] for name in "abcdefgh")
        assert kinds == "string integer number boolean string array object string"
        assert properties["e"]["enum"] == ["x", "y"]
        assert properties["f"]["items"]["type"] == "integer"
        assert properties["h"]["enum"] == ["low", "high"]
        assert schema(sort)["required"] == list("abcdefgh")

    def test_what_may_be_none_need_not_be_given(self):
        def pick(shelf: str | None) -> str:
            """Pick."""
            return str(shelf)

        assert "shelf" not in schema(pick).get("required", [])

    def test_an_error_is_for_the_model(self):
        result = Desk().run('use lend {"ticket": "7", "state": "out"}')

        assert result.ok
        assert result.tool_results[0].is_error
        assert result.tool_results[0].content == "Tickets of books start with B-."

    def test_an_unexpected_error_does_not_end_the_run_either(self):
        @tool
        def burn(book: str) -> str:
            """Fail."""
            raise ValueError("boom")

        class Clumsy(Agent):
            class Meta:
                app_label = "support"
                provider = "echo"
                tools = [burn]
                disclose_errors = True

        result = Clumsy().run("Emma")

        assert result.ok
        assert "ValueError: boom" in result.tool_results[0].content

    def test_a_tool_can_be_strict(self):
        @tool(strict=True)
        def book(place: str, people: int) -> str:
            """Book."""
            return ""

        assert "strict" in book.to_schema()["function"]


class TestMemory:
    @pytest.mark.parametrize(
        "kept", [BufferMemory(k=20), WindowMemory(k=20, keep_first=1)], ids=["buffer", "window"]
    )
    def test_a_session_is_remembered(self, kept):
        class Friend(Agent):
            class Meta:
                app_label = "support"
                memory = kept

        model = ScriptedProvider(["Hello Ada.", "Ada."])
        Friend().run("My name is Ada", session_id="user-42", provider=model)
        Friend().run("What is my name?", session_id="user-42", provider=model)

        assert [message["role"] for message in model.calls[1].messages] == [
            "user",
            "assistant",
            "user",
        ]

    def test_a_conversation_is_rebuilt_from_its_traces(self):
        Stored().run("My name is Ada", session_id="user-42")
        result = Stored().run("What is my name?", session_id="user-42")

        assert result.messages[0]["content"] == "My name is Ada"
        assert Trace.objects.filter(session_key="user-42").count() == 2


class HouseProvider(Provider):
    name = "house"
    requires = ("json",)

    def complete(
        self,
        *,
        model,
        messages,
        system="",
        tools=None,
        max_tokens=4096,
        thinking=None,
        effort=None,
        **options,
    ) -> Completion:
        is_asked = messages[-1]["role"] == "user"
        call = ToolCall(id="1", name="find_author", arguments={"title": "Emma"})
        return Completion(
            text="" if is_asked else f"{model}: {messages[-1]['content']}",
            tool_calls=[call] if is_asked else [],
            stop_reason=Completion.TOOL_USE if is_asked else Completion.END_TURN,
            usage=Usage(input_tokens=10, output_tokens=2),
        )


class TestProviders:
    def test_one_class_is_a_provider(self, settings):
        settings.MLANGO = {"PROVIDERS": {"house": f"{__name__}.HouseProvider"}}

        result = Librarian().run("Who wrote Emma?", provider="house")

        assert result.output == 'claude-opus-5: ["Jane Austen"]'
        assert result.usage.input_tokens == 20

    def test_settings_name_the_provider_and_the_model(self, settings):
        settings.MLANGO = {
            "PROVIDERS": {"house": f"{__name__}.HouseProvider"},
            "DEFAULT_PROVIDER": "house",
            "DEFAULT_AGENT_MODEL": "large",
        }

        class Plain(Agent):
            class Meta:
                app_label = "support"
                tools = [find_author]

        assert Plain().run("Who wrote Emma?").output == 'large: ["Jane Austen"]'

    def test_a_cassette_plays_what_was_recorded(self, tmp_path):
        file = tmp_path / "emma.json"
        recorded = Librarian().run(ASK, provider=RecordingProvider(get_provider("echo"), file))

        replayed = Librarian().run(ASK, provider=ReplayProvider(file))
        streamed = list(Librarian().stream(ASK, provider=ReplayProvider(file)))

        assert replayed.output == recorded.output == streamed[-1].output
        with pytest.raises(RunError, match="CassetteError"):
            Librarian().run("Something else", provider=ReplayProvider(file, strict=True))


class TestStreaming:
    def test_the_events_tell_the_run_as_it_goes(self):
        events = list(Librarian().stream(ASK))

        text = "".join(event.text for event in events if isinstance(event, TextChunk))
        called = [event.name for event in events if isinstance(event, ToolCalled)]
        last = events[-1]
        assert isinstance(last, Finished)
        assert text == last.output
        assert called == ["find_author"]
        assert last.usage["total_tokens"] > 0
        assert get_trace(last.trace[:8])
        assert isinstance(last.result, AgentRun)
        assert {type(event) for event in events} >= {
            Started,
            Thinking,
            ToolFinished,
            StepFinished,
        }

    def test_every_event_has_a_kind_and_describes_itself(self):
        for event in Librarian().stream(ASK):
            assert event.kind == event.kind.lower()
            assert json.dumps(event.describe())

    def test_a_failure_is_the_last_event(self):
        class Broken(Provider):
            offline = True

            def complete(self, **request):
                raise ValueError("boom")

        last = list(Librarian().stream("Hello", provider=Broken()))[-1]

        assert isinstance(last, Failed)
        assert last.exception_type == "ValueError"


class TestTraces:
    def test_traces_and_their_spans_are_found(self):
        result = Librarian().run(ASK)

        trace = get_trace(result.trace_uuid[:8])

        assert list(recent_traces()) == [trace]
        spans = [(span.kind, span.name, span.duration_s >= 0) for span in trace.spans]
        assert [span[0] for span in spans] == ["llm", "tool", "llm"]
        assert spans[1] == ("tool", "find_author", True)

    def test_the_terminal_runs_agents_and_shows_traces(self):
        assert "Jane Austen" in manage("agent", "support.Librarian", ASK, "--show-steps")

        (trace,) = Trace.objects.all()
        assert trace.uuid[:8] in manage("traces", "list")
        assert trace.uuid[:8] in manage("traces", "list", "--agent", "support.Librarian")
        assert "find_author" in manage("traces", "show", trace.uuid[:8])
        assert '"title": "Emma"' in manage("traces", "show", trace.uuid[:8], "-v", "2")

    def test_tracing_can_be_off_everywhere(self, settings):
        settings.MLANGO = {"TRACING": False}

        Desk().run("Hello")

        assert not Trace.objects.exists()


def test_receivers_hear_of_runs_and_tools():
    heard = []

    @receiver(tool_called)
    def audit(sender, agent, tool, arguments, **kwargs):
        heard.append((sender._meta.label, tool.name, arguments))

    @receiver([agent_started, agent_step, agent_finished])
    def note(sender, agent, **kwargs):
        heard.append(type(agent))

    try:
        Librarian().run(ASK)
    finally:
        tool_called.disconnect(audit)
        for signal in (agent_started, agent_step, agent_finished):
            signal.disconnect(note)

    assert ("support.Librarian", "find_author", {"title": "Emma"}) in heard
    assert heard[0] is heard[-1] is Librarian


urlpatterns = [
    path("chat/", Librarian.as_endpoint()),
    path("chat/stream/", Librarian.as_stream_endpoint()),
]


@pytest.mark.urls(__name__)
def test_an_agent_is_served_as_json_and_as_events(client):
    client.force_login(User.objects.create_user("ada"))
    body = {"message": ASK, "session_id": "user-42"}

    answer = client.post("/chat/", body, content_type="application/json")
    stream = client.post("/chat/stream/", body, content_type="application/json")

    assert "Jane Austen" in answer.json()["output"]
    assert stream["Content-Type"] == "text/event-stream"
    events = stream.getvalue().decode()
    assert "event: tool_called" in events
    assert "event: finished" in events
