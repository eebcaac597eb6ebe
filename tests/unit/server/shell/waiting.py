"""Waiting in tests of the shell: for a condition, with a deadline."""

import asyncio
from collections.abc import Callable

PATIENCE_S = 10.0


async def pause(duration_s: float) -> None:
    """Let the loop run for a while."""
    await asyncio.wait([asyncio.ensure_future(asyncio.Event().wait())], timeout=duration_s)


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until something is true."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while not condition():
        assert asyncio.get_running_loop().time() < deadline
        await pause(0.01)
