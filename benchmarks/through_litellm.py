"""CPU time of a five-step run through litellm, against litellm called by hand.

    python benchmarks/through_litellm.py

litellm is an extra. Both sides import it with the same environment.
"""

import asyncio

import ratios
from agents import PROMPT, TOOLS, Adder, bare_run

from mlango.agents.providers import LiteLLMProvider
from mlango.agents.providers.litellm import ready

MODEL = "openai/steps-5"


def raw(litellm, url, **options):
    asked = {"model": MODEL, "api_base": url, "api_key": "none", "tools": TOOLS, **options}

    async def complete(messages):
        answer = await litellm.acompletion(messages=messages, **asked)
        return answer.choices[0].message.model_dump(exclude_none=True)

    async def complete_streamed(messages):
        text, calls = [], []
        stream = await litellm.acompletion(messages=messages, **asked)
        async for chunk in stream:
            for choice in chunk.choices:
                text.append(choice.delta.content or "")
                calls += [call.model_dump() for call in choice.delta.tool_calls or ()]
        return {"role": "assistant", "content": "".join(text), "tool_calls": calls}

    return complete_streamed if options.get("stream") else complete


async def main(url):
    provider = LiteLLMProvider(api_base=url, api_key="none")
    litellm = await ready()
    adder = Adder()

    async def ours():
        assert str(await adder.arun(PROMPT, provider=provider, model=MODEL)) == "done"

    usage = {"include_usage": True}
    works = {
        "raw litellm, streamed": lambda: bare_run(
            raw(litellm, url, stream=True, stream_options=usage)
        ),
        "raw litellm, one document": lambda: bare_run(raw(litellm, url)),
        "mlango": ours,
    }
    print("a five-step run through litellm")
    await ratios.compare(works, per=1, rounds=9, repeats=2)
    await provider.aclose()


with ratios.server() as url:
    asyncio.run(main(url))
