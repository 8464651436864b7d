"""What goes on over a WebSocket, spoken to as a server does."""

import asyncio
import json
from types import SimpleNamespace

import pytest
from django.contrib.auth.models import Permission
from django.db import connections
from django.test import Client

from mlango.agents import Agent, tool
from mlango.models import Approval, Trace
from mlango.runtime.tokens import hashed, new_secret
from mlango.serve import limits, path
from mlango.serve.routing import websockets
from tests.serve.site import Asked, Slow, make_user

pytestmark = pytest.mark.django_db(transaction=True)
HERE = "http://testserver"


@tool(approval=True)
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


class Payer(Agent):
    class Meta:
        app_label = "sockets"
        tools = [pay]


class Talker:
    """A WebSocket client; what the server sent is in ``sent``, oldest first."""

    def __init__(self, agent, cookies, *, origin=HERE, permission="", extensions=None, **headers):
        self.app = agent.as_consumer(permission=permission)
        pairs = {"host": "testserver", "cookie": cookies, "origin": origin} | headers
        self.scope = {
            "type": "websocket",
            "path": "/ws/",
            "query_string": b"",
            "headers": [(k.encode(), v.encode()) for k, v in pairs.items() if v is not None],
            "extensions": extensions or {},
        }
        self.incoming = asyncio.Queue()
        self.sent = []
        self.heard = []  # all frames
        self.came = asyncio.Event()

    async def __aenter__(self):
        self.incoming.put_nowait({"type": "websocket.connect"})
        self.task = asyncio.create_task(self.app(self.scope, self.incoming.get, self._send))
        await self.until(lambda message: True)
        return self

    async def __aexit__(self, *exc_info):
        self.incoming.put_nowait({"type": "websocket.disconnect", "code": 1000})
        await self.task

    async def _send(self, message):
        self.sent.append(message)
        if "text" in message:
            self.heard.append(json.loads(message["text"]))
        self.came.set()

    def say(self, kind, **fields):
        self.say_text(json.dumps({"type": kind, **fields}))

    def say_text(self, text):
        self.incoming.put_nowait({"type": "websocket.receive", "text": text})

    async def until(self, test):
        """Wait for a message of the server; return it and forget those up to it."""
        while True:
            for number, message in enumerate(self.sent):
                if test(message):
                    del self.sent[: number + 1]
                    return message
            self.came.clear()
            await asyncio.wait_for(self.came.wait(), 20)

    async def frame(self, **fields):
        """Wait for a frame with these fields."""

        def fits(message):
            frame = json.loads(message.get("text", "{}"))
            return all(frame.get(name) == value for name, value in fields.items())

        return json.loads((await self.until(fits))["text"])


@pytest.fixture
def ann():
    return make_user("ann")


@pytest.fixture
def cookies(ann):
    return cookies_of(ann)


def cookies_of(user):
    client = Client()
    client.force_login(user)
    connections.close_all()
    return f"sessionid={client.cookies['sessionid'].value}"


def talk(coroutine):
    return asyncio.run(coroutine)


def test_a_message_brings_the_events_of_a_run(cookies, ann):
    async def go():
        async with Talker(Asked, cookies) as ws:
            ws.say("send", message="use who", session_id="s1")
            first = await ws.frame(kind="started")
            last = await ws.frame(kind="finished")
        return first, last

    first, last = talk(go())

    assert (first["seq"], first["v"]) == (0, 1)
    assert last["output"] == "tool results: ann of ann at /ws/"
    trace = Trace.objects.get()
    assert (trace.uuid, trace.user, trace.session_key) == (last["trace"], ann, "s1")


def test_runs_follow_each_other(cookies):
    async def go():
        async with Talker(Asked, cookies) as ws:
            for text in ("one", "two"):
                ws.say("send", message=text)
                last = await ws.frame(kind="finished")
        return last

    assert talk(go())["output"] == "echo: two"
    assert Trace.objects.count() == 2


def test_who_leaves_cancels_the_run(cookies):
    left = Slow._meta.provider.left

    async def go():
        async with Talker(Slow, cookies) as ws:
            ws.say("send", message="hi")
            await ws.frame(kind="text_chunk")

    talk(go())

    assert Trace.objects.get().status == "cancelled"
    assert Slow._meta.provider.left == left + 1


class Stalled(Talker):
    """Takes nothing more once the model speaks."""

    async def _send(self, message):
        await super()._send(message)
        if "text_chunk" in message.get("text", ""):
            await asyncio.Event().wait()


