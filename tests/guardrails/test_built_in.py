"""The guardrails that come with mlango: what each finds, what it says, and how it is made."""

import pytest

from mlango.agents import (
    Agent,
    Block,
    DenyTopics,
    Guardrail,
    LLMJudge,
    MaxLength,
    Regex,
    Rewrite,
    SecretScan,
    tool,
)
from mlango.agents.guardrails import BUILT_IN, guardrail_of, guardrails_of
from mlango.agents.providers import ScriptedProvider, ToolCall
from mlango.exceptions import Misconfigured

KEY = "sk-" + "a1B2" * 8
EVIL = "a" * 50_000 + "b"


@tool
def send(to: str, lines: list[str] | None = None, copies: int = 1) -> str:
    """Send a letter."""
    return f"sent {copies} to {to}: {lines}"


def arguments(guardrail, **given):
    return guardrail.check_arguments(given)


# -- the family -------------------------------------------------------------------------------

EXAMPLES = {
    "max-length": (MaxLength(5), "six or more"),
    "secret-scan": (SecretScan(), f"my key is {KEY}"),
    "regex": (Regex("six or"), "six or more"),
    "deny-topics": (DenyTopics(["six or"]), "six or more"),
    "llm-judge": (LLMJudge("No.", provider=ScriptedProvider(["BLOCK"] * 3)), "six or more"),
}


def test_each_built_in_guardrail_has_an_example():
    assert set(EXAMPLES) == set(BUILT_IN)


def blocked(guardrail, on, text):
    """Return the run of an agent that is told, says or sends ``text``."""
    guardrail.on = (on,)
    meta = type(
        "Meta",
        (),
        {"app_label": "guarded", "guardrails": [guardrail], "tools": [send], "tracing": False},
    )
    kind = type("Clerk", (Agent,), {"Meta": meta, "__module__": __name__})
    answer = [ToolCall("", "send", {"to": text})] if on == "tools" else text
    turns = [answer, "ok"] if on == "tools" else [answer]
    return kind().run(text if on == "input" else "hi", provider=ScriptedProvider(turns))


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("on", ["input", "output", "tools"])
def test_each_blocks_everywhere_and_quotes_nothing(name, on):
    guardrail, text = EXAMPLES[name]
    run = blocked(guardrail, on, text)

    told = run.error if on != "tools" else run.tool_results[0].content
    assert f"guardrail {name!r}" in told
    assert text not in told
    assert KEY not in told
    assert run.stop_reason == ("guardrail" if on != "tools" else "end_turn")


@pytest.mark.parametrize("name", BUILT_IN)
def test_each_guards_input_and_output_by_default(name):
    needed = {"regex": {"pattern": "x"}, "deny-topics": {"topics": ["x"]}}
    needed["llm-judge"] = {"instruction": "x"}
    made = guardrail_of("here", {"type": name, **needed.get(name, {})})

    assert made.name == name
    assert made.on == ("input", "output")


# -- each -------------------------------------------------------------------------------------


def test_max_length_counts_characters():
    assert MaxLength(5).check_text("12345") is None
    assert MaxLength(5).check_text("123456") == Block("6 characters, but at most 5 are allowed.")
    assert MaxLength().max_chars == 10_000
    assert isinstance(arguments(MaxLength(20), to="b", lines=["1234567890"]), Block)


@pytest.mark.parametrize("wrong", [0, -1, "5", True, None])
def test_max_length_refuses_what_is_no_length(wrong):
    with pytest.raises(Misconfigured, match="max_chars"):
        MaxLength(wrong)


@pytest.mark.parametrize(
    "secret",
    [
        KEY,
        "AKIA" + "A1B2" * 4,
        "ghp_" + "a1B2" * 8,
        "postgres://ann:hunter2@db/x",
        "-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----",
    ],
)
def test_a_secret_is_found_by_its_form(secret):
    assert isinstance(SecretScan().check_text(f"look: {secret} !"), Block)
    rewritten = SecretScan(action="rewrite").check_text(f"look: {secret} !")
    assert rewritten.value.startswith("look: ")
    assert "[secret]" in rewritten.value
    assert secret not in rewritten.value


