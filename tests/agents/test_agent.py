"""Declaring agents: Meta, fields, methods and what is wrong with them."""

import pytest
from django.contrib.auth.models import User

from mlango.agents import Agent, Approval, BufferMemory, NullMemory, fields, tool
from mlango.agents.providers import ScriptedProvider, ToolCall
from mlango.exceptions import Misconfigured, Misused, RunError, ToolDefinitionError, UnknownAgent
from mlango.models import Session
from mlango.runtime.registry import Registry


@tool
def look(key: str) -> str:
    """Look something up."""
    return key.upper()


class Base(Agent):
    """Answers."""

    class Meta:
        abstract = True
        model = "openai/gpt-test"
        tools = [look]
        max_steps = 3


def test_options_are_inherited_but_abstract_is_not():
    class Child(Base):
        class Meta:
            system = "Be brief."

    assert Child._meta.model == "openai/gpt-test"
    assert Child._meta.max_steps == 3
    assert not Child._meta.abstract
    assert Child._meta.system == "Be brief."
    assert Child._meta.label.endswith(".Child")


def test_meta_is_frozen():
    with pytest.raises(AttributeError):
        Base._meta.model = "x"


def test_an_unknown_option_lists_the_known_ones_and_suggests_one():
    with pytest.raises(
        Misconfigured, match=r"has no option 'modle'\. Did you mean 'model'\?"
    ) as error:

        class Wrong(Agent):
            class Meta:
                modle = "x"

    assert "Options are: abstract, app_label" in str(error.value)


class Billing(Agent):
    class Meta:
        abstract = True


@pytest.mark.parametrize("listed", [Billing, Billing()])
def test_an_agent_among_tools_is_refused_with_what_to_write(listed):
    words = r"is not a tool\. Write Billing\.as_tool\(\), or name the agent in Meta\.subagents\."
    with pytest.raises(Misconfigured, match=rf"Wrong\.Meta\.tools holds .* {words}"):
        type("Wrong", (Agent,), {"Meta": type("Meta", (), {"tools": [listed]})})

    class Late(Billing):
        class Meta:
            abstract = True
            tracing = False

        def get_tools(self):
            return [listed]

    with pytest.raises(RunError, match=words):
        Late().run("hi", provider="echo")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("get_sytem", lambda self: "x", r"get_sytem\(\) overrides nothing.* 'get_system'\?"),
        ("get_tool", lambda self: [], r"never called\. Did you mean 'get_tools'\?"),
        ("transform_contxt", staticmethod(len), "Did you mean 'transform_context'"),
        ("meta", type("meta", (), {}), r"Wrong\.meta is not read\. Did you mean 'class Meta'"),
        ("model", "openai/x", r"Wrong\.model stands outside of class Meta"),
        ("instructions", "Be kind.", r"Wrong\.instructions stands outside of class Meta"),
    ],
)
def test_what_nothing_would_read_is_refused_when_the_class_is_made(name, value, words):
    with pytest.raises(Misconfigured, match=words):
        type("Wrong", (Agent,), {name: value})


def test_names_of_ones_own_may_be_like_those_of_an_agent():
    class Own(Billing):
        model = fields.CharField(default="x")

        class Meta:
            abstract = True

        def description(self):
            return self._get_system()

        def _get_system(self):
            return self.model

        def get_orders(self):
            return []

    assert Own().description() == "x"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max_steps", 0),
        ("max_steps", -1),
        ("max_steps", "3"),
        ("effort", "turbo"),
        ("thinking", "hard"),
        ("model", ""),
        ("memory", "nope"),
        ("tools", ["x"]),
        ("max_tokens", 0),
        ("temperature", -1),
        ("tracing", "yes"),
    ],
)
def test_a_value_that_cannot_be_right_is_refused_when_the_class_is_made(option, value):
    with pytest.raises(Misconfigured, match=option):
        type("Wrong", (Agent,), {"Meta": type("Meta", (), {option: value})})


