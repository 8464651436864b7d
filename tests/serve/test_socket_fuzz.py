"""Whatever is said over a socket, it stays open and nothing is a fault of the server."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlango.models import Trace
from mlango.serve.frames import FIELDS, TYPES
from tests.serve.site import Asked
from tests.serve.test_fuzz import FILES, TEXTS, VALUES
from tests.serve.test_sockets import Talker, ann, cookies, talk  # noqa: F401 - fixtures

pytestmark = pytest.mark.django_db(transaction=True)

NAMES = sorted({name for fields in FIELDS.values() for name in fields})
NAMES += ["ref", "session_id", "files", "images", "approval", "note", "reason", "arguments"]
IDS = st.sampled_from(["0" * 32, "\0" * 32, "0", "0.1", "-1"])
SAID = st.fixed_dictionaries(
    {"type": st.sampled_from(TYPES) | VALUES},
    optional={
        name: TEXTS | IDS | st.booleans() | st.lists(FILES, max_size=2) | VALUES for name in NAMES
    },
)
TEXT_FRAMES = SAID.map(json.dumps) | VALUES.map(json.dumps) | st.text(max_size=40)
FRAMES = TEXT_FRAMES.map(lambda text: {"text": text}) | st.binary(max_size=40).map(
    lambda data: {"bytes": data}
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(frames=st.lists(FRAMES, max_size=6))
def test_any_frames(cookies, frames):  # noqa: F811
    async def go():
        async with Talker(Asked, cookies) as ws:
            for frame in frames:
                ws.incoming.put_nowait({"type": "websocket.receive", **frame})
            ws.say("ping", ref="the last")
            await ws.frame(type="pong", ref="the last")
        return ws.heard

    told = [frame for frame in talk(go()) if frame.get("type") == "error"]

    assert all(400 <= problem["status"] < 500 for problem in told), told
    assert not Trace.objects.filter(status="running").exists()
