"""What each endpoint takes and answers, as JSON Schema: the words of the OpenAPI document."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mlango.agents.arguments import MAX_KEY
from mlango.core.memory import SESSION_ID
from mlango.models import Trace
from mlango.serve.problems import CONTENT_TYPE
from mlango.serve.uploads import DATA_URL

JSON, FORM, EVENTS = "application/json", "multipart/form-data", "text/event-stream"
Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
BUFFERED: Schema = {
    **FLAG,
    "description": "Tell each answer of the model when it is complete; one that breaks off is "
    "tried again.",
}
NUMBER: Schema = {"type": "integer", "minimum": 0}
WHEN: Schema = {"type": "string", "format": "date-time"}
ANYTHING: Schema = {}
# What can be decided about an approval.
DECISIONS = ["approve", "reject", "edit", "answer", "signed_in"]
DECISIONS += ["happened", "did_not_happen", "run_again"]
UUID: Schema = {"type": "string", "pattern": "^[0-9a-f]{32}$"}
CURSOR: Schema = {"type": "string", "pattern": r"^(?:[0-9]{1,9}(?:\.[0-9]{1,9})?)?$"}
MESSAGE: Schema = {"type": "string", "minLength": 1, "pattern": r"\S"}
SESSION: Schema = {"type": "string", "pattern": f"^(?:{SESSION_ID.pattern})?$"}
COST: Schema = {"type": "string", "nullable": True, "description": "US dollars; null: unknown."}
BASE64 = "(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"
DATA: Schema = {"type": "string", "minLength": 1, "pattern": f"^(?:{DATA_URL.pattern})?{BASE64}$"}
FILE: Schema = {
    "oneOf": [
        {
            "type": "string",
            "pattern": f"^{DATA_URL.pattern}{BASE64}$",
            "description": "A data: URL with base64.",
        },
        {
            "type": "object",
            "properties": {"name": TEXT, "data": DATA, "type": TEXT},
            "required": ["data"],
        },
    ]
}
UPLOAD: Schema = {"type": "array", "items": {"type": "string", "format": "binary"}}


def ref(name: str) -> Schema:
    """Return a reference to one of COMPONENTS."""
    return {"$ref": f"#/components/schemas/{name}"}


def obj(properties: dict[str, Schema], *needed: str, closed: bool = False) -> Schema:
    """Return the schema of an object; all its properties are there unless some are named."""
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(needed or properties),
    }
    return schema | ({"additionalProperties": False} if closed else {})


def listed(items: Schema) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": items}


_SUMMARY = {
    "agent": TEXT,
    "status": {"type": "string", "enum": list(Trace.Status.values)},
    "stop_reason": TEXT,
    "steps": NUMBER,
    "trace": UUID,
    "session_id": TEXT,
    "usage": ref("AgentUsage"),
    "cost": COST,
}
_RUN = {
    **_SUMMARY,
    "output": {**ANYTHING, "description": "Text, or the value of the agent's output type."},
    "tools_used": listed(TEXT),
    "error": TEXT,
    "approvals": listed({"type": "object", "additionalProperties": True}),
    "artifacts": listed(ref("AgentArtifact")),
}

COMPONENTS: dict[str, Schema] = {
    "Problem": obj(
        {
            "type": TEXT,
            "title": TEXT,
            "status": {"type": "integer"},
            "detail": {**TEXT, "description": "What is wrong, and what would be right."},
            "id": {**TEXT, "description": "Names the case in the server's log."},
        }
    ),
    "AgentArtifact": obj({"id": UUID, "name": TEXT, "mime_type": TEXT, "size": NUMBER}),
    "AgentUsage": {"type": "object", "additionalProperties": True},
    "AgentRequest": obj(
        {
            "message": MESSAGE,
            "session_id": SESSION,
            "buffered": BUFFERED,
            "files": listed(FILE),
            "images": listed(FILE),
        },
        "message",
        closed=True,
    ),
    "AgentForm": obj(
        {
            "message": MESSAGE,
            "session_id": SESSION,
            "buffered": BUFFERED,
            "files": UPLOAD,
            "images": UPLOAD,
        },
        "message",
        closed=True,
    ),
    "AgentEvent": obj({"id": TEXT, "event": TEXT, "data": TEXT}, "event", "data"),
    "AgentRun": obj(_RUN),
    "AgentRunDetail": obj({**_RUN, "started_at": WHEN, "ended_at": {**WHEN, "nullable": True}}),
    "AgentRunSummary": obj(
        {
            **_SUMMARY,
            "model": TEXT,
            "started_at": WHEN,
            "duration_s": {"type": "number", "nullable": True},
        }
    ),
    "AgentRunPage": obj(
        {"runs": listed(ref("AgentRunSummary")), "next": {**UUID, "nullable": True}}
    ),
    "AgentRunTold": obj({"trace": UUID, "status": TEXT}),
    "Steering": obj({"message": MESSAGE, "now": FLAG}, "message", closed=True),
    "FollowUp": obj({"message": MESSAGE}, closed=True),
    "Nothing": {"type": "object", "additionalProperties": False},
    "AgentApproval": obj(
        {
            "approval": UUID,
            "trace": UUID,
            "kind": TEXT,
            "agent": TEXT,
            "tool": TEXT,
            "tool_call_id": TEXT,
            "arguments": {"type": "object", "additionalProperties": True},
            "status": TEXT,
            "note": TEXT,
            "expires_at": {**WHEN, "nullable": True},
        }
    ),
    "AgentApprovalList": obj({"approvals": listed(ref("AgentApproval"))}),
    "AgentDecision": obj(
        {
            "approval": UUID,
            "decision": {"type": "string", "enum": DECISIONS},
            "note": TEXT,
            "arguments": {"type": "object", "additionalProperties": True},
        },
        "approval",
        "decision",
        closed=True,
    ),
    "AgentDecided": obj(
        {
            "approval": ref("AgentApproval"),
            "run": {"type": "object", "additionalProperties": True, "nullable": True},
        }
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of an endpoint. ``takes`` and ``answers`` map media types to schemas."""

    verb: str
    summary: str
    description: str = ""
    takes: dict[str, Schema] = field(default_factory=dict)
    needs_body: bool = True
    status: int = 200
    answers: dict[str, Schema]
    query: dict[str, Schema] = field(default_factory=dict)
    headers: dict[str, Schema] = field(default_factory=dict)
    example: Any = None
    example_answer: Any = None
    problems: tuple[int, ...] = ()