def test_system_and_instructions_are_one_option():
    class Instructed(Agent):
        class Meta:
            instructions = "x"

    assert Instructed._meta.system == "x"
    with pytest.raises(Misconfigured, match="both 'system' and 'instructions'"):
        type("Both", (Agent,), {"Meta": type("Meta", (), {"system": "a", "instructions": "b"})})


def test_two_tools_of_one_name_are_an_error():
    @tool(name="look")
    def other() -> str:
        """Look."""
        return ""

    with pytest.raises(Misconfigured, match="two tools named 'look'"):
        type("Twice", (Agent,), {"Meta": type("Meta", (), {"tools": [look, other]})})


def test_fields_become_constructor_arguments_that_the_prompt_may_read():
    class Toned(Agent):
        tone = fields.ChoiceField(["formal", "friendly"], default="friendly")
        limit = fields.IntegerField(default=3)

        class Meta:
            model = "test"
            tracing = False

        def get_system(self):
            return f"Be {self.tone}."

    provider = ScriptedProvider(["ok"])
    Toned(tone="formal", limit="4").run("hi", provider=provider)

    assert provider.calls[0].system == "Be formal."
    assert Toned(limit="4").limit == 4
    with pytest.raises(Misused, match="pirate"):
        Toned(tone="pirate")
    with pytest.raises(Misused, match="Did you mean 'tone'"):
        Toned(tonne="formal")


def test_a_field_without_default_must_be_given():
    class Named(Agent):
        name = fields.CharField()

    with pytest.raises(Misused, match="needs the field 'name'"):
        Named()


async def test_prompt_and_model_may_be_async_and_take_the_context():
    class Dynamic(Agent):
        class Meta:
            model = "test"
            tracing = False

        async def get_system(self, ctx):
            return f"For {ctx.user}."

        async def get_tools(self):
            return [look]

    provider = ScriptedProvider([[ToolCall("", "look", {"key": "a"})], "ok"])
    result = await Dynamic().arun("hi", provider=provider, user=User(pk=1, username="ada"))

    assert provider.calls[0].system == "For ada."
    assert result.tool_results[0].content == "A"


def test_a_method_is_a_tool_that_knows_its_agent():
    class Greeter(Agent):
        name = fields.CharField(default="Ada")

        class Meta:
            model = "test"
            tracing = False

        @tool
        def greet(self, word: str) -> str:
            """Greet."""
            return f"{word}, {self.name}"

    provider = ScriptedProvider([[ToolCall("", "greet", {"word": "Hello"})], "ok"])
    result = Greeter(name="Grace").run("hi", provider=provider)

    assert result.tool_results[0].content == "Hello, Grace"
    assert "self" not in str(Greeter._meta.methods[0].to_schema())


def test_the_fingerprint_changes_with_what_the_agent_is():
    def made(**options):
        meta = type("Meta", (), {"model": "m", "tools": [look], **options})
        return type("Same", (Agent,), {"Meta": meta})._meta.fingerprint()

    assert made() == made()
    assert len({made(), made(model="n"), made(system="x"), made(tools=[]), made(max_steps=2)}) == 5


def test_agents_that_share_a_memory_do_not_read_each_other(db):
    memory = BufferMemory()

    class First(Agent):
        class Meta:
            model = "test"

    class Second(First):
        pass

    First().run("secret", session_id="s", memory=memory, provider=ScriptedProvider(["a"]))
    provider = ScriptedProvider(["b", "c"])
    Second().run("hi", session_id="s", memory=memory, provider=provider)
    First().run("again", session_id="s", memory=memory, provider=provider)

    assert len(provider.calls[0].messages) == 1
    assert [m["content"] for m in provider.calls[1].messages] == ["secret", "a", "again"]


