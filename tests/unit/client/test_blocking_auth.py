"""Clients of both kinds, and workers, before a server that demands proof."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rdzv_client.aio import AsyncClient
from rdzv_client.blocking import Client, Worker
from rdzv_client.credentials import Credentials
from rdzv_client.endpoint import parse
from rdzv_client.errors import Unauthenticated
from rdzv_client.worker import WorkerEnvironment
from rdzv_proto.auth import EVERYTHING, Grant, Scope, Token
from rdzv_proto.messages import Authenticate, HelloWorker
from tests.unit.client.fake_server import FENCE, FakeServer

MASTER = Token(EVERYTHING, b"s" * 32)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer(token=MASTER) as running:
        yield running


@pytest.fixture
def token_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("RDZV_TOKEN_FILE", raising=False)
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_text(MASTER.derive(Grant(Scope.JOIN, "llama")).text())
    return str(path)


def test_a_client_takes_its_credentials_beside_its_other_options(
    server: FakeServer, token_file: str
) -> None:
    with Client(server.address, run="llama", min_nodes=2, token_file=token_file) as client:
        assert client.join().world_size == 2
        assert client.credentials == Credentials(token_file=token_file)


def test_the_environment_is_enough(
    server: FakeServer, token_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDZV_TOKEN_FILE", token_file)
    with Client(server.address, run="llama", min_nodes=2) as client:
        assert client.join().world_size == 2


async def test_an_async_client_takes_them_too(server: FakeServer, token_file: str) -> None:
    options = {"min_nodes": 2, "token_file": token_file}
    async with AsyncClient(server.address, run="llama", **options) as client:
        generation = await client.join()
        assert generation.world_size == 2


def test_a_token_for_another_run_is_refused_before_anything_is_sent(
    server: FakeServer, token_file: str
) -> None:
    with pytest.raises(ValueError, match="join for run bert; there is: join for run llama"):
        Client(server.address, run="bert", token_file=token_file)
    assert server.peers == []


def test_without_a_token_the_error_says_what_to_do(server: FakeServer, token_file: str) -> None:
    client = Client(server.address, run="llama")
    try:
        with pytest.raises(Unauthenticated, match="this client has no token") as refused:
            client.connect()
    finally:
        client.close()
    assert "RDZV_TOKEN_FILE" in str(refused.value)


def test_a_worker_finds_them_in_its_environment(
    server: FakeServer, token_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = WorkerEnvironment(
        endpoints=parse(server.address), run="llama", node_id="node-1", fence=FENCE, rank=1,
        world_size=2, lease_ms=9000, token=b"w" * 32,
    )  # fmt: skip
    with pytest.raises(Unauthenticated):
        Worker(environment)
    monkeypatch.setenv("RDZV_TOKEN_FILE", token_file)
    with Worker(environment) as worker:
        assert worker.generation.rank == 1
    assert len(server.all(HelloWorker)) == 2
    (answer,) = server.all(Authenticate)
    assert (answer.scope, answer.run) == ("join", "llama")


def test_no_secret_is_in_what_is_shown_of_a_client(server: FakeServer, token_file: str) -> None:
    client = Client(server.address, run="llama", token_file=token_file)
    try:
        text = f"{vars(client)} {client.credentials}"
    finally:
        client.close()
    assert Path(token_file).read_text().rpartition(":")[2] not in text
