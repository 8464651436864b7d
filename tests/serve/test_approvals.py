"""``as_approvals_endpoint()`` and ``urls``: deciding over HTTP, for the right people."""

import json

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.test import AsyncClient, Client, override_settings

from mlango.agents import Agent, Approval, Context, SignInRequired, tool
from mlango.agents.providers import ScriptedProvider, ToolCall
from mlango.models import Approval as Row
from mlango.serve import include, path

pytestmark = pytest.mark.django_db(transaction=True)

refunds = []


@tool(approval=True)
def refund(order: int, note: str = "") -> str:
    """Refund an order."""
    refunds.append((order, note))
    return "refunded"


@tool(approval=Approval(permission="auth.delete_user"))
def erase(order: int) -> str:
    """Erase an order."""
    refunds.append(order)
    return "erased"


@tool
def ticket(number: int, context: Context) -> str:
    """Look a ticket up, where the user must have signed in."""
    if context.user.email == "":
        raise SignInRequired("https://tracker.test/login?state=1")
    refunds.append(number)
    return "open"


class Desk(Agent):
    """Helps."""

    class Meta:
        app_label = "served"
        tools = [refund, erase, ticket]
        ask_question = True


class Model(ScriptedProvider):
    """Calls what the test says, and then says that it is done."""

    first: list = []

    def __init__(self):
        super().__init__([*type(self).first, "Done."])


class Lead(Agent):
    """Leads."""

    class Meta:
        app_label = "served"
        subagents = [Desk]


class Other(Agent):
    """Has nothing to do with it."""

    class Meta:
        app_label = "served"


urlpatterns = [
    path("desk/", include(Desk.urls)),
    path("lead/", include(Lead.urls)),
    path("other/", include(Other.urls)),
]


@pytest.fixture(autouse=True)
def _site(settings):
    refunds.clear()
    Model.first = [[ToolCall("a", "refund", {"order": 7})]]
    model = f"{__name__}.Model"
    settings.MLANGO = {"PROVIDERS": {"model": model}, "DEFAULT_PROVIDER": "model"}
    settings.ROOT_URLCONF = __name__


@pytest.fixture
def ann():
    return get_user_model().objects.create_user("ann")


def client_of(user):
    client = Client()
    client.force_login(user)
    return client


def post(client, url, **fields):
    return client.post(url, json.dumps(fields), content_type="application/json")


def decide(client, **fields):
    return post(client, "/desk/approvals/", **fields)


@pytest.fixture
def waiting(ann):
    """Return the client of a user whose run waits, and the approval's id."""
    client = client_of(ann)
    answer = post(client, "/desk/run/", message="Refund order 7").json()
    assert answer["status"] == "waiting"
    return client, answer["approvals"][0]["approval"]


def test_what_waits_is_listed(waiting):
    client, approval = waiting
    (listed,) = client.get("/desk/approvals/").json()["approvals"]
    assert listed["approval"] == approval
    assert (listed["tool"], listed["arguments"]) == ("refund", {"order": 7, "note": ""})


def test_an_approved_call_runs_and_the_owner_reads_the_answer(waiting):
    client, approval = waiting
    answer = decide(client, approval=approval, decision="approve").json()
    assert refunds == [(7, "")]
    assert (answer["run"]["status"], answer["run"]["output"]) == ("finished", "Done.")
    assert answer["approval"]["status"] == "approved"
    assert client.get("/desk/approvals/").json() == {"approvals": []}


def test_a_rejected_call_does_not_run(waiting):
    client, approval = waiting
    decide(client, approval=approval, decision="reject", note="no")
    assert refunds == []


def test_an_argument_may_be_named_like_a_field(waiting):
    client, approval = waiting
    decide(client, approval=approval, decision="edit", arguments={"note": "half"})
    assert refunds == [(7, "half")]


def test_it_is_decided_once(waiting):
    client, approval = waiting
    decide(client, approval=approval, decision="approve")
    assert decide(client, approval=approval, decision="approve").status_code == 409
    assert refunds == [(7, "")]


@pytest.mark.parametrize("decision", ["happened", "did_not_happen", "run_again"])
def test_somebody_says_what_became_of_a_call_that_was_cut_off(waiting, decision):
    client, approval = waiting
    Row.objects.update(kind="unknown")
    assert decide(client, approval=approval, decision="approve").status_code == 400

    answer = decide(client, approval=approval, decision=decision, note="I looked.").json()

    assert answer["approval"]["status"] == "approved"
    row = Row.objects.get(pk=approval)
    assert decision.startswith(row.choice) or row.choice == "again"
    assert refunds == []


