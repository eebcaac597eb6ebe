"""Run on uvloop where it can be had, else on asyncio's own loop."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Literal, TypeVar

T = TypeVar("T")
LoopName = Literal["auto", "uvloop", "asyncio"]


def pick(name: LoopName) -> str:
    """The loop that `run` will use: `uvloop` or `asyncio`.

    Raises:
        ImportError: if uvloop was asked for by name and is not installed.
    """
    if name == "asyncio":
        return "asyncio"
    try:
        import uvloop  # noqa: F401
    except ImportError:
        if name == "uvloop":
            raise
        return "asyncio"
    return "uvloop"


def run(main: Coroutine[Any, Any, T], name: str) -> T:
    """Run a coroutine to its end on the loop that `pick` named."""
    if name == "uvloop":
        import uvloop

        result: T = uvloop.run(main)
        return result
    return asyncio.run(main)
