from __future__ import annotations

import asyncio
import functools
import inspect
import json
import re
import subprocess
import sys
from typing import Annotated, Any

import pytest
from asgiref.sync import sync_to_async
from pydantic import BaseModel

from mlango.core.context import Context
from mlango.core.policy import Approval
from mlango.core.schema import Parameters
from mlango.core.signature import read
from mlango.core.tools import Tool, Toolbox, ToolResult, ToolSchemas, Toolset, render, tool
from mlango.exceptions import InvalidArguments, Misconfigured, ToolDefinitionError


@tool
def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


# -- declaring ------------------------------------------------------------------------------


def test_a_function_is_described_in_one_place():
    @tool
    def search_docs(query: str, limit: int = 5) -> list[str]:
        """Search the product documentation.

        Args:
            query: What to search for.
            limit: Maximum number of results.
        """
        raise NotImplementedError

    assert search_docs.to_schema() == {
        "type": "function",
        "function": {
            "name": "search_docs",
            "description": "Search the product documentation.",
            "parameters": {
                "type": "object",
                "properties": {
                    "query": {"type": "string", "description": "What to search for."},
                    "limit": {
                        "type": "integer",
                        "description": "Maximum number of results.",
                        "default": 5,
                    },
                },
                "required": ["query"],
            },
        },
    }
    assert search_docs.to_schema() is search_docs.to_schema()


def test_calling_a_tool_calls_its_function():
    assert add(1, b=3) == 4
    assert add.fn(1) == 3


def test_name_and_description_may_be_given():
    made = tool(add.fn, name="sum-up", description="d\0")

    assert made.name == "sum-up"
    assert made.description == "d␀"
    assert tool(name="x")(add.fn).name == "x"


def test_the_defaults_of_the_options():
    assert (add.effect, add.timeout, add.retries, add.parallel) == ("once", None, 0, True)
    assert (add.thread_sensitive, add.atomic, add.on_overflow) == (True, None, "truncate")
    assert (add.strict, add.permission, add.approval, add.tags) == (False, None, None, ())


def test_a_tool_does_not_change():
    with pytest.raises(AttributeError):
        add.name = "other"


def test_the_repr_tells_name_and_parameters():
    assert repr(add) == "<Tool add(a, b)>"


PERMITTED = "a Django permission, 'app_label.codename', such as 'shop.change_order', or None"
TIMED = "a number of seconds above 0, None for the setting, or inf for none"


@pytest.mark.parametrize(
    ("option", "value", "rule"),
    [
        ("description", 5, "text"),
        ("strict", 1, "True or False"),
        ("permission", "change_order", PERMITTED),
        ("permission", True, PERMITTED),
        ("approval", "yes", "an Approval, a function, True, False or None"),
        ("effect", "twice", "one of 'read', 'idempotent', 'transactional', 'once'"),
        ("timeout", 0, TIMED),
        ("timeout", "5", TIMED),
        ("timeout", True, TIMED),
        (
            "timeout",
            float("nan"),
            TIMED,
        ),
        ("retries", -1, "a whole number from 0"),
        ("retries", True, "a whole number from 0"),
        ("parallel", None, "True or False"),
        ("thread_sensitive", 0, "True or False"),
        ("atomic", 1, "True or False, or None"),
        ("on_overflow", "cut", "one of 'truncate', 'error'"),
        ("tags", "abc", "a list of strings"),
        ("tags", [1], "a list of strings"),
    ],
)
def test_an_option_that_cannot_be_is_refused(option, value, rule):
    with pytest.raises(ToolDefinitionError) as raised:
        tool(add.fn, **{option: value})

    assert str(raised.value) == f"{option} of the tool 'add' must be {rule}, not {value!r}."


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("permission", "shop.change_order"),
        ("approval", True),
        ("approval", len),
        ("approval", Approval()),
        ("effect", "read"),
        ("timeout", 0.5),
        ("retries", 0),
        ("atomic", True),
        ("tags", ["a"]),
    ],
)
def test_an_option_that_can_be_is_kept(option, value):
    made = tool(add.fn, **{option: value})

    assert getattr(made, option) == (tuple(value) if option == "tags" else value)