def test_who_takes_nothing_for_long_is_dropped(cookies, settings):
    settings.MLANGO = {**settings.MLANGO, "STREAM_SEND_TIMEOUT": 0.05}

    async def go():
        ws = await Stalled(Slow, cookies).__aenter__()
        ws.say("send", message="hi")
        await ws.task

    talk(go())

    assert Trace.objects.get().status == "cancelled"
    assert len(limits.streams) == 0


def test_a_server_that_stops_cancels_the_run(cookies):
    async def go():
        ws = await Talker(Slow, cookies).__aenter__()
        ws.say("send", message="hi")
        await ws.frame(kind="text_chunk")
        ws.task.cancel()
        await asyncio.wait([ws.task])

    talk(go())

    assert Trace.objects.get().status == "cancelled"


@pytest.mark.parametrize("word", ["abort", "cancel"])
def test_a_run_is_aborted(cookies, word):
    async def go():
        async with Talker(Slow, cookies) as ws:
            ws.say("send", message="hi")
            await ws.frame(kind="text_chunk")
            ws.say(word)
            last = await ws.frame(kind="finished")
            ws.say("ping", ref="p")
            await ws.frame(type="pong", ref="p")
        return last

    assert talk(go())["status"] == "cancelled"


def test_a_run_hears_what_is_said_on_the_way(cookies):
    async def go():
        async with Talker(Slow, cookies) as ws:
            ws.say("send", message="hi")
            await ws.frame(kind="thinking")
            ws.say("follow_up", message="and then")
            ws.say("steer", message="rather this")
            ws.say("ping")
            await ws.frame(type="pong")

    talk(go())

    assert Trace.objects.get().status == "cancelled"


def test_messages_do_not_pile_up(cookies):
    async def go():
        async with Talker(Slow, cookies) as ws:
            ws.say("send", message="hi")
            await ws.frame(kind="text_chunk")
            for _ in range(17):
                ws.say("steer", message="more")
            return await ws.frame(type="error")

    assert talk(go())["status"] == 429


def test_one_run_at_a_time(cookies):
    async def go():
        async with Talker(Slow, cookies) as ws:
            ws.say("send", message="hi")
            await ws.frame(kind="text_chunk")
            ws.say("send", message="again", ref="7")
            return await ws.frame(type="error")

    error = talk(go())

    assert (error["status"], error["ref"]) == (409, "7")
    assert "'steer'" in error["detail"]


