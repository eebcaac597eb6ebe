"""Waiting for whichever of several things comes first."""

import asyncio
from collections.abc import Awaitable


async def first_of(*ways: Awaitable[object]) -> None:
    """Wait until one of them is through. The others are cancelled, and over when this returns; how each of them
    ended is told by its own task or future, if the caller has one."""
    tasks = [asyncio.ensure_future(way) for way in ways]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