@pytest.mark.parametrize("effect", ["read", "idempotent"])
def test_a_tool_whose_call_may_be_repeated_may_have_retries(effect):
    assert tool(add.fn, effect=effect, retries=2).retries == 2


@pytest.mark.parametrize("effect", ["once", "transactional"])
def test_a_tool_whose_second_call_may_do_harm_has_no_retries(effect):
    with pytest.raises(ToolDefinitionError, match=f"its effect is '{effect}'"):
        tool(add.fn, effect=effect, retries=1)


def test_an_unknown_option_is_refused_with_the_list():
    with pytest.raises(ToolDefinitionError) as raised:
        tool(timout=5)

    assert str(raised.value) == (
        "@tool has no option 'timout'. Did you mean 'timeout'? Options are: approval, atomic, "
        "description, effect, name, on_overflow, parallel, parameters, params_model, "
        "permission, retries, strict, tags, thread_sensitive, timeout."
    )


@pytest.mark.parametrize(
    ("name", "proposed"),
    [
        ("größe suchen!", "groe_suchen"),
        ("x" * 65, "x" * 64),
        ("", "my_tool"),
        ("名前", "my_tool"),
        ("a.b", "a_b"),
        ("a\n", "a"),
        (5, "5"),
    ],
)
def test_a_name_that_providers_refuse_is_refused(name, proposed):
    with pytest.raises(ToolDefinitionError) as raised:
        tool(add.fn, name=name)

    assert str(raised.value) == (
        f"A tool cannot be named {name!r}: a name has 1 to 64 letters (a-z), digits, '_' and "
        f"'-'. Set one with @tool(name={proposed!r})."
    )


def test_a_lambda_needs_a_name():
    with pytest.raises(ToolDefinitionError, match="A tool cannot be named '<lambda>'"):
        tool(lambda: 1)

    assert tool(lambda: 1, name="one")() == 1


@pytest.mark.parametrize("thing", [5, "add", {}, [add]])
def test_what_is_not_a_function_is_refused(thing):
    with pytest.raises(ToolDefinitionError, match="A tool is made of a function, not of"):
        tool(thing)


def test_a_tool_of_a_tool_is_refused():
    with pytest.raises(ToolDefinitionError, match="It is a tool already"):
        tool(add)


def test_a_class_is_refused():
    class Search:
        """Search."""

    with pytest.raises(ToolDefinitionError, match="'Search' is a class"):
        tool(Search)


def test_explicit_parameters():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}

    made = tool(parameters=schema)(add.fn)

    assert made.to_schema()["function"]["parameters"] == schema
    with pytest.raises(InvalidArguments):
        made.parameters.validate('{"a": "1"}')


def test_a_params_model():
    class Sum(BaseModel):
        a: int
        b: int = 7

    made = tool(add.fn, params_model=Sum)

    assert made(**made.parameters.validate('{"a": "1"}')) == 8
    with pytest.raises(ToolDefinitionError, match="both parameters and params_model"):
        tool(add.fn, params_model=Sum, parameters={})


def test_a_tool_may_be_made_without_the_decorator():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}

    made = Tool(name="x", description="d", parameters=schema, fn=add.fn)
    other = Tool("x", "d", Parameters.from_signature(read(add.fn)), add.fn)

    assert made.parameters.validate('{"a": 1}') == {"a": 1}
    assert other.parameters.validate('{"a": 1}') == {"a": 1, "b": 2}


