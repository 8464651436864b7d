"""The support agent, tested without a model.

The cassettes are files of recorded model calls. To record one anew, delete it and ask again:

    python manage.py agent support.Support "How do I return an item?" \\
        --record support/cassettes/returns.jsonl
"""

from pathlib import Path

from django.test import TestCase

from mlango.agents.providers import ReplayProvider, ScriptedProvider, ToolCall
from support.agents import Support

CASSETTES = Path(__file__).parent / "cassettes"


class SupportTests(TestCase):
    def test_the_agent_answers_from_the_orders(self):
        run = Support().run("Where is order 1002?", provider="echo")

        self.assertIn("Order 1002 is on its way", run.output)
        self.assertEqual(run.tools_used, ["answer_from_desk"])

    def test_an_unknown_order_is_told_to_the_model(self):
        model = ScriptedProvider([[ToolCall("", "order_status", {"number": 9})], "Sorry."])

        run = Support().run("Where is my order?", provider=model)

        self.assertEqual(run.tool_results[0].content, "There is no order 9.")
        self.assertEqual(run.output, "Sorry.")

    def test_a_recorded_model_answers_from_the_articles(self):
        model = ReplayProvider(CASSETTES / "returns.jsonl")

        run = Support().run("How do I return an item?", provider=model)

        self.assertIn("within 30 days", run.output)
        self.assertEqual(run.tools_used, ["answer_from_desk"])
        model.assert_all_used()

    def test_every_call_is_in_the_trace(self):
        run = Support().run("Where is order 1002?", provider="echo")

        self.assertEqual([span.kind for span in run.trace.spans.all()], ["llm", "tool", "llm"])
