"""Wrong options: what each says, and that nothing has begun by then."""

import asyncio
import re
from types import SimpleNamespace

import pytest
from django.contrib.auth import get_user_model

from mlango.agents import (
    Agent,
    Approval,
    BufferMemory,
    Compaction,
    Durable,
    Limits,
    Quota,
    Retry,
    WindowMemory,
    allow,
    ask,
    deny,
)
from mlango.agents.providers import ScriptedProvider
from mlango.exceptions import Misconfigured, Misused
from mlango.models import Approval as Row
from mlango.models import Trace

pytestmark = pytest.mark.django_db(transaction=True)


class Clerk(Agent):
    class Meta:
        app_label = "arguments"


WRONG = [
    ("user", "ann", "a user, such as request.user or a row of the user model, or None"),
    ("user", 7, "a user, such as request.user"),
    ("user", get_user_model, "a user, such as request.user"),
    ("approve", True, "a function that returns True, False, a reason or None, or None"),
    ("session_id", 5, "text, or None"),
    ("memory", "x", "a memory such as BufferMemory(k=20), or None"),
    ("memory", dict, "a memory such as BufferMemory(k=20)"),
    ("request", {"user": None}, "an HttpRequest"),
    ("provider", 5, "the alias of a provider, or a Provider"),
    ("provider", ScriptedProvider, "the alias of a provider, or a Provider"),
    ("model", 5, "a model such as 'provider/model' or an alias"),
    ("limits", {"max_steps": 3}, "Limits(...)"),
    ("max_steps", 0, "a whole number above 0"),
    ("max_steps", True, "a whole number above 0"),
    ("metadata", "x", "a dict"),
    ("buffered", "yes", "True or False"),
    ("raise_on_error", 0, "True or False"),
    ("idempotency_key", "", "text of 1 to 255 characters"),
    ("max_tokens", "many", "a whole number of tokens above 0"),
    ("temperature", "warm", "a number from 0"),
    ("temperature", float("nan"), "a number from 0"),
    ("stop_sequences", "END", "a list of strings"),
    ("thinking", "hard", "one of None, 'adaptive'"),
]


@pytest.mark.parametrize(("name", "value", "words"), WRONG)
def test_a_run_option_that_cannot_be_is_refused_before_anything_is_written(name, value, words):
    given, told = {"provider": "echo", name: value}, rf"{name} must be {re.escape(words)}.*, not "

    for begin in (Clerk().run, Clerk().stream, Clerk().enqueue, Clerk.chat):
        with pytest.raises(Misused, match=told):
            begin("hi", **given)
    with pytest.raises(Misused, match=told):
        asyncio.run(Clerk().arun("hi", **given))

    assert not Trace.objects.exists()


def test_a_choice_that_is_misspelt_is_suggested():
    with pytest.raises(Misused, match=r"not 'adaptiv'\. Did you mean 'adaptive'\?"):
        Clerk().run("hi", thinking="adaptiv")


def test_a_run_does_not_go_on_with_what_cannot_be():
    stopped = Clerk().run("hi", provider="echo", max_steps=1)

    for go_on in (Clerk().resume, lambda trace, **given: Clerk().fork(trace, 1, **given)):
        with pytest.raises(Misused, match="user must be a user"):
            go_on(stopped, user="ann")

    assert Trace.objects.count() == 1


def test_whoever_decides_is_a_user():
    with pytest.raises(Misused, match=r"by must be a user, such as request\.user, not 'ann'"):
        Row(kind="tool").approve(by="ann")


def test_a_user_is_whoever_is_authenticated_somehow():
    token = SimpleNamespace(is_authenticated=True, pk="token:7", is_active=True)

    ran = Clerk().run("hi", provider="echo", user=token, session_id="s", memory=BufferMemory)

    assert ran.trace.owner_key == "token:7"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Limits(max_steps="3"), "max_steps of Limits() must be a whole number above 0"),
        (lambda: Limits(max_cost_usd="5"), "max_cost_usd of Limits() must be a number of US doll"),
        (lambda: Limits(on_exceeded="stopp"), "not 'stopp'. Did you mean 'stop'?"),
        (lambda: Limits(allow_unpriced="no"), "allow_unpriced of Limits() must be True or False"),
        (lambda: Quota(usd="5", per="user", every="day"), "usd of Quota() must be a number"),
        (lambda: Quota(usd=5, per="users", every="day"), "Did you mean 'user'?"),
        (lambda: Quota(usd=5, per=["user"], every="day"), "per of Quota() must be one of"),
        (
            lambda: Approval(permission=None),
            "permission of Approval() must be a Django permission",
        ),
        (lambda: Approval(when=True), "when of Approval() must be a function"),
        (lambda: Approval(four_eyes="yes"), "four_eyes of Approval() must be True or False"),
        (lambda: Approval(expires=60), "expires of Approval() must be a positive timedelta"),
        (lambda: Compaction(threshold="0.9"), "threshold of Compaction() must be above 0"),
        (lambda: Compaction(strategy="summarize"), "Did you mean 'summarise'?"),
        (lambda: Compaction(summarizer=5), "summarizer of Compaction() must be a model or a func"),
        (lambda: Compaction(keep=1.5), "keep of Compaction() must be a whole number of tokens"),
        (lambda: Retry(max_retries="3"), "max_retries of Retry() must be a whole number from 0"),
        (lambda: Retry(base_delay=float("nan")), "base_delay of Retry() must be a number of sec"),
        (lambda: Durable(unknown="tell"), "unknown of Durable() must be one of 'ask'"),
        (lambda: Durable(max_crashes=True), "max_crashes of Durable() must be a whole number"),
        (lambda: allow(5), "pattern of allow() must be the name of a tool, or a pattern"),
        (lambda: ask(""), "pattern of ask() must be the name of a tool"),
        (lambda: deny("x", when="always"), "when of deny() must be a function"),
        (lambda: WindowMemory(k="5"), "k of WindowMemory() must be a whole number above 0"),
        (lambda: WindowMemory(keep_first=0), "keep_first of WindowMemory() must be a whole"),
    ],
)
def test_an_option_class_names_what_is_wrong_and_what_would_be_right(make, words):
    with pytest.raises(Misconfigured, match=re.escape(words)):
        make()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("provider", 5),
        ("provider", ScriptedProvider),
        ("temperature", float("nan")),
        ("disclose_errors", None),
        ("stop_sequences", "END"),
        ("max_subagent_depth", "1"),
    ],
)
def test_a_meta_option_that_cannot_be_is_refused_when_the_class_is_made(option, value):
    with pytest.raises(Misconfigured, match=rf"Wrong\.Meta\.{option} must be .*, not "):
        type("Wrong", (Agent,), {"Meta": type("Meta", (), {option: value})})
