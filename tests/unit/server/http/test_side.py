"""The HTTP side as a whole, on both loops."""

import asyncio

import pytest

from rdzv_server.http import pages, side
from rdzv_server.http.side import Side
from rdzv_server.shell.listen import bind
from tests.unit.server.http.kit import Log, ask, get, sources
from tests.unit.server.shell.waiting import PATIENCE_S, until


async def started(log: Log) -> tuple[Side, int]:
    sockets = bind("127.0.0.1", 0)
    made = Side(sockets, sources(), log)
    made.start()
    return made, sockets[0].getsockname()[1]


async def test_after_the_end_nobody_is_answered_and_no_thread_is_left() -> None:
    made, port = await started(Log())
    assert await ask(port, get("/metrics"))
    await made.close()
    with pytest.raises(ConnectionError):
        await ask(port, get("/healthz"))
    assert made._renderer._thread._shutdown


async def test_a_request_that_trickles_in_is_cut_after_the_time_for_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pages, "READ_S", 0.3)
    made, port = await started(Log())
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def trickle() -> None:
        writer.write(b"GET /healthz HTTP/1.1\r\n")
        while not writer.is_closing():
            writer.write(b"X-A: b\r\n")
            await asyncio.wait([asyncio.ensure_future(asyncio.Event().wait())], timeout=0.02)

    sending = asyncio.ensure_future(trickle())
    try:
        assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
    except ConnectionError:
        pass
    finally:
        sending.cancel()
        writer.close()
    await until(lambda: made._door.connections == 0)
    await made.close()


async def test_an_idle_connection_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side, "CLOSE_S", 0.05)
    made, port = await started(Log())
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    await until(lambda: made._door.connections == 1)
    before = asyncio.get_running_loop().time()
    await made.close()
    assert asyncio.get_running_loop().time() - before < 2
    writer.close()


async def test_many_at_once_are_all_answered() -> None:
    made, port = await started(Log())
    found = await asyncio.gather(*(ask(port, get("/metrics")) for _ in range(30)))
    assert [each.status for each in found if each] == [200] * 30
    await made.close()
    await until(lambda: made._door.connections == 0)


async def test_who_goes_away_while_it_is_answered_is_nobodys_fault() -> None:
    log = Log()
    made, port = await started(log)
    for _ in range(20):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(get("/metrics"))
        writer.transport.abort()
    await until(lambda: made._door.connections == 0)
    found = await ask(port, get("/metrics"))
    assert found is not None
    assert found.status == 200
    assert "http_fault" not in log.events
    await made.close()
