"""What a training process inherits from its agent."""

from pathlib import Path

import pytest

from rdzv_client import names, worker
from rdzv_client.endpoint import Endpoint
from rdzv_client.errors import GenerationEnded
from rdzv_client.worker import WorkerEnvironment, token_text
from rdzv_proto.messages import Fence

FENCE = Fence(1000, 3)
TOKEN = bytes(range(32))


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """What an agent exports, and what torchrun adds."""
    file = tmp_path / "worker-token"
    file.write_bytes(token_text(FENCE, TOKEN))
    return {
        "RDZV_ENDPOINT": "a:1,[::1]:2",
        "RDZV_RUN": "llama",
        "RDZV_FENCE": "1000.3",
        "RDZV_WORKER_NODE": "node-1",
        "RDZV_WORKER_TOKEN_FILE": str(file),
        "RDZV_LEASE_MS": "9000",
        "RANK": "5",
        "WORLD_SIZE": "8",
    }


def test_everything_comes_from_the_environment_and_the_token_file(environ: dict[str, str]) -> None:
    assert WorkerEnvironment.read(environ) == WorkerEnvironment(
        endpoints=[Endpoint("a", 1), Endpoint("::1", 2)],
        run="llama",
        node_id="node-1",
        fence=FENCE,
        rank=5,
        world_size=8,
        lease_ms=9000,
        token=TOKEN,
    )


def test_the_process_environment_is_the_default(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert WorkerEnvironment.read().run == "llama"


@pytest.mark.parametrize(
    "name",
    [
        "RDZV_ENDPOINT",
        "RDZV_RUN",
        "RDZV_FENCE",
        "RDZV_WORKER_NODE",
        "RDZV_WORKER_TOKEN_FILE",
        "RANK",
        "WORLD_SIZE",
    ],
)
@pytest.mark.parametrize("empty", [False, True])
def test_a_missing_variable_is_named_with_how_to_get_it_set(
    environ: dict[str, str], name: str, empty: bool
) -> None:
    environ.pop(name)
    if empty:
        environ[name] = ""
    with pytest.raises(ValueError, match=rf"\b{name} is not set.*--rdzv-backend=rdzv"):
        WorkerEnvironment.read(environ)


def test_the_lease_has_a_default(environ: dict[str, str]) -> None:
    del environ["RDZV_LEASE_MS"]
    assert WorkerEnvironment.read(environ).lease_ms == 15_000


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RDZV_ENDPOINT", "a:x"),
        ("RANK", "five"),
        ("WORLD_SIZE", "8.0"),
        ("RDZV_LEASE_MS", "9 s"),
    ],
)
def test_a_broken_variable_is_an_error_that_shows_its_value(
    environ: dict[str, str], name: str, value: str
) -> None:
    environ[name] = value
    with pytest.raises(ValueError, match="environment of this worker is broken") as caught:
        WorkerEnvironment.read(environ)
    assert value in str(caught.value)


@pytest.mark.parametrize("fence", ["1000", "x.3", "1000.3.1"])
def test_a_broken_fence_is_an_error(environ: dict[str, str], fence: str, tmp_path: Path) -> None:
    environ["RDZV_FENCE"] = fence
    Path(environ["RDZV_WORKER_TOKEN_FILE"]).write_text(f"{fence} {TOKEN.hex()}\n")
    with pytest.raises(ValueError, match="broken"):
        WorkerEnvironment.read(environ)


def test_a_worker_of_an_older_generation_learns_that_it_is_over(environ: dict[str, str]) -> None:
    environ["RDZV_FENCE"] = "1000.2"
    with pytest.raises(GenerationEnded) as caught:
        WorkerEnvironment.read(environ)
    assert "generation 1000.2" in caught.value.message
    assert "at 1000.3" in caught.value.message


def test_an_empty_token_file_is_a_generation_that_is_over(environ: dict[str, str]) -> None:
    Path(environ["RDZV_WORKER_TOKEN_FILE"]).write_text("")
    with pytest.raises(GenerationEnded, match="at none"):
        WorkerEnvironment.read(environ)


def test_a_token_file_that_is_gone_asks_for_the_agent(environ: dict[str, str]) -> None:
    path = environ["RDZV_WORKER_TOKEN_FILE"]
    Path(path).unlink()
    with pytest.raises(ValueError, match=r"is the agent .* still running") as caught:
        WorkerEnvironment.read(environ)
    assert path in str(caught.value)
    assert "No such file" in str(caught.value)


def test_the_token_file_names_its_generation_in_one_line() -> None:
    assert token_text(FENCE, b"\x01\xff") == b"1000.3 01ff\n"


def test_the_hello_of_a_worker_proves_its_generation(environ: dict[str, str]) -> None:
    settings = WorkerEnvironment.read(environ)
    hello, other = settings.hello(), settings.hello()
    assert (hello.run, hello.node_id, hello.fence, hello.rank) == ("llama", "node-1", FENCE, 5)
    assert (hello.worker_token, hello.lease_ms, hello.client) == (TOKEN, 9000, names.CLIENT)
    assert len(hello.incarnation) == 16
    assert hello.incarnation != other.incarnation


def test_the_variables_are_the_ones_the_agent_exports() -> None:
    """They are read by processes that may have another version of this library."""
    assert worker.RUN == "RDZV_RUN"
    assert worker.FENCE == "RDZV_FENCE"
    assert worker.NODE_ID == "RDZV_WORKER_NODE"
    assert worker.TOKEN_FILE == "RDZV_WORKER_TOKEN_FILE"
    assert worker.LEASE == "RDZV_LEASE_MS"