def test_a_secret_of_this_site_is_found_by_its_value(settings):
    settings.SECRET_KEY = "not-like-any-other-key"
    verdict = SecretScan(action="rewrite", replacement="…").check_text(
        f"The key is {settings.SECRET_KEY}."
    )
    assert verdict == Rewrite("The key is ….", verdict.reason)


def test_a_replacement_is_taken_as_it_is():
    assert SecretScan(action="rewrite", replacement=r"\1").check_text(KEY).value == r"\1"
    assert Regex("b", action="rewrite", replacement=r"\1").check_text("abc").value == r"a\1c"


def test_ordinary_text_holds_no_secret():
    assert (
        SecretScan().check_text("Ask the risk-averse task force at https://a.example/x.") is None
    )


def test_secrets_inside_of_arguments_are_rewritten_there():
    verdict = arguments(SecretScan(action="rewrite"), to="b", lines=["x", KEY], copies=2)
    assert verdict.value == {"to": "b", "lines": ["x", "[secret]"], "copies": 2}


def test_a_regex_is_searched_for_everywhere():
    assert Regex(r"\d{3}-\d{4}").check_text("call 555-1234 now") == Block(
        "It matches a pattern that is not allowed."
    )
    assert Regex("bomb").check_text("BOMB") is None
    assert isinstance(Regex("bomb", flags="i").check_text("BOMB"), Block)
    assert isinstance(arguments(Regex("555"), copies=555), Block)


@pytest.mark.parametrize(
    "written", ["b\\u006fmb", "b&#111;mb", "b%6Fmb", "bo\u200bmb", "ｂｏｍｂ"]
)
def test_another_way_of_writing_hides_nothing(written):
    assert isinstance(Regex("bomb").check_text(written), Block)
    assert isinstance(Regex("bomb", action="rewrite").check_text(written), Block)
    assert isinstance(DenyTopics(["Bomb"]).check_text(written), Block)


def test_a_regex_rewrites_what_it_matches():
    regex = Regex(r"\d+", action="rewrite", replacement="#")
    assert regex.check_text("1 and 22").value == "# and #"
    assert regex.check_text("none") is None
    assert arguments(regex, to="b 7", lines=[]).value == {"to": "b #", "lines": []}


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)+$", "(a|aa)+$", "(a+a+)+$"])
@pytest.mark.parametrize("action", ["block", "rewrite"])
def test_no_pattern_can_hang(pattern, action):
    with pytest.raises(TimeoutError):
        Regex(pattern, action=action).check_text(EVIL)


@pytest.mark.parametrize("text", ["eyJ-" * 25_000, "-----BEGIN " * 10_000, "://a:" * 20_000])
def test_a_long_text_of_half_secrets_holds_none(text):
    assert SecretScan().check_text(text) is None


def test_a_search_that_takes_too_long_stops_the_run():
    run = blocked(Regex("(a+)+$"), "input", EVIL)
    assert run.error == "Stopped by the guardrail 'regex': The check failed with TimeoutError."