ASKED = {JSON: ref("AgentRequest"), FORM: ref("AgentForm")}
EXAMPLE = {"message": "Where is my order?", "session_id": "chat-1"}
ALWAYS = (400, 401, 403, 406, 429, 500)
POSTED = (413, 415)
RUNS = (409, 502, 503)
KEYED: dict[str, Schema] = {
    "Idempotency-Key": {
        **TEXT,
        "minLength": 1,
        "maxLength": MAX_KEY,
        "description": "The same key with the same request is the same run.",
    }
}
ANSWER = {
    "agent": "support.Support",
    "output": "It is on its way.",
    "status": "finished",
    "stop_reason": "end_turn",
    "steps": 1,
    "trace": "0af7651916cd43dd8448eb211c80319c",
    "session_id": "chat-1",
    "tools_used": [],
    "usage": {"input_tokens": 12, "output_tokens": 6},
    "cost": "0.0001",
    "error": "",
    "approvals": [],
    "artifacts": [],
}
FRAMES = (
    "Server-sent events: `id` is the event's place, `event` its kind, `data` a JSON object. "
    "The last is `finished` or `failed`. Comments come while nothing happens."
)

OPERATIONS: dict[tuple[str, str], Operation] = {
    ("run", "POST"): Operation(
        verb="run",
        summary="Run the agent",
        description="Answers when the run has ended.",
        takes=ASKED,
        headers=KEYED,
        answers={JSON: ref("AgentRun")},
        example=EXAMPLE,
        example_answer=ANSWER,
        problems=(*POSTED, *RUNS),
    ),
    ("stream", "POST"): Operation(
        verb="stream",
        summary="Run the agent and read its events",
        description=f"{FRAMES} Closing the connection stops the run.",
        takes=ASKED,
        headers=KEYED,
        answers={EVENTS: ref("AgentEvent")},
        example=EXAMPLE,
        example_answer={"id": "0", "event": "started", "data": '{"kind": "started", "seq": 0}'},
        problems=(*POSTED, 409, 503),
    ),
    ("events", "GET"): Operation(
        verb="events",
        summary="Read the events of a run",
        description=f"{FRAMES} Those behind `Last-Event-ID` are told first.",
        answers={EVENTS: ref("AgentEvent")},
        query={"after": CURSOR},
        headers={"Last-Event-ID": CURSOR},
        problems=(404,),
    ),
    ("approvals", "GET"): Operation(
        verb="list",
        summary="List what you may decide",
        answers={JSON: ref("AgentApprovalList")},
    ),
    ("approvals", "POST"): Operation(
        verb="decide",
        summary="Decide about a tool call, and go on with its run",
        takes={JSON: ref("AgentDecision")},
        answers={JSON: ref("AgentDecided")},
        example={"approval": "0af7651916cd43dd8448eb211c80319c", "decision": "approve"},
        problems=(404, *POSTED, *RUNS),
    ),
    ("runs", "GET"): Operation(
        verb="list",
        summary="List your runs, newest first",
        answers={JSON: ref("AgentRunPage")},
        query={
            "limit": {"type": "integer", "minimum": 1, "maximum": 100, "default": 20},
            "before": {**UUID, "pattern": "^(?:[0-9a-f]{32})?$"},
            "session_id": TEXT,
            "status": {"type": "string", "enum": list(Trace.Status.values)},
        },
        problems=(404,),
    ),
    ("run-detail", "GET"): Operation(
        verb="read",
        summary="Read a run",
        answers={JSON: ref("AgentRunDetail")},
        problems=(404,),
    ),
    ("artifact", "GET"): Operation(
        verb="download",
        summary="Download a file that a run made",
        answers={"*/*": {"type": "string", "format": "binary"}},
        problems=(404,),
    ),
    ("cancel", "POST"): Operation(
        verb="cancel",
        summary="Stop a run",
        takes={JSON: ref("Nothing")},
        needs_body=False,
        status=202,
        answers={JSON: ref("AgentRunTold")},
        problems=(404, 409, *POSTED),
    ),
    ("steer", "POST"): Operation(
        verb="steer",
        summary="Have a run read a message before its next model call",
        takes={JSON: ref("Steering")},
        status=202,
        answers={JSON: ref("AgentRunTold")},
        example={"message": "Only the last order."},
        problems=(404, 409, *POSTED),
    ),
    ("follow-up", "POST"): Operation(
        verb="follow_up",
        summary="Have a run go on with a message when it would be done",
        takes={JSON: ref("FollowUp")},
        status=202,
        answers={JSON: ref("AgentRunTold")},
        example={"message": "And then write it down."},
        problems=(404, 409, *POSTED),
    ),
}

PROBLEM = {CONTENT_TYPE: ref("Problem")}
