"""CPU time per step of the loop with its trace written behind, against the bare loop.

python benchmarks/traced.py
"""

import asyncio

import loop
import ratios

STEPS = 20


async def main():
    works = {
        "bare loop": loop.bare(STEPS),
        "mlango": loop.mlango(STEPS),
        "mlango, written behind": loop.mlango(STEPS, tracing=True),
    }
    print(f"a step of {STEPS}, by {ratios.vendor()}")
    await ratios.compare(works, per=STEPS, rounds=25)


with ratios.database():
    asyncio.run(main())