def test_a_strict_tool_says_so_on_the_wire():
    def fn(a: int, b: int = 2):
        raise NotImplementedError

    def loose(options: dict):
        raise NotImplementedError

    strict = tool(fn, strict=True).to_schema()["function"]
    fallen = tool(loose, strict=True)

    assert strict["strict"] is True
    assert strict["parameters"]["required"] == ["a", "b"]
    assert fallen.to_schema()["function"]["strict"] is False
    assert fallen.parameters.warnings
    assert "strict" not in add.to_schema()["function"]


def test_equal_tools_are_equal():
    again = tool(add.fn)

    assert add == add
    assert add != again
    assert hash(add) == hash(again)
    assert len({add, again}) == 2


def test_importing_tools_loads_no_pydantic():
    code = (
        "import sys, mlango.core.tools; "
        "print([m for m in ('pydantic', 'jsonschema', 'docstring_parser', 'litellm') "
        "if m in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


# -- kinds ----------------------------------------------------------------------------------


def plain():
    return 1


async def asynchronous():
    return 1


def generator():
    yield 1


async def async_generator():
    yield 1


class Callable:
    """Call it."""

    def __call__(self, a: int) -> int:
        """Be called.

        Args:
            a: A number.
        """
        return a


class AsyncCallable:
    async def __call__(self):
        return 1


class Holder:
    def method(self, a: int):
        """Do it."""
        return a

    async def amethod(self):
        return 1

    @classmethod
    def of_class(cls, a: int):
        return cls, a

    @staticmethod
    def static(self: int):
        return self

    def generate(self):
        yield 1


@functools.wraps(asynchronous)
def wrapper(*args, **kwargs):
    return asynchronous(*args, **kwargs)


@pytest.mark.parametrize(
    ("fn", "kind"),
    [
        (plain, "sync"),
        (asynchronous, "async"),
        (generator, "generator"),
        (async_generator, "async_generator"),
        (functools.partial(plain), "sync"),
        (functools.partial(functools.partial(asynchronous)), "async"),
        (functools.partial(generator), "generator"),
        (functools.partial(async_generator), "async_generator"),
        (AsyncCallable(), "async"),
        (functools.partial(AsyncCallable()), "async"),
        (Holder().amethod, "async"),
        (Holder().generate, "generator"),
        (sync_to_async(plain), "async"),
        (wrapper, "sync"),
    ],
)
def test_the_kind_of_a_function_is_known(fn, kind):
    made = tool(fn, name="x")

    assert made.kind == kind
    assert made.is_async == kind.startswith("async")


def test_a_wrapped_function_has_the_schema_of_the_inner_one():
    @functools.wraps(add.fn)
    def outer(*args, **kwargs):
        return add.fn(*args, **kwargs)

    made = tool(outer)

    assert made.name == "add"
    assert made.description == "Add two numbers."
    assert made.parameters.schema == add.parameters.schema


def test_a_callable_object_is_named_by_its_class():
    made = tool(Callable())

    assert made.name == "Callable"
    assert made.description == "Be called."
    assert made.parameters.schema["properties"]["a"]["description"] == "A number."
    assert made(5) == 5


def test_a_partial_keeps_name_and_description():
    made = tool(functools.partial(add.fn, b=5))

    assert made.name == "add"
    assert made.description == "Add two numbers."
    assert made.parameters.names == ("a",)
    assert made(1) == 6


# -- methods --------------------------------------------------------------------------------


class Agent:
    tone = "formal"
    shared = add

    @tool
    def lookup(self, query: str) -> str:
        """Look it up."""
        return f"{self.tone}: {query}"

    @tool(name="odd")
    def oddly_named(this, self: int, cls: int = 1):  # noqa: N805
        return this, self, cls

    @tool
    @classmethod
    def of_class(cls, a: int):
        return cls, a

    @tool
    @staticmethod
    def static(self: int):
        return self

    @tool
    async def later(self):
        return self

    class Inner:
        @tool
        def deep(self, n: int):
            return n


class SubAgent(Agent):
    tone = "friendly"


def test_a_method_becomes_a_tool_of_its_instance():
    agent = SubAgent()

    assert Agent.lookup.parameters.names == ("query",)
    assert agent.lookup("x") == "friendly: x"
    assert agent.lookup.method is None
    assert agent.lookup == agent.lookup
    assert agent.lookup != SubAgent().lookup
    assert agent.lookup.to_schema() == Agent.lookup.to_schema()
    assert Agent.lookup(agent, "y") == "friendly: y"
    assert Agent.lookup.bind(agent)("z") == "friendly: z"


def test_only_the_first_parameter_of_a_method_is_left_out():
    agent = Agent()

    assert agent.oddly_named.parameters.names == ("self", "cls")
    assert agent.oddly_named(**agent.oddly_named.parameters.validate('{"self": 1}')) == (
        agent,
        1,
        1,
    )
    assert Agent.Inner().deep(3) == 3


def test_class_methods_static_methods_and_async_methods_are_tools():
    agent = SubAgent()

    assert agent.of_class(1) == (SubAgent, 1)
    assert agent.of_class.parameters.names == ("a",)
    assert agent.static(1) == 1
    assert agent.static.parameters.names == ("self",)
    assert agent.later.kind == "async"
    assert asyncio.run(agent.later()) is agent


def test_a_tool_that_is_a_class_attribute_is_not_a_method():
    assert Agent().shared is add
    assert Agent().shared(1) == 3


def test_a_function_with_a_parameter_named_self_is_not_a_method():
    @tool
    def fn(self: str, cls: int):
        return self, cls

    assert fn.parameters.names == ("self", "cls")
    assert fn.method is None


def test_a_method_of_a_local_class_is_a_method():
    class Other(BaseModel):
        n: int

    class Local:
        class Item(BaseModel):
            n: int

        @tool
        def method(self, item: Item, other: Other) -> int:
            raise NotImplementedError

    assert Local().method.parameters.names == ("item", "other")


def test_a_bound_method_is_a_tool():
    holder = Holder()

    assert tool(holder.method).parameters.names == ("a",)
    assert tool(holder.method).description == "Do it."
    assert tool(holder.method)(1) == 1
    assert tool(Holder.of_class)(1) == (Holder, 1)
    assert tool(Holder.static).parameters.names == ("self",)


def test_an_unbound_method_is_refused():
    with pytest.raises(ToolDefinitionError) as raised:
        tool(Holder.method)

    assert str(raised.value) == (
        "'Holder.method' is a method without its instance. Decorate it in the class, or make a "
        "tool of the bound method: tool(Holder(...).method)."
    )


def test_a_method_without_self_is_refused():
    with pytest.raises(ToolDefinitionError, match="The method 'broken' takes no self"):

        class Local:
            @tool
            def broken():
                raise NotImplementedError


# -- docstrings -----------------------------------------------------------------------------


def described(doc):
    def fn(city, limit=5, description=""):
        raise NotImplementedError

    fn.__doc__ = doc
    made = tool(fn)
    properties = made.parameters.schema["properties"]
    return made.description, {
        name: inner["description"] for name, inner in properties.items() if "description" in inner
    }


GOOGLE = """Find the weather.

    Never call this on secrets: it is logged.

    Args:
        city (str): The city, which may be
            wrapped: with colons.
        missing: an error is returned.
        and this goes on.
        limit: How many.

    Returns:
        A text.

    Raises:
        ValueError: never.
    """

NUMPY = """Find the weather.

    Never call this on secrets: it is logged.

    Parameters
    ----------
    city : str
        The city, which may be
        wrapped: with colons.
    limit : int, optional
        How many.
    unknown : int
        Nothing of ours.

    Returns
    -------
    str
        A text.
    """

SPHINX = """Find the weather.

    Never call this on secrets: it is logged.

    :param city: The city, which may be
        wrapped: with colons.
    :type city: str
    :param int limit: How many.
    :returns: A text.
    """


@pytest.mark.parametrize("doc", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_docstrings_of_every_style_are_read(doc):
    text, parameters = described(doc)

    assert text == "Find the weather.\n\nNever call this on secrets: it is logged."
    assert parameters["limit"] == "How many."
    assert parameters["city"].startswith("The city, which may be wrapped: with colons.")
    assert set(parameters) == {"city", "limit"}


def test_only_a_parameter_opens_an_entry():
    _, parameters = described(GOOGLE)

    assert parameters["city"] == (
        "The city, which may be wrapped: with colons. missing: an error is returned. "
        "and this goes on."
    )


def test_prose_after_the_arguments_is_not_a_description():
    _, parameters = described(
        """Find.

        Args:
            city: The city.

        Note: limit: is not described here.
        """
    )

    assert parameters == {"city": "The city."}


@pytest.mark.parametrize(
    ("doc", "text"),
    [
        (None, ""),
        ("", ""),
        ("One line.", "One line."),
        ("Two\nlines.", "Two\nlines."),
        ("One.\n\n    Indented.\n    More.\n", "One.\n\nIndented.\nMore."),
        ("Find: a thing.\n\nNote: more.", "Find: a thing.\n\nNote: more."),
    ],
)
def test_a_docstring_without_entries_is_the_description(doc, text):
    assert described(doc) == (text, {})


@pytest.mark.parametrize(
    "doc",
    [
        "Find.\n\nArgs:\n    city: The city.\n\nRaises:\n    ToolError if there is none.",
        "Find.\n\n@param city: The city.\n@return: A text.",
        "Find.\n\nParameters\n----------\ncity, limit : str\n    The city.",
    ],
)
def test_docstrings_need_not_be_perfect(doc):
    text, parameters = described(doc)

    assert text == "Find."
    assert parameters["city"] == "The city."


def test_a_docstring_that_cannot_be_parsed_is_the_description():
    doc = "Find.\n\n:param city: The city.\n:: x"

    assert described(doc) == (doc, {})


def test_an_annotation_describes_before_the_docstring():
    @tool
    def fn(city: Annotated[str, "From the annotation."]):
        """Find.

        Args:
            city: From the docstring.
        """

    assert fn.parameters.schema["properties"]["city"]["description"] == "From the annotation."


# -- results --------------------------------------------------------------------------------


class Model(BaseModel):
    n: int


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("text", "text"),
        ("", ""),
        ("a\0b\ud800", "a␀b\ufffd"),
        (None, "null"),
        (True, "true"),
        (3, "3"),
        (2**70, str(2**70)),
        (float("nan"), "null"),
        ({"a": "ü", 1: None}, '{"a": "ü", "1": null}'),
        ([1, {"b": 2}], '[1, {"b": 2}]'),
        ([{"type": "text", "text": "data"}], '[{"type": "text", "text": "data"}]'),
        (Model(n=1), '{"n": 1}'),
        ((n for n in range(2)), "[0, 1]"),
        (b"raw", "raw"),
        (ToolResult("ok"), "ok"),
        (ToolResult({"a": 1}), '{"a": 1}'),
        (ToolResult(["a", "b"]), '["a", "b"]'),
        (ToolResult([{"a": 1}]), '[{"a": 1}]'),
    ],
)
def test_a_returned_value_is_read_by_the_model(value, content):
    assert render(add, value, 20_000) == (content, False, None)


