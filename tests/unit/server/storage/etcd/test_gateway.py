"""Calls to etcd's JSON gateway: several members, sign-in, and what its refusals mean."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from rdzv_server.storage.base import StorageError
from rdzv_server.storage.etcd import gateway as module
from rdzv_server.storage.etcd.gateway import Gateway
from rdzv_server.storage.etcd.place import Credentials, Place
from tests.ports import free_port

Answer = Callable[[web.Request, dict[str, Any]], web.Response]


class Members:
    """Servers in place of etcd's; `answer` says what each of them does."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, str]] = []
        self.answer: list[Answer] = []
        self.ports: list[int] = []

    async def start(self, count: int) -> list[web.AppRunner]:
        runners = []
        for number in range(count):
            self.answer.append(lambda request, body: web.json_response({"ok": "yes"}))
            app = web.Application()
            app.router.add_post("/v3/{path:.*}", self._handler(number))
            runner = web.AppRunner(app, handle_signals=False)
            await runner.setup()
            self.ports.append(free_port())
            await web.TCPSite(runner, "127.0.0.1", self.ports[-1]).start()
            runners.append(runner)
        return runners

    def _handler(self, number: int) -> Callable[[web.Request], Any]:
        async def handle(request: web.Request) -> web.Response:
            self.asked.append((number, request.match_info["path"]))
            return self.answer[number](request, await request.json())

        return handle


@asynccontextmanager
async def members(
    count: int, credentials: Credentials = Credentials(), extra: tuple[str, ...] = (),  # noqa: B008
) -> AsyncIterator[tuple[Members, Gateway]]:  # fmt: skip
    made = Members()
    runners = await made.start(count)
    place = Place((*extra, *(f"127.0.0.1:{port}" for port in made.ports)), "p")
    gateway = Gateway(place, credentials, 5.0)
    try:
        yield made, gateway
    finally:
        await gateway.close()
        for runner in runners:
            await runner.cleanup()


def error(code: int, text: str, status: int = 400) -> Answer:
    return lambda request, body: web.json_response({"code": code, "message": text}, status=status)


async def test_the_member_that_answered_is_asked_again() -> None:
    async with members(2, extra=(f"127.0.0.1:{free_port()}",)) as (made, gateway):
        for _ in range(3):
            assert await gateway.call("kv/range", {}, 5.0) == {"ok": "yes"}
        assert {number for number, _ in made.asked} == {0}


@pytest.mark.parametrize(
    "fault",
    [
        error(14, "etcdserver: no leader", 503),
        error(2, "etcdserver: leader changed"),
        error(4, "context deadline exceeded", 504),
        lambda request, body: web.Response(status=502, text="<html>"),
    ],
)
async def test_a_member_that_cannot_answer_now_is_left_for_the_next(fault: Answer) -> None:
    async with members(2) as (made, gateway):
        made.answer[0] = fault
        assert await gateway.call("kv/range", {}, 5.0) == {"ok": "yes"}
        assert made.asked == [(0, "kv/range"), (1, "kv/range")]


async def test_a_member_that_says_nothing_is_left_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ATTEMPT_S", 0.2)

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    silent = await asyncio.start_server(swallow, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    async with members(1, extra=(f"127.0.0.1:{port}",)) as (_, gateway):
        assert await gateway.call("kv/range", {}, 5.0) == {"ok": "yes"}
    silent.close()
    await silent.wait_closed()


async def test_when_no_member_answers_the_last_reason_and_the_time_are_told() -> None:
    port = free_port()
    gateway = Gateway(Place((f"127.0.0.1:{port}",), "p"), Credentials(), 5.0)
    with pytest.raises(StorageError, match=r"no answer from etcd within 0\.3 s; last: ") as caught:
        await gateway.call("kv/range", {}, 0.3)
    assert str(port) in str(caught.value)
    assert caught.value.cause == "io"
    await gateway.close()


@pytest.mark.parametrize(
    ("fault", "cause", "words"),
    [
        (error(8, "etcdserver: mvcc: database space exceeded"), "full", "--auto-compaction"),
        (error(7, "etcdserver: permission denied"), "access", "--etcd-user"),
        (error(3, "etcdserver: request is too large"), "io", "too large"),
        (lambda request, body: web.Response(status=404), "unsupported", "--enable-grpc-gateway"),
    ],
)
async def test_a_refusal_is_final_and_says_what_to_do(
    fault: Answer, cause: str, words: str
) -> None:
    async with members(2) as (made, gateway):
        made.answer[0] = fault
        with pytest.raises(StorageError, match=words) as caught:
            await gateway.call("kv/txn", {}, 5.0)
        assert caught.value.cause == cause
        assert len(made.asked) == 1


async def test_it_signs_in_first_and_again_when_its_token_has_expired(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("pw\n")
    password.chmod(0o600)
    good = {"one"}
    given: list[str] = []

    def answer(request: web.Request, body: dict[str, Any]) -> web.Response:
        if request.path.endswith("authenticate"):
            assert body == {"name": "me", "password": "pw"}
            given.append(f"t{len(given)}")
            good.clear()
            good.add(given[-1])
            return web.json_response({"token": given[-1]})
        if request.headers.get("Authorization") not in good:
            return web.json_response(
                {"code": 16, "message": "etcdserver: invalid auth token"}, status=401
            )
        return web.json_response({"ok": "yes"})

    async with members(1, Credentials(user="me", password_file=password)) as (made, gateway):
        made.answer[0] = answer
        assert await gateway.call("kv/range", {}, 5.0) == {"ok": "yes"}
        good.clear()
        assert await gateway.call("kv/range", {}, 5.0) == {"ok": "yes"}
        assert given == ["t0", "t1"]


async def test_a_text_from_etcd_cannot_forge_a_line(tmp_path: Path) -> None:
    async with members(1) as (made, gateway):
        made.answer[0] = error(3, "a\nlevel=info " + "x" * 1000)
        with pytest.raises(StorageError) as caught:
            await gateway.call("kv/txn", {}, 5.0)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 500


async def test_a_new_leader_among_the_members_is_noticed_in_whatever_they_answer() -> None:
    def in_term(term: int, *, inside: str = "") -> Answer:
        header: dict[str, object] = {"header": {"raft_term": str(term)}}
        told = {inside: header} if inside else header
        return lambda request, body: web.json_response(told)

    async with members(1) as (made, gateway):
        for term, new in ((4, False), (4, False), (5, True), (4, False), (5, False)):
            made.answer[0] = in_term(term)
            await gateway.call("kv/range", {}, 5.0)
            assert gateway.elected.is_set() == new, term
            gateway.elected.clear()
        made.answer[0] = in_term(6, inside="result")
        await gateway.call("lease/keepalive", {}, 5.0)
        assert gateway.elected.is_set()
