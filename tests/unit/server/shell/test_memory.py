"""Freed memory goes back to the system, once for a burst."""

import asyncio

import pytest

from rdzv_server.shell import memory
from rdzv_server.shell.memory import Memory


async def test_a_burst_is_one_trim_and_the_next_burst_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "TRIM_S", 0.01)
    trims: asyncio.Queue[int] = asyncio.Queue()
    heap = Memory(trims.put_nowait)
    for _ in range(2):
        for _ in range(100):
            heap.freed()
        assert await asyncio.wait_for(trims.get(), 10) == 0
        assert trims.empty()


async def test_a_library_without_trim_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_find_trim", lambda: None)
    Memory().freed()
