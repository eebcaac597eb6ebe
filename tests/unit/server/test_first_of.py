"""The first of several things ends the wait for all of them."""

import asyncio

import pytest

from rdzv_server.first_of import first_of

PATIENCE_S = 10.0


async def test_the_others_are_over_when_the_first_is_through() -> None:
    ended: list[str] = []

    async def for_ever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("for ever")

    async def at_once() -> str:
        return "done"

    first, other = asyncio.create_task(at_once()), asyncio.create_task(for_ever())
    await asyncio.wait_for(first_of(first, other), PATIENCE_S)
    assert first.result() == "done"
    assert other.cancelled()
    assert ended == ["for ever"]


async def test_whoever_is_cancelled_meanwhile_leaves_nothing_running() -> None:
    one, other = (asyncio.create_task(asyncio.Event().wait()) for _ in range(2))
    waiting = asyncio.create_task(first_of(one, other))
    await asyncio.wait({waiting}, timeout=0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(waiting, PATIENCE_S)
    assert one.cancelled()
    assert other.cancelled()


async def test_how_the_first_one_failed_is_told_by_itself() -> None:
    async def fails() -> None:
        raise ValueError("no")

    failing = asyncio.create_task(fails())
    await asyncio.wait_for(first_of(failing, asyncio.Event().wait()), PATIENCE_S)
    assert str(failing.exception()) == "no"