def test_a_session_belongs_to_its_user(db, django_user_model):
    memory = BufferMemory()
    ada = django_user_model.objects.create(username="ada")
    bob = django_user_model.objects.create(username="bob")

    class Private(Agent):
        class Meta:
            model = "test"

    Private().run("x", session_id="s", user=ada, memory=memory, provider=ScriptedProvider(["a"]))
    provider = ScriptedProvider(["b"])
    Private().run("y", session_id="s", user=bob, memory=memory, provider=provider)

    assert len(provider.calls[0].messages) == 1


def test_a_user_who_was_never_saved_owns_nothing_and_is_told_so(db, django_user_model):
    class Support(Agent):
        class Meta:
            provider = ScriptedProvider(["Hi."])

    unsaved = django_user_model(username="ann")
    with pytest.raises(Misused, match=r": ann> was never saved.*Save it first"):
        Support().run("hi", session_id="s1", user=unsaved)
    assert not Session.objects.exists()


def test_a_null_memory_forgets():
    assert NullMemory().load(None) == []


def test_an_unknown_label_names_the_agents_there_are():
    class Known(Base):
        class Meta:
            app_label = "shop"

    registry = Registry()
    registry._discovered = True
    registry.register(Known)

    assert registry.get("shop.Known") is Known
    assert registry.get("Known") is Known
    with pytest.raises(UnknownAgent, match=r"Did you mean 'shop\.Known'"):
        registry.get("shop.Knwn")


def test_two_agents_modules_may_not_use_one_label():
    def declared(module):
        agent = type("Known", (Agent,), {"__module__": "tests.x", "Meta": type("Meta", (), {})})
        agent.__module__, agent.__qualname__ = module, "Known"
        return agent

    registry = Registry()
    registry.register(declared("tests.shop.agents"))
    registry.register(declared("tests.test_shop"))

    assert registry._agents["tests.Known"].__module__ == "tests.shop.agents"
    with pytest.raises(Misconfigured, match=r"Two agents have the label 'tests\.Known'"):
        registry.register(declared("tests.other.agents"))


@pytest.mark.parametrize("wrong", [".", "shop.", ".pay", "shop", "a.b.c", "shop. pay", 5])
def test_a_permission_has_an_app_and_a_codename_wherever_it_stands(wrong):
    with pytest.raises(ToolDefinitionError, match=r"'app_label\.codename'"):

        @tool(permission=wrong)
        def look() -> str:
            """Look."""

    with pytest.raises(Misconfigured, match=r"'app_label\.codename'"):
        Approval(permission=wrong)
    with pytest.raises(Misconfigured, match=r"'app_label\.codename'"):

        class Desk(Agent):
            class Meta:
                permission = wrong


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_tool_with_a_permission_runs_for_those_who_have_it(db, django_user_model, asynchronous):
    ran = []

    if asynchronous:

        @tool(permission="auth.delete_user")
        async def remove() -> str:
            """Remove."""
            ran.append(1)
            return "done"
    else:

        @tool(permission="auth.delete_user")
        def remove() -> str:
            """Remove."""
            ran.append(1)
            return "done"

    class Remover(Agent):
        class Meta:
            model = "test"
            tools = [remove]

    def outcome(user):
        provider = ScriptedProvider([[ToolCall("", "remove", {})], "ok"])
        return Remover().run("go", user=user, provider=provider).tool_results[0]

    root = django_user_model.objects.create(username="root", is_superuser=True)
    ada = django_user_model.objects.create(username="ada")

    assert [outcome(user).content for user in (None, ada)] == [
        "You may not call the tool 'remove'."
    ] * 2
    assert not ran
    assert outcome(root).content == "done"
    assert ran == [1]


def test_a_tool_that_needs_an_approval_does_not_run_without_one():
    ran = []

    @tool(approval=True)
    def remove() -> str:
        """Remove."""
        ran.append(1)
        return "done"

    class Remover(Agent):
        class Meta:
            model = "test"
            tools = [remove]
            tracing = False

    provider = ScriptedProvider([[ToolCall("", "remove", {})], "ok"])
    result = Remover().run("go", provider=provider)

    assert "needs an approval" in result.tool_results[0].content
    assert not ran
