"""The agents of the support desk."""

import re

from django.db.models import Q

from mlango.agents import Agent, ToolError, tool
from support.models import Article, Order


@tool
def answer_from_desk(question: str) -> str:
    """Look a customer's question up in the help articles and orders.

    Args:
        question: The question in the customer's own words; name order numbers.
    """
    found = [describe(order) for order in Order.objects.filter(number__in=numbers(question))]
    words = Q()
    for word in re.findall(r"[a-z]{4,}", question.lower()):
        words |= Q(title__icontains=word)
    if words:
        found += [article.body for article in Article.objects.filter(words)[:3]]
    return "\n".join(found) or "Nothing was found."


@tool
def order_status(number: int) -> str:
    """Tell how far an order is.

    Args:
        number: The order's number, such as 1002.
    """
    order = Order.objects.filter(number=number).first()
    if order is None:
        raise ToolError(f"There is no order {number}.")
    return describe(order)


def numbers(question):
    """Return the order numbers in a question."""
    return re.findall(r"\b\d{4,}\b", question)


def describe(order):
    """Return a sentence about an order."""
    shipped = f", shipped on {order.shipped_on:%d %B %Y}" if order.shipped_on else ""
    return f"Order {order.number} is {order.status}{shipped}."


class Support(Agent):
    """Answers customers' questions from the help articles and orders."""

    class Meta:
        system = "You are a support engineer. Look things up before you answer."
        tools = [answer_from_desk, order_status]
        max_steps = 8