def test_somebody_else_learns_nothing(waiting):
    _, approval = waiting
    other = client_of(get_user_model().objects.create_user("other"))
    assert other.get("/desk/approvals/").json() == {"approvals": []}
    response = decide(other, approval=approval, decision="approve")
    assert response.status_code == 404
    assert refunds == []


def test_who_decides_for_others_does_not_read_their_run(waiting):
    _, approval = waiting
    boss = get_user_model().objects.create_user("boss")
    boss.user_permissions.add(Permission.objects.get(codename="decide_approval"))
    answer = decide(client_of(boss), approval=approval, decision="approve").json()
    assert refunds == [(7, "")]
    assert set(answer["run"]) == {"trace", "status"}


def test_the_owner_alone_may_not_decide_what_needs_a_permission(ann):
    Model.first = [[ToolCall("a", "erase", {"order": 7})]]
    client = client_of(ann)
    answer = post(client, "/desk/run/", message="hi").json()
    response = decide(client, approval=answer["approvals"][0]["approval"], decision="approve")
    assert response.status_code == 403
    assert refunds == []


def test_a_question_is_answered(ann):
    Model.first = [[ToolCall("a", "ask_question", {"question": "Which?"})]]
    client = client_of(ann)
    (asked,) = post(client, "/desk/run/", message="hi").json()["approvals"]
    wrong = decide(client, approval=asked["approval"], decision="approve")
    assert wrong.status_code == 400
    answer = decide(client, approval=asked["approval"], decision="answer", note="the red one")
    assert answer.json()["run"]["status"] == "finished"
    assert Row.objects.get().note == "the red one"


@pytest.mark.parametrize("decision", ["signed_in", "reject"])
def test_a_sign_in_is_for_the_user_of_the_run_alone(ann, decision):
    Model.first = [[ToolCall("a", "ticket", {"number": 7})]]
    client = client_of(ann)
    (asked,) = post(client, "/desk/run/", message="hi").json()["approvals"]
    assert (asked["kind"], asked["arguments"]["label"]) == ("sign_in", "tracker.test")
    boss = client_of(get_user_model().objects.create_superuser("boss"))
    assert boss.get("/desk/approvals/").json() == {"approvals": []}
    fields = {"approval": asked["approval"], "decision": decision}
    assert decide(boss, **fields).status_code == 404
    assert client.get("/desk/approvals/").json() == {"approvals": [asked]}
    assert decide(client, **fields | {"decision": "approve"}).status_code == 400
    get_user_model().objects.filter(pk=ann.pk).update(email="ann@tracker.test")
    answer = decide(client, **fields).json()
    assert answer["run"]["status"] == "finished"
    assert refunds == ([7] if decision == "signed_in" else [])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"decision": "approve"}, "'approval'"),
        ({"approval": "x", "decision": "approve"}, "'approval'"),
        ({"approval": "0" * 32, "decision": "yes"}, "'decision'"),
        ({"approval": "0" * 32, "desicion": "approve"}, "Did you mean 'decision'?"),
        ({"approval": "0" * 32, "decision": "edit", "arguments": "x"}, "an object"),
    ],
)
def test_a_wrong_decision_is_refused(ann, fields, words):
    response = decide(client_of(ann), **fields)
    assert response.status_code == 400
    assert words in response.json()["detail"]


WRONG_DECISIONS = {
    "a misspelt argument": ("edit", {"arguments": {"ordr": 8}}, "Did you mean 'order'?"),
    "a wrong type": ("edit", {"arguments": {"order": "soon"}}, "order: Input should be"),
    "no change": ("edit", {}, "would change nothing"),
    "the same": ("edit", {"arguments": {"order": 7}}, "would change nothing"),
    "an approval": ("approve", {"arguments": {"order": 8}}, "Use 'edit'"),
}


@pytest.mark.parametrize(("decision", "more", "words"), WRONG_DECISIONS.values())
def test_a_decision_that_cannot_be_leaves_the_approval_open(waiting, decision, more, words):
    client, approval = waiting

    response = decide(client, approval=approval, decision=decision, **more)

    assert response.status_code == 400
    assert words in response.json()["detail"]
    assert Row.objects.get().status == "pending"
    decide(client, approval=approval, decision="approve")
    assert refunds == [(7, "")]


