"""CPU time of a five-step run over HTTP, with the direct provider, against bare aiohttp.

    python benchmarks/direct.py

The run makes six requests. Ours are always streamed, which costs more than the document that
the floor asks for; the same floor with a stream stands beside it.
"""

import asyncio

import ratios
from agents import PROMPT, Adder, bare_run, client, streamed, whole

from mlango.agents.providers import OpenAICompatibleProvider

MODEL = "steps-5"


async def main(url):
    provider = OpenAICompatibleProvider(url)
    adder = Adder()

    async def ours():
        assert str(await adder.arun(PROMPT, provider=provider, model=MODEL)) == "done"

    async with client() as session:
        works = {
            "bare aiohttp": lambda: bare_run(whole(session, url, MODEL)),
            "bare aiohttp, streamed": lambda: bare_run(streamed(session, url, MODEL)),
            "mlango": ours,
        }
        for count in (1, 64):
            print(f"a five-step run over HTTP, {count} at once")
            await ratios.compare(
                {name: at_once(work, count) for name, work in works.items()},
                per=count,
                repeats=4 if count == 1 else 1,
            )
    await provider.aclose()


def at_once(work, count):
    async def works():
        await asyncio.gather(*[work() for _ in range(count)])

    return works


with ratios.server() as url:
    asyncio.run(main(url))
