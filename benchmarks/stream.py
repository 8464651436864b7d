"""CPU time of each chunk of a streamed answer, with its event and the run's trace.

    python benchmarks/stream.py

The floor reads lines and joins their text; it makes no event and keeps nothing.
"""

import asyncio

import ratios
from agents import PROMPT, TracedAdder, bare_run, client, streamed

from mlango.agents.providers import OpenAICompatibleProvider
from mlango.core.events import TextChunk

CHUNKS = 2000
MODEL = f"text-{CHUNKS}"


async def main(url):
    provider = OpenAICompatibleProvider(url)
    adder = TracedAdder()

    async def ours():
        count = 0
        async for event in adder.astream(PROMPT, provider=provider, model=MODEL):
            count += isinstance(event, TextChunk)
        assert count == CHUNKS, count

    async with client() as session:
        works = {
            "bare aiohttp": lambda: bare_run(streamed(session, url, MODEL)),
            "mlango, events and trace": ours,
        }
        print("a chunk of a streamed answer")
        await ratios.compare(works, per=CHUNKS, repeats=2)
    await provider.aclose()


with ratios.server() as url, ratios.database():
    asyncio.run(main(url))