WRONG = {
    "{": "not valid JSON",
    "[]": "must be a JSON object",
    "{}": "The field 'type' is missing. Types are: send, ",
    '{"type": 7}': "There is no type 7.",
    '{"type": "stear"}': "Did you mean 'steer'?",
    '{"type": "send"}': "The field 'message' must hold",
    '{"type": "send", "message": 7}': "The field 'message' must be a string.",
    '{"type": "send", "massage": "x"}': "Did you mean 'message'?",
    '{"type": "steer"}': "'steer' needs the field 'message'",
    '{"type": "steer", "message": "x", "now": 1}': "The field 'now' must be true or false.",
    '{"type": "abort", "run": "x"}': "'abort' has no field 'run'. Fields are: none.",
    '{"type": "follow"}': "'follow' needs the field 'run'",
    '{"type": "steer", "message": "x"}': "No run goes on over this socket",
    '{"type": "ping", "ref": 7}': "The field 'ref' must be a string",
    '{"type": "approve"}': "The field 'approval' must hold the id",
    '{"type": "approve", "approval": "' + "0" * 32 + '"}': "There is no such approval.",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_frame_is_told_and_the_socket_lives_on(cookies, text):
    async def go():
        async with Talker(Asked, cookies) as ws:
            ws.say_text(text)
            error = await ws.frame(type="error")
            ws.say("ping")
            await ws.frame(type="pong")
        return error

    assert WRONG[text] in talk(go())["detail"]


def test_binary_frames_are_refused(cookies):
    async def go():
        async with Talker(Asked, cookies) as ws:
            ws.incoming.put_nowait({"type": "websocket.receive", "bytes": b"{}"})
            return await ws.frame(type="error")

    assert "not binary data" in talk(go())["detail"]


def test_a_frame_over_the_limit_closes_the_socket(cookies, settings):
    settings.MLANGO = {**settings.MLANGO, "MAX_FRAME_BYTES": 100}

    async def go():
        ws = await Talker(Asked, cookies).__aenter__()
        ws.say("send", message="é" * 60)
        closed = await ws.until(lambda message: message["type"] == "websocket.close")
        await ws.task
        return closed

    assert talk(go())["code"] == 1009


# -- who gets in ------------------------------------------------------------------------------


async def answer_to(agent, cookies, **options):
    ws = Talker(agent, cookies, **options)
    async with ws:
        pass
    return ws


def refused(agent, cookies, **options):
    """Return the problem that a socket is refused with."""
    options["extensions"] = {"websocket.http.response": {}}

    async def go():
        ws = Talker(agent, cookies, **options)
        ws.incoming.put_nowait({"type": "websocket.connect"})
        await ws.app(ws.scope, ws.incoming.get, ws._send)
        return ws.sent

    start, body = talk(go())
    problem = json.loads(body["body"])
    assert start["status"] == problem["status"]
    return problem


def test_nobody_is_refused():
    assert refused(Asked, "")["status"] == 401


@pytest.mark.parametrize(("route", "status"), [("ws/", 401), ("else/", 404)])
def test_a_path_without_a_socket_is_refused(route, status):
    routed = websockets([path(route, Asked.as_consumer())])

    assert refused(SimpleNamespace(as_consumer=lambda **_: routed), "")["status"] == status


def test_a_session_that_is_over_is_refused(cookies):
    from django.contrib.sessions.models import Session

    Session.objects.all().delete()

    assert refused(Asked, cookies)["status"] == 401


def test_a_permission_is_needed(cookies, ann):
    assert refused(Asked, cookies, permission="auth.view_group")["status"] == 403

    ann.user_permissions.add(Permission.objects.get(codename="view_group"))

    async def go():
        async with Talker(Asked, cookies, permission="auth.view_group") as ws:
            ws.say("ping")
            await ws.frame(type="pong")

    talk(go())


@pytest.mark.parametrize(
    "origin",
    [None, "null", "http://evil.example", "http://testserver.evil.example", "http://[", ""],
)
def test_pages_of_other_sites_are_refused(cookies, origin):
    assert "rigin" in refused(Asked, cookies, origin=origin)["detail"]


@pytest.mark.parametrize("origin", [HERE, "https://app.example:8000", "https://trusted.example"])
def test_pages_of_this_site_are_let_in(cookies, settings, origin):
    settings.ALLOWED_HOSTS = ["testserver", "app.example"]
    settings.CSRF_TRUSTED_ORIGINS = ["https://trusted.example"]

    async def go():
        async with Talker(Asked, cookies, origin=origin) as ws:
            ws.say("ping")
            await ws.frame(type="pong")

    talk(go())


def test_a_server_without_answers_closes(cookies):
    async def go():
        ws = Talker(Asked, "")
        ws.incoming.put_nowait({"type": "websocket.connect"})
        await ws.app(ws.scope, ws.incoming.get, ws._send)
        return ws.sent

    assert talk(go()) == [{"type": "websocket.close", "code": 1008}]


def test_a_login_that_ended_begins_no_run(cookies, ann):
    async def go():
        async with Talker(Asked, cookies) as ws:
            await asyncio.to_thread(deactivate)
            ws.say("send", message="hi")
            return await ws.frame(type="error")

    def deactivate():
        ann.is_active = False
        ann.save()
        connections.close_all()

    assert talk(go())["status"] == 401
    assert not Trace.objects.exists()


# -- approvals --------------------------------------------------------------------------------


async def pay_and_approve(*who, **headers):
    async with Talker(Payer, *who, **headers) as ws:
        ws.say("send", message='use pay {"amount": 3}')
        asked = await ws.frame(kind="approval_requested")
        await ws.frame(kind="finished", status="waiting")
        ws.say("approve", approval=asked["approval"], ref="a")
        decided = await ws.frame(type="decided")
        return decided, await ws.frame(kind="finished")


def test_the_user_decides_and_the_run_goes_on(cookies):
    decided, last = talk(pay_and_approve(cookies))

    assert (decided["ref"], decided["approval"]["status"]) == ("a", "approved")
    assert last["output"] == "tool results: paid 3"


def test_an_edit_that_cannot_be_leaves_the_approval_open(cookies):
    async def go():
        async with Talker(Payer, cookies) as ws:
            ws.say("send", message='use pay {"amount": 3}')
            asked = await ws.frame(kind="approval_requested")
            await ws.frame(kind="finished", status="waiting")
            ws.say("edit", approval=asked["approval"], arguments={"amont": 4}, ref="a")
            refused = await ws.frame(type="error")
            ws.say("edit", approval=asked["approval"], arguments={"amount": 4}, ref="b")
            await ws.frame(type="decided")
            return refused, await ws.frame(kind="finished")

    refused, last = talk(go())

    assert (refused["ref"], refused["status"]) == ("a", 400)
    assert "Did you mean 'amount'?" in refused["detail"]
    assert last["output"] == "tool results: paid 4"


def test_a_stranger_learns_nothing_of_an_approval(cookies):
    async def ask_to_pay():
        async with Talker(Payer, cookies) as ws:
            ws.say("send", message='use pay {"amount": 3}')
            await ws.frame(kind="finished", status="waiting")

    talk(ask_to_pay())
    others = cookies_of(make_user("eve"))

    async def go():
        async with Talker(Payer, others) as ws:
            ws.say("approve", approval=approval)
            return await ws.frame(type="error")

    approval = Approval.objects.get().uuid
    connections.close_all()
    error = talk(go())

    assert error["status"] == 404
    assert Approval.objects.get().status == "pending"


def test_one_who_decides_for_another_reads_how_it_ended_and_no_more(cookies, ann):
    async def ask_to_pay():
        async with Talker(Payer, cookies) as ws:
            ws.say("send", message='use pay {"amount": 3}')
            await ws.frame(kind="finished", status="waiting")

    talk(ask_to_pay())
    boss = make_user("boss")
    boss.user_permissions.add(Permission.objects.get(codename="decide_approval"))
    theirs = cookies_of(boss)
    approval = Approval.objects.get().uuid
    connections.close_all()

    async def go():
        async with Talker(Payer, theirs) as ws:
            ws.say("approve", approval=approval, ref="a")
            return await ws.frame(type="run")

    told = talk(go())

    assert told["run"] == {"trace": Trace.objects.get().uuid, "status": "finished"}
    assert told["ref"] == "a"


# -- coming back ------------------------------------------------------------------------------


def test_a_run_is_followed_after_every_event(cookies):
    async def begin():
        async with Talker(Asked, cookies) as ws:
            ws.say("send", message="use count_groups")
            await ws.frame(kind="finished")
            return ws.heard

    told = [frame for frame in talk(begin()) if "kind" in frame]
    assert [frame["id"] for frame in told] == [str(number) for number in range(len(told))]
    run = told[0]["run"]

    async def come_back(after):
        async with Talker(Asked, cookies) as ws:
            ws.say("follow", run=run, **after)
            await ws.frame(kind="finished")
            return [frame for frame in ws.heard if "kind" in frame]

    assert talk(come_back({})) == told
    for number in range(len(told) - 1):
        assert talk(come_back({"after": str(number)})) == told[number + 1 :]


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"run": "0" * 32}, 404),
        ({"run": "x"}, 404),
        ({"run": None}, 404),
        ({"run": None, "after": "nine"}, 400),
        ({"run": None, "after": "99"}, 400),
    ],
)
def test_what_cannot_be_followed_is_told(cookies, fields, status):
    async def begin(agent):
        async with Talker(agent, cookies) as ws:
            ws.say("send", message="hi")
            return await ws.frame(kind="finished")

    last = talk(begin(Payer if status == 404 else Asked))
    fields = {**fields, "run": fields["run"] or last["run"]}

    async def go():
        async with Talker(Asked, cookies) as ws:
            ws.say("follow", ref="f", **fields)
            return await ws.frame(type="error")

    error = talk(go())

    assert (error["status"], error["ref"]) == (status, "f")


