"""Runs several launches at once in asyncio, each with a time limit."""

import asyncio

import wireup


async def run(number):
    async with wireup.launch(["sh", "-c", f"echo launch {number}"], n=1, timeout=60) as job:
        result = await job.wait_async()
    return result.stdout[0]


async def main():
    print(*await asyncio.gather(*(run(number) for number in range(3))), sep="", end="")


asyncio.run(main())