def test_a_result_may_carry_details_and_be_an_error():
    result = ToolResult("no", details={"at": {1, 2}, "n": float("inf")}, is_error=True)

    assert render(add, result, None) == ("no", True, {"at": [1, 2], "n": None})


def test_a_result_may_hold_images_and_files():
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    file = {"type": "file", "file": {"filename": "a\0.txt", "file_data": "data:,x"}}

    content, is_error, _ = render(add, ToolResult(["look\0", image, file]), 10)

    assert not is_error
    assert content == [
        {"type": "text", "text": "look␀"},
        image,
        {"type": "file", "file": {"filename": "a␀.txt", "file_data": "data:,x"}},
    ]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": "https://example.com/a.png"},
        {"type": "text"},
        {"type": "video", "video": {}},
        5,
    ],
)
def test_a_part_that_no_model_reads_is_refused(part):
    good = {"type": "text", "text": "x"}

    with pytest.raises(TypeError, match="A content part is text or a dict whose 'type' is one of"):
        ToolResult([good, part])


def test_a_long_result_is_cut_in_the_middle():
    content, is_error, _ = render(add, "a" * 500 + "z" * 500, 200)

    assert len(content) <= 200
    assert content.startswith("aaa")
    assert content.endswith("zzz")
    assert "of 1,000 characters left out" in content
    assert not is_error