@pytest.mark.parametrize("note", ["", " ", None])
def test_an_empty_answer_leaves_the_question_open(waiting, note):
    client, approval = waiting
    Row.objects.update(kind="question")
    more = {} if note is None else {"note": note}

    response = decide(client, approval=approval, decision="answer", **more)

    assert (response.status_code, Row.objects.get().status) == (400, "pending")
    assert "The answer is empty." in response.json()["detail"]


@pytest.mark.parametrize("where", ["lead", "desk"])
def test_a_call_of_a_sub_agent_is_decided_and_its_lead_goes_on(ann, where):
    Model.first = [
        [ToolCall("x", "desk", {"message": "Refund order 7"})],
        [ToolCall("a", "refund", {"order": 7})],
        "Desk is done.",
    ]
    client = client_of(ann)
    answer = post(client, "/lead/run/", message="hi").json()
    (listed,) = client.get(f"/{where}/approvals/").json()["approvals"]
    assert client.get("/other/approvals/").json() == {"approvals": []}
    fields = {"approval": listed["approval"], "decision": "approve"}
    assert post(client, "/other/approvals/", **fields).status_code == 404
    run = post(client, f"/{where}/approvals/", **fields).json()["run"]
    assert refunds == [(7, "")]
    assert (run["agent"], run["trace"]) == ("served.Lead", answer["trace"])
    assert (run["status"], run["output"]) == ("finished", "Done.")


def test_a_long_list_is_cut_and_takes_few_queries(waiting, django_assert_max_num_queries):
    client, approval = waiting
    row = Row.objects.get()
    copies = [Row(**{**row_fields(row), "uuid": f"{number:032x}"}) for number in range(120)]
    Row.objects.bulk_create(copies)
    with django_assert_max_num_queries(6):
        listed = client.get("/desk/approvals/").json()["approvals"]
    assert len(listed) == 100
    assert listed[0]["approval"] == approval


def row_fields(row):
    return {field.attname: getattr(row, field.attname) for field in row._meta.concrete_fields}


def test_an_unknown_approval_is_not_found(ann):
    response = decide(client_of(ann), approval="0" * 32, decision="approve")
    assert response.status_code == 404


def test_a_login_and_a_token_are_needed(ann):
    assert Client().get("/desk/approvals/").status_code == 401
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(ann)
    assert decide(strict, approval="0" * 32, decision="approve").status_code == 403
    assert client_of(ann).delete("/desk/approvals/").status_code == 405


def test_it_works_under_asgi(ann, waiting):
    _, approval = waiting

    async def ask():
        client = AsyncClient()
        await client.aforce_login(ann)
        body = json.dumps({"approval": approval, "decision": "approve"})
        return await client.post("/desk/approvals/", body, content_type="application/json")

    answer = async_to_sync(ask)().json()
    assert refunds == [(7, "")]
    assert answer["run"]["status"] == "finished"


@override_settings(DEBUG=False)
def test_a_run_that_fails_after_the_decision_keeps_it(waiting, settings):
    client, approval = waiting
    Model.first = [ValueError("secret")]
    settings.MLANGO = {**settings.MLANGO}  # makes the provider anew
    answer = decide(client, approval=approval, decision="approve").json()
    assert answer["run"]["status"] == "failed"
    assert "secret" not in json.dumps(answer)
    assert refunds == [(7, "")]


TOKENS = [
    {"token": "a" * 43, "name": "shop", "permissions": ["auth.delete_user", "auth.view_user"]},
    {"token": "b" * 43, "name": "shop", "permissions": ["auth.delete_user"]},
]


@pytest.fixture
def program(settings):
    settings.MLANGO = {**settings.MLANGO, "API_BEARER_TOKENS": TOKENS}
    return Client(headers={"authorization": f"Bearer {'b' * 43}"})


def asked(program):
    """Return the run of a program, and the id of the approval that it waits for."""
    answer = post(program, "/desk/run/", message="Refund order 7").json()
    return answer["trace"], answer["approvals"][0]["approval"]


def test_the_run_of_a_program_goes_on_when_it_has_decided(program):
    _, approval = asked(program)

    answer = decide(program, approval=approval, decision="approve").json()

    assert answer["run"]["output"] == "Done."
    assert refunds == [(7, "")]


def test_the_run_of_a_program_goes_on_as_that_program_when_a_person_has_decided(program):
    boss = client_of(get_user_model().objects.create_superuser("boss"))
    trace, approval = asked(program)

    answer = decide(boss, approval=approval, decision="approve").json()

    assert answer["run"] == {"trace": trace, "status": "finished"}
    assert refunds == [(7, "")]
