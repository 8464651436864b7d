"""A desk whose refunds somebody must allow; its runs are begun and gone on with by processes."""

from datetime import timedelta

from mlango.agents import Agent, Approval, Context, SignInRequired, tool
from mlango.core.messages import text_of
from mlango.core.provider import Completion, Provider, ToolCall


class Clerk(Provider):
    """Calls the tool that a message names with its JSON, then repeats what the tool said.

    What it does is told by the messages alone, so that any process can ask it.
    """

    name = "clerk"

    def complete(self, **request):
        last = request["messages"][-1]
        if last["role"] == "tool":
            return Completion(f"Done: {text_of(last['content'])}")
        name, _, arguments = text_of(last["content"]).partition(" ")
        calls = [ToolCall(f"c{i}", name, each) for i, each in enumerate(arguments.split(" and "))]
        return Completion("", calls)


refunds = []
signed_in = []


@tool(approval=True)
def refund(order: int, reason: str = "") -> str:
    """Pay an order back."""
    refunds.append((order, reason))
    return f"refunded {order}"


@tool(approval=Approval(permission="auth.delete_user"))
def erase(user: str) -> str:
    """Erase a user."""
    return f"erased {user}"


@tool(approval=Approval(four_eyes=True, expires=timedelta(days=1)))
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@tool
def ticket(number: int, context: Context) -> str:
    """Look a ticket up, where the user must have signed in."""
    if context.user not in signed_in:
        signed_in.append(context.user)  # as happens while the run waits
        raise SignInRequired("https://tracker.test/login?state=1", label="the tracker")
    return f"ticket {number}"


class Desk(Agent):
    class Meta:
        app_label = "commands"
        provider = Clerk()
        tools = [refund, erase, pay, ticket]
        ask_question = True


class Office(Agent):
    """Has a sub-agent work."""

    class Meta:
        app_label = "commands"
        provider = Clerk()
        tools = [Desk.as_tool(name="desk")]