@pytest.mark.parametrize(
    "value", ["a" * 1001, ToolResult([{"type": "text", "text": "a" * 1001}]), ["a" * 997]]
)
def test_a_long_result_is_refused_if_the_tool_says_so(value):
    refusing = tool(add.fn, on_overflow="error")

    assert render(refusing, value, 1000) == (
        "The result of 'add' has 1,001 characters, but at most 1,000 are allowed. Ask for less.",
        True,
        None,
    )


def test_long_parts_share_the_limit():
    image = {"type": "image_url", "image_url": {"url": "x" * 5000}}

    content, _, _ = render(add, ToolResult(["a" * 300, image, "b" * 300, "c" * 300]), 400)

    texts = [part["text"] for part in content if part["type"] == "text"]
    assert texts[0] == "a" * 300
    assert all("characters left out" in text for text in texts[1:])
    assert content[1] == image


def test_what_a_result_lost_is_noted():
    notes = []

    render(add, {"a": float("nan")}, None, notes)

    assert notes == ["nan became null"]


# -- many tools -----------------------------------------------------------------------------


def named(name):
    return tool(lambda: name, name=name)


def test_a_toolbox_keeps_order_and_finds_by_name():
    one, two = named("one"), named("two")
    box = Toolbox([two, one, two])

    assert list(box) == [two, one]
    assert box.names == ("two", "one")
    assert len(box) == 2
    assert "one" in box
    assert box.get("one") is one
    assert box.get("nope") is None
    assert repr(box) == "<Toolbox: two, one>"