# -- tokens and limits ------------------------------------------------------------------------


def test_a_program_has_a_token_and_no_origin(ann, settings):
    token = new_secret()
    tokens = [{"token": hashed(token), "user": "ann"}]
    settings.MLANGO = {**settings.MLANGO, "API_BEARER_TOKENS": tokens}

    async def go(token):
        async with Talker(Asked, "", origin=None, authorization=f"Bearer {token}") as ws:
            ws.say("send", message="use who")
            return await ws.frame(kind="finished")

    assert talk(go(token))["output"].startswith("tool results: ann of ")
    assert refused(Asked, "", origin=None, authorization="Bearer wrong")["status"] == 401


def test_a_program_decides_and_its_run_goes_on(settings):
    token = new_secret()
    settings.MLANGO = {**settings.MLANGO, "API_BEARER_TOKENS": [hashed(token)]}

    _, last = talk(pay_and_approve("", origin=None, authorization=f"Bearer {token}"))

    assert last["output"] == "tool results: paid 3"


def test_a_user_has_so_many_sockets(cookies, settings):
    settings.MLANGO = {**settings.MLANGO, "MAX_STREAMS_PER_USER": 1}

    async def go():
        async with Talker(Asked, cookies):
            ws = Talker(Asked, cookies)
            ws.incoming.put_nowait({"type": "websocket.connect"})
            await ws.app(ws.scope, ws.incoming.get, ws._send)
        async with Talker(Asked, cookies) as again:
            again.say("ping")
            await again.frame(type="pong")
        return ws.sent

    assert talk(go()) == [{"type": "websocket.close", "code": 1008}]