def test_a_text_that_is_too_long_to_be_searched_is_refused():
    assert Regex("x").check_text("a" * 100_000) is None
    assert isinstance(Regex("x").check_text("a" * 100_001), Block)
    assert Regex("x", max_chars=200_000).check_text("a" * 100_001) is None


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda: Regex("(a"), "is not a regular expression: missing"),
        (lambda: Regex(3), r"pattern of Regex\(\) must be text, not 3"),
        (lambda: Regex("a*"), "matches an empty text"),
        (lambda: Regex("a", flags="iy"), "the flag 'y' is unknown"),
        (lambda: Regex("a", action="rewrit"), "Did you mean 'rewrite'"),
        (lambda: SecretScan(action="redact"), "must be one of 'block', 'rewrite', not 'redact'"),
        (lambda: SecretScan(on="outputs"), "Did you mean 'output'"),
        (lambda: Regex("a", flags=None), r"flags of Regex\(\) must be text, not None"),
        (lambda: Regex("a", max_chars=0), "max_chars of .* a whole number above 0, not 0"),
        (lambda: Regex("a", replacement=None), "replacement of .* text, not None"),
        (lambda: SecretScan(replacement=3), "replacement of .* text, not 3"),
        (lambda: LLMJudge("No jokes.", timeout=0), "timeout of .* a number of seconds above 0"),
        (lambda: LLMJudge("No jokes.", model=3), "model of .* text, not 3"),
        (lambda: LLMJudge("No jokes.", provider=3), "provider of .* the alias"),
        (lambda: SecretScan(on=5), r"on of SecretScan .*, not 5"),
        (lambda: DenyTopics(None), "a list of words"),
        (lambda: DenyTopics("bomb"), "a list of words"),
        (lambda: DenyTopics([]), "a list of words"),
        (lambda: DenyTopics(["bomb", " "]), "a list of words"),
        (lambda: LLMJudge(" "), "instruction of .* what is allowed"),
    ],
)
def test_what_cannot_be_right_is_refused_when_it_is_made(made, told):
    with pytest.raises(Misconfigured, match=told):
        made()


def test_a_topic_is_found_in_any_case_and_over_any_space():
    topics = DenyTopics(["Tax  Advice", "straße"])
    assert isinstance(topics.check_text("some TAX\nadvice, please"), Block)
    assert isinstance(topics.check_text("STRASSE"), Block)
    assert topics.check_text("taxes; advice") is None
    assert "advice" not in topics.check_text("tax advice").reason


# -- by class, by name, by spec -------------------------------------------------------------------


def test_guardrails_are_given_as_they_are_by_class_by_name_and_by_spec():
    made = guardrails_of(
        "here",
        [
            MaxLength(5),
            SecretScan,
            "max-length",
            {"type": "max-length", "maxChars": 7, "on": "tools"},
            {"type": "deny-topics", "topics": ["bombs"], "on": ["output"]},
        ],
    )

    assert [type(each) for each in made] == [
        MaxLength,
        SecretScan,
        MaxLength,
        MaxLength,
        DenyTopics,
    ]
    assert (made[3].max_chars, made[3].on) == (7, ("tools",))


class Odd(Guardrail):
    """Says by itself what it is on, wrongly."""

    def __init__(self):
        self.on = "outputs"

    def check_output(self, text):
        """Let everything through."""


@pytest.mark.parametrize(
    ("declared", "told"),
    [
        (
            "deny-topic",
            r"here\[0\]: unknown guardrail 'deny-topic'\. Did you mean 'deny-topics'\?",
        ),
        ("deny-topics", r"here\[0\]: deny-topics needs 'topics'"),
        ({"topics": ["a"]}, "unknown guardrail ''.* Guardrails are: max-length, secret-scan"),
        ({"type": "max-length", "maxChar": 3}, "no option 'max_char'. Did you mean 'max_chars'"),
        (7, "is 7, which is not a guardrail"),
        (Agent, "which is not a guardrail"),
        (Guardrail, "Guardrail checks nothing"),
        (MaxLength(on=()), "MaxLength checks nothing"),
        (Odd, "Did you mean 'output'"),
    ],
)
def test_a_wrong_guardrail_is_refused_with_what_would_be_right(declared, told):
    with pytest.raises(Misconfigured, match=told):
        guardrails_of("here", [declared])


def test_an_agent_with_a_wrong_guardrail_cannot_be_declared():
    with pytest.raises(Misconfigured, match=r"Clerk.Meta.guardrails\[0\]: unknown"):

        class Clerk(Agent):
            class Meta:
                app_label = "guarded"
                guardrails = ["secrets-scan"]

    with pytest.raises(Misconfigured, match="must be a list of guardrails"):

        class Other(Agent):
            class Meta:
                app_label = "guarded"
                guardrails = "secret-scan"