def test_two_tools_with_one_name_are_refused():
    with pytest.raises(Misconfigured) as raised:
        Toolbox([add, tool(plain, name="add")])

    assert str(raised.value) == (
        f"Two tools are named 'add': {__name__}.add and {__name__}.plain. "
        f"Rename one with @tool(name=…)."
    )


def test_a_bound_tool_twice_is_one_tool():
    agent = Agent()

    assert len(Toolbox([agent.lookup, agent.lookup])) == 1
    with pytest.raises(Misconfigured, match="Two tools are named 'lookup'"):
        Toolbox([agent.lookup, Agent().lookup])


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (plain, "Decorate the function with @tool."),
        ("add", "Write the tool itself, not its name."),
        (Toolset, "Write Toolset()."),
        (None, "Tools are functions and methods with @tool above them, and toolsets."),
    ],
)
def test_what_is_not_a_tool_is_refused_with_what_to_write(thing, words):
    with pytest.raises(Misconfigured, match=f"is not a tool. {re.escape(words)}"):
        Toolbox([thing])


def test_a_transactional_tool_needs_its_transaction():
    with pytest.raises(ToolDefinitionError, match="'plain' cannot be transactional with atomic="):
        tool(plain, effect="transactional", atomic=False)


def test_a_method_without_its_instance_is_refused():
    with pytest.raises(Misconfigured, match=r"Agent\.lookup' is a method and needs its instance"):
        Toolbox([Agent.lookup])


@pytest.mark.parametrize("name", ["nope", "invalid tool", "", "a" * 500, "x\0\ud800"])
def test_an_unknown_name_is_answered_with_the_list(name):
    text = Toolbox([named("one"), named("two")]).unknown(name)

    assert text.startswith("There is no tool '")
    assert text.endswith(" Tools are: one, two.")
    assert len(text) < 250
    assert text.encode()


