"""What the types of guardrails promise: only checked by mypy, never run."""

from typing import Any

from mlango.agents import (
    Agent,
    Block,
    Context,
    Guardrail,
    GuardrailContext,
    LLMJudge,
    MaxLength,
    Regex,
    Rewrite,
    SecretScan,
)


class Plain(Guardrail):
    """Says what it may say in plain methods."""

    parallel = False

    def check_input(self, text: str, ctx: Context) -> Block | Rewrite | None:
        return Block("No.") if ctx.user is None else None

    def check_tool_call(
        self, name: str, arguments: dict[str, Any], ctx: GuardrailContext
    ) -> Rewrite:
        return Rewrite(arguments | {"seen": len(ctx.messages)})


class Waiting(Guardrail):
    """Says it in async ones."""

    on = ("output",)

    async def check_output(self, text: str, ctx: GuardrailContext) -> Block | None:
        return None


class Guarded(Agent):
    """Has guardrails of all kinds."""

    class Meta:
        guardrails = [
            Plain,
            Waiting(),
            "secret-scan",
            MaxLength(20, on="input"),
            SecretScan(action="rewrite", on=["output", "tools"]),
            Regex(r"\d", flags="i"),
            LLMJudge("Be kind.", model="cheap"),
        ]
