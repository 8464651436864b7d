"""Guardrails and values: the value is made of the text that the guardrails let pass."""

from pydantic import BaseModel

from mlango.agents import Agent, Block, Guardrail, Rewrite
from mlango.agents.providers import ScriptedProvider
from mlango.agents.providers.scripted import call


class Note(BaseModel):
    text: str


class Masking(Guardrail):
    """Masks a word and blocks another."""

    def check_output(self, text, ctx):
        if "forbidden" in text:
            return Block("No.")
        return Rewrite(text.replace("secret", "******")) if "secret" in text else None


class Writer(Agent):
    class Meta:
        output = Note
        guardrails = [Masking()]
        tracing = False
        abstract = True


def write(text):
    return Writer().run("hi", provider=ScriptedProvider([call("final_answer", text=text)]))


def test_the_value_is_made_of_the_rewritten_text():
    assert write("a secret").output == Note(text="a ******")


def test_a_blocked_answer_is_no_value():
    result = write("forbidden")
    assert (result.stop_reason, result.output) == ("guardrail", None)
