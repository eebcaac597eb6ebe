"""What workers inherit from their agent."""

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rdzv_client.blocking import Client
from rdzv_client.credentials import Credentials
from rdzv_client.errors import GenerationEnded
from rdzv_client.torch.export import WorkerExport
from rdzv_client.worker import WorkerEnvironment
from rdzv_proto.auth import EVERYTHING, Token
from rdzv_proto.messages import Fence, Join
from tests.unit.client.certificates import NAMES as HOSTS
from tests.unit.client.certificates import Authority, digest, server_context
from tests.unit.client.fake_server import FENCE, FakeServer, joined

NAMES = (
    "RDZV_ENDPOINT", "RDZV_RUN", "RDZV_FENCE", "RDZV_WORKER_NODE", "RDZV_WORKER_TOKEN_FILE",
    "RDZV_LEASE_MS",
)  # fmt: skip


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer(lease_ms=9000) as running:
        yield running


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


@pytest.fixture
def client(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    for name in NAMES:
        monkeypatch.setenv(name, "to be replaced")
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "8")
    made = Client(server.address, run="llama", node_id="node-1")
    yield made
    made.close()


@pytest.fixture
def export(client: Client) -> Iterator[WorkerExport]:
    made = WorkerExport(client)
    yield made
    made.remove()


def token_file() -> Path:
    return Path(os.environ["RDZV_WORKER_TOKEN_FILE"])


def test_a_worker_can_read_what_its_agent_published(
    server: FakeServer, client: Client, export: WorkerExport
) -> None:
    export.publish(client.join())
    worker = WorkerEnvironment.read()
    assert str(worker.endpoints[0]) == server.address
    assert (worker.run, worker.node_id, worker.fence) == ("llama", "node-1", FENCE)
    assert (worker.token, worker.lease_ms) == (b"w" * 32, 9000)
    assert (worker.rank, worker.world_size) == (5, 8)


def test_every_variable_is_there_before_the_client_has_a_thread_and_later_only_values_change(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in NAMES:
        monkeypatch.setenv(name, "to be restored")  # by monkeypatch, when this ends
        del os.environ[name]
    with Client(server.address, run="llama") as client:
        export = WorkerExport(client)
        there = list(os.environ)
        assert set(NAMES) <= set(there)
        assert not client.engine._thread.is_alive()
        with pytest.raises(ValueError, match="RDZV_FENCE is not set"):
            WorkerEnvironment.read()
        export.publish(client.join())
        assert list(os.environ) == there
        export.remove()


def test_the_token_can_be_read_by_its_user_only_and_is_in_no_variable(
    client: Client, export: WorkerExport
) -> None:
    export.publish(client.join())
    assert stat.S_IMODE(token_file().stat().st_mode) == 0o600
    assert stat.S_IMODE(token_file().parent.stat().st_mode) == 0o700
    assert not any((b"w" * 32).hex() in value for value in os.environ.values())


def test_the_next_generation_replaces_the_last_one_in_place(
    server: FakeServer, client: Client, export: WorkerExport
) -> None:
    export.publish(client.join())
    file, inherited = token_file(), dict(os.environ)
    server.on(Join, lambda m: joined(Fence(7, 2)))
    export.publish(client.join())
    assert token_file() == file
    assert WorkerEnvironment.read().fence == Fence(7, 2)
    with pytest.raises(GenerationEnded):
        WorkerEnvironment.read(inherited)


def test_a_shorter_text_leaves_nothing_of_the_longer_one(
    server: FakeServer, client: Client, export: WorkerExport
) -> None:
    server.on(Join, lambda m: joined(Fence(7, 1_000_000)))
    export.publish(client.join())
    server.on(Join, lambda m: joined(Fence(8, 1)))
    export.publish(client.join())
    assert token_file().read_bytes() == b"8.1 " + (b"w" * 32).hex().encode() + b"\n"


def test_nothing_is_left_when_the_agent_ends(client: Client, export: WorkerExport) -> None:
    generation = client.join()
    export.publish(generation)
    file = token_file()
    export.remove()
    export.remove()
    assert not file.exists()
    export.publish(generation)
    assert not file.exists(), "too late to publish anything"


def test_two_agents_of_one_machine_do_not_share_a_file(
    server: FakeServer, client: Client, export: WorkerExport
) -> None:
    export.publish(client.join())
    first = token_file()
    other = WorkerExport(client)
    try:
        assert token_file() != first
        assert first.read_bytes().startswith(b"7.1 "), "a living agent's file is left alone"
    finally:
        other.remove()
    assert first.exists()


def test_what_a_killed_agent_left_is_removed_by_the_next_one(client: Client) -> None:
    folder = Path(tempfile.gettempdir(), f"rdzv-{os.getuid()}")
    code = (
        "import os\n"
        "from rdzv_client.torch.export import WorkerExport\n"
        "from rdzv_client.blocking import Client\n"
        "WorkerExport(Client('127.0.0.1:1', run='llama', connect_timeout_s=30))\n"
        "print(os.environ['RDZV_WORKER_TOKEN_FILE'], flush=True)\n"
        "os._exit(9)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    left = Path(run.stdout.strip())
    assert (run.returncode, left.parent, left.exists()) == (9, folder, True)
    export = WorkerExport(client)
    try:
        assert not left.exists()
        assert token_file().exists()
    finally:
        export.remove()


@pytest.mark.parametrize("taken_by", ["file", "link", "open folder"])
def test_a_folder_that_others_could_read_is_not_used(client: Client, taken_by: str) -> None:
    """The name in the common folder for temporary files can be guessed by anybody."""
    expected = Path(tempfile.gettempdir(), f"rdzv-{os.getuid()}")
    match taken_by:
        case "file":
            expected.write_text("mine")
        case "link":
            (elsewhere := expected.with_name("elsewhere")).mkdir()
            expected.symlink_to(elsewhere)
        case _:
            expected.mkdir()
            expected.chmod(0o777)
    export = WorkerExport(client)
    try:
        assert token_file().parent != expected
        assert stat.S_IMODE(token_file().parent.stat().st_mode) == 0o700
    finally:
        export.remove()


def test_workers_find_the_credentials_of_their_agent(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Which it may have been given by --rdzv-conf, and as relative paths."""
    for name in ("RDZV_TOKEN_FILE", "RDZV_TLS_CA", "RDZV_TLS_CERT", "RDZV_TLS_KEY"):
        monkeypatch.setenv(name, "of somebody else")
    monkeypatch.setenv("RDZV_TLS_SERVER_NAME", "")
    token = Token(EVERYTHING, b"s" * 32)
    (tmp_path / "token").touch(0o600)
    (tmp_path / "token").write_text(token.text())
    monkeypatch.chdir(tmp_path)
    ca = Authority(tmp_path)
    leaf = ca.issue(*HOSTS)
    with FakeServer(token=token, tls=server_context(leaf), certificate=digest(leaf)) as secured:
        given = Credentials("token", tls_ca="ca.pem")
        agent = Client(secured.address, run="llama", node_id="node-1", credentials=given)
        exported = WorkerExport(agent)
        try:
            monkeypatch.chdir("/")
            found = Credentials.find()
            assert found == Credentials(str(tmp_path / "token"), ca.file)
            assert "RDZV_TLS_KEY" not in os.environ
            exported.publish(agent.join())
            monkeypatch.setenv("RANK", "5")
            monkeypatch.setenv("WORLD_SIZE", "8")
            with Client.from_env() as attached:
                assert attached.generation.rank == 5
        finally:
            exported.remove()
            agent.close()