def test_the_answer_suggests_and_is_bounded():
    box = Toolbox([named(f"tool_{n}") for n in range(60)])

    text = box.unknown("tol_7")

    assert "Did you mean 'tool_7'?" in text
    assert text.endswith("tool_49 and 10 more.")
    assert Toolbox().unknown("x") == "There is no tool 'x'. Tools are: none."


def test_schemas_are_encoded_once():
    schemas = Toolbox([add, named("one")]).schemas

    assert isinstance(schemas, ToolSchemas)
    assert json.loads(schemas.encoded) == list(schemas)
    assert schemas.encoded is schemas.encoded
    assert not Toolbox().schemas


def test_schemas_are_adapted_once_for_a_dialect():
    class Node(BaseModel):
        child: Node | None = None

    def fn(a: int | None = None, b: Annotated[int, "B."] = 5):
        raise NotImplementedError

    schemas = Toolbox([tool(fn)]).schemas
    gemini = schemas.adapt("gemini")

    assert schemas.adapt() is schemas
    assert schemas.adapt("gemini") is gemini
    assert gemini[0]["function"]["parameters"]["properties"] == {
        "a": {"type": "integer"},
        "b": {"type": "integer", "description": "B."},
    }
    compact = schemas.adapt(compact=True)[0]["function"]["parameters"]["properties"]
    assert compact["b"] == {"type": "integer", "default": 5}

    def grow(node: Node):
        raise NotImplementedError

    with pytest.raises(ToolDefinitionError, match=r"The tool 'grow': .* through 'Node'"):
        Toolbox([tool(grow)]).schemas.adapt("gemini")


class Static(Toolset):
    def get_tools(self, ctx):
        return [add]


class Remote(Toolset):
    async def get_tools(self, ctx):
        schema = {"type": "object", "properties": {"name": {"type": "string"}}}
        return [self.remote("far__away", "Far.", schema, timeout=5)]

    async def call(self, name, arguments, ctx):
        return name, arguments, ctx


def test_toolsets_stand_for_their_tools():
    ctx: Any = Context(None)

    box = asyncio.run(Toolbox.collect([named("one"), Static(), Remote()], ctx))

    assert box.names == ("one", "add", "far__away")
    remote = box.get("far__away")
    assert (remote.kind, remote.timeout) == ("async", 5)
    arguments = remote.parameters.validate('{"name": "x"}')
    (injected,) = remote.parameters.injected
    assert asyncio.run(remote(**arguments, **{injected: ctx})) == (
        "far__away",
        {"name": "x"},
        ctx,
    )


def test_a_toolset_must_say_what_it_holds():
    with pytest.raises(NotImplementedError, match=r"Toolset must override get_tools\(\)"):
        Toolset().get_tools(None)
    with pytest.raises(NotImplementedError, match=r"Toolset must override call\(\)"):
        asyncio.run(Toolset().call("x", {}, None))


def calls_of(function, *args):
    """Return how many calls, of Python and of C, one call of a function takes."""
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    function(*args)
    sys.setprofile(count)
    try:
        function(*args)
    finally:
        sys.setprofile(None)
    return calls - 1  # setprofile itself


def test_validating_takes_few_calls():
    assert calls_of(add.parameters.validate, '{"a": 1, "b": 2}') <= 5


@pytest.mark.parametrize(("value", "most"), [("text", 4), (3, 4), (None, 6)])
def test_rendering_takes_few_calls(value, most):
    assert calls_of(render, add, value, 20_000) <= most


def test_nothing_is_inspected_when_a_tool_is_called(monkeypatch):
    monkeypatch.setattr(inspect, "signature", None)

    assert render(add, add(**add.parameters.validate('{"a": 1}')), None)[0] == "3"
