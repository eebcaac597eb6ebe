"""A token in force: real torchrun jobs get in with it, nobody without, and nobody learns it."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rdzv_client.credentials import Credentials
from rdzv_proto.auth import EVERYTHING, Grant, Scope, Token
from rdzv_proto.framing import LENGTH_BYTES, PREAMBLE_BYTES
from rdzv_proto.tcpstore import HELLO
from tests.e2e.conftest import need_root
from tests.e2e.kit import leaks
from tests.e2e.kit.keys import Keys, rdzv
from tests.e2e.kit.netns import Net
from tests.e2e.kit.proxy import Proxy
from tests.e2e.kit.server import Server
from tests.e2e.kit.wait import until

if TYPE_CHECKING:
    from tests.e2e.conftest import Cluster


class Guarded:
    """A server with a token in force, and that token."""

    def __init__(self, cluster: "Cluster", *flags: str, **options: object) -> None:
        self.keys = Keys(cluster.folder)
        self.master, self.file = self.keys.master()
        self.access = Credentials(token_file=str(self.file))
        self.server: Server = cluster.server(
            "--token-file", str(self.file), *flags, credentials=self.access, **options
        )


@pytest.fixture
def guarded(cluster: "Cluster") -> Guarded:
    return Guarded(cluster)


# --- B40 --------------------------------------------------------------------------------------


def test_b40_b_without_a_token_or_with_a_wrong_one_nobody_gets_in(
    cluster: "Cluster", guarded: Guarded
) -> None:
    inside = cluster.node(guarded.server, "secret-run", token_file=str(guarded.file))
    inside.joined(1, 10)
    wrong = guarded.keys.file(Token(EVERYTHING, os.urandom(32)))
    for credentials, why in (
        (Credentials(), "demands authentication; this client has no token"),
        (Credentials(token_file=str(wrong)), "is not in force on this server"),
    ):
        look = rdzv(guarded.server.endpoint, "status", credentials=credentials)
        assert look.returncode == 1
        (line,) = look.stderr.splitlines()
        assert why in line
        assert "RDZV-E014" in line
        for name in ("secret-run", inside.node_id):
            assert name not in look.stdout + look.stderr
        node = cluster.node(guarded.server, "secret-run", token_file=credentials.token_file)
        refused = node.wait_for("refused", 10)
        assert refused["error"] == "Unauthenticated"
        assert why in refused["message"]
    assert guarded.server.log_lines("auth_failed")
    assert "peer=127.0.0.1:" in guarded.server.log_lines("auth_failed")[0]
    good = rdzv(guarded.server.endpoint, "status", "secret-run", credentials=guarded.access)
    assert good.returncode == 0
    assert inside.node_id in good.stdout
    assert len(guarded.server.members("secret-run")) == 1


def test_t3_a_run_token_opens_its_run_and_shows_no_other(
    cluster: "Cluster", guarded: Guarded
) -> None:
    keys, server = guarded.keys, guarded.server
    mine, looking = (
        keys.of_run(guarded.master, "mine", scope) for scope in (Scope.JOIN, Scope.READ)
    )
    cluster.node(server, "theirs", token_file=str(guarded.file)).joined(1, 10)
    cluster.node(server, "mine", token_file=str(mine)).joined(1, 10)
    for path in (mine, looking):
        access = Credentials(token_file=str(path))
        shown = rdzv(server.endpoint, "status", credentials=access)
        assert shown.returncode == 0
        assert "run mine" in shown.stdout
        assert "theirs" not in shown.stdout
        answers = {
            rdzv(server.endpoint, "status", name, credentials=access).stderr.replace(name, "RUN")
            for name in ("theirs", "nowhere")
        }
        assert len(answers) == 1
    close = rdzv(
        server.endpoint, "close", "mine", "--yes", credentials=Credentials(token_file=str(mine))
    )
    assert close.returncode != 0
    assert "admin" in close.stderr
    outsider = cluster.node(server, "theirs", token_file=str(keys.file(Token(
        Grant(Scope.JOIN, "theirs"), guarded.master.derive(Grant(Scope.JOIN, "mine")).secret,
        guarded.master.key,
    ))))  # fmt: skip
    assert outsider.wait_for("refused", 10)["error"] == "Unauthenticated"


# --- making tokens ----------------------------------------------------------------------------


def test_the_readmes_commands_make_a_token_and_a_run_token(cluster: "Cluster") -> None:
    folder = cluster.folder / leaks.HOME
    folder.mkdir()
    command = f"{sys.executable} -m rdzv_client"
    script = f"umask 022; {command} token new > token && {command} --token-file token token new --run job > job"
    subprocess.run(["sh", "-c", script], cwd=folder, check=True, timeout=60)
    for name in ("token", "job"):
        assert (folder / name).stat().st_mode & 0o777 == 0o600
    server = cluster.server("--token-file", str(folder / "token"))
    cluster.node(server, "job", token_file=str(folder / "job")).joined(1, 10)
    other = cluster.node(server, "other", token_file=str(folder / "job"))
    until(lambda: other.process.poll() is not None, 20, "it ends")
    assert "no token in it allows join for run other; there is: join for run job" in other.log


@pytest.mark.parametrize(
    ("mode", "content", "text"),
    [(0o644, None, "chmod 600"), (0o600, "hunter2\n", "line 1: that is no rdzv token"),
     (0o600, "", "0 tokens"), (0o600, ..., "cannot read token file")],
)  # fmt: skip
def test_t20_a_bad_token_file_is_one_line_and_exit_code_2(
    cluster: "Cluster", mode: int, content: object, text: str
) -> None:
    keys = Keys(cluster.folder)
    path = keys.file(Token(EVERYTHING, os.urandom(32)))
    if isinstance(content, str):
        path.write_text(content)
    path.chmod(mode)
    if content is ...:
        path.unlink()
    done = subprocess.run(
        [sys.executable, "-m", "rdzv_server", "--port", "0", "--token-file", str(path)],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stdout == ""
    line = done.stderr.splitlines()[-1]
    assert line.startswith("rdzv-server: ")
    assert text in line
    assert "hunter2" not in done.stderr


# --- rotation ---------------------------------------------------------------------------------


def test_two_tokens_are_valid_during_a_rotation_and_the_old_one_is_not_after_it(
    cluster: "Cluster", guarded: Guarded
) -> None:
    keys, server, file = guarded.keys, guarded.server, guarded.file
    old = keys.file(guarded.master)
    cluster.node(server, "job", token_file=str(old)).joined(1, 10)
    new, new_file = keys.master()
    keys.rewrite(file, new, guarded.master)
    guarded.server.reload()
    for path in (old, new_file):
        access = Credentials(token_file=str(path))
        assert rdzv(server.endpoint, "status", credentials=access).returncode == 0
    keys.rewrite(file, new)
    guarded.server.reload()
    late = rdzv(server.endpoint, "status", credentials=Credentials(token_file=str(old)))
    assert late.returncode == 1
    assert "not in force" in late.stderr
    server._credentials = Credentials(token_file=str(new_file))
    run = server.run("job")
    assert run is not None
    assert run.participants == 1, "who is in stays in"


def test_a_node_takes_the_new_token_when_it_reconnects(
    cluster: "Cluster", guarded: Guarded
) -> None:
    keys, server = guarded.keys, guarded.server
    own = keys.file(guarded.master)
    proxy = Proxy("127.0.0.1", server.port)
    try:
        node = cluster.node(proxy.endpoint, "job", token_file=str(own))
        node.joined(1, 10)
        new, _ = keys.master()
        keys.rewrite(guarded.file, new)
        guarded.server.reload()
        keys.rewrite(own, new)
        proxy.drop()
        until(lambda: server.log_lines("node_resumed"), 10, lambda: f"it is back: {server.log}")
        assert node.number == 1
        assert not node.all("refused")
    finally:
        node.kill()
        proxy.close()


# --- torchrun ---------------------------------------------------------------------------------


@pytest.mark.torch
def test_t2_a_torchrun_job_trains_with_a_run_token_and_survives_a_loss(
    cluster: "Cluster", guarded: Guarded
) -> None:
    conf: dict[str, str | None] = {"token_file": str(guarded.keys.of_run(guarded.master, "job"))}
    agents = [
        cluster.agent(guarded.server, "job", "1:2", "gloo", "sleep=60", restarts=3, conf=conf)
        for _ in range(2)
    ]
    for agent in agents:
        agent.in_world(2, 60, event="all_reduce")
    agents[0].kill_group()
    agents[1].in_world(1, 60, event="all_reduce")


@pytest.mark.torch
def test_a_torchrun_job_without_the_token_says_so_in_its_last_line(
    cluster: "Cluster", guarded: Guarded
) -> None:
    agent = cluster.agent(guarded.server, "job", "1", real=True)
    assert agent.wait(60) != 0
    last = agent.log.strip().splitlines()[-1]
    assert "demands authentication; this client has no token" in last
    assert "--rdzv-conf=token_file" in last


@pytest.mark.torch
def test_workers_attach_with_their_agents_token(cluster: "Cluster", guarded: Guarded) -> None:
    conf: dict[str, str | None] = {"token_file": str(guarded.keys.of_run(guarded.master, "job"))}
    script = str(Path(__file__).parent / "kit" / "attaching.py")
    agents = [
        cluster.agent(guarded.server, "job", "2", conf=conf, script=script, nproc=2)
        for _ in range(2)
    ]
    for agent in agents:
        assert agent.wait(60) == 0, agent.log
        assert [row["met"] for row in agent.lines("met")] == [4, 4]


@pytest.mark.torch
@pytest.mark.root
def test_t2_the_workers_store_lets_in_the_nodes_addresses_only(cluster: "Cluster") -> None:
    need_root("ip")
    with Net(cluster.marker) as net:
        home, near, far = (net.host(n) for n in (1, 2, 3))
        guarded = Guarded(cluster, host=home.address, prefix=home.prefix())
        conf: dict[str, str | None] = {
            "worker_store": "server", "token_file": str(guarded.file),
        }  # fmt: skip
        agent = cluster.agent(
            f"{home.address}:{guarded.server.port}", "job", "1", "gloo", "sleep=30",
            real=True, prefix=near.prefix(), conf=conf,
        )  # fmt: skip
        row = agent.in_world(1, 60, event="all_reduce")
        knock = (
            "import socket, sys; s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 5); "
            f"s.sendall({HELLO!r} + b'\\x07\\x02\\0\\0\\0'); s.settimeout(5); "
            "print(s.recv(4) or 'closed')"
        )
        to = (row["MASTER_ADDR"], row["MASTER_PORT"])

        def knocks(prefix: list[str]) -> str:
            done = subprocess.run(
                [*prefix, sys.executable, "-c", knock, *to],
                capture_output=True, text=True, timeout=30, check=False,
            )  # fmt: skip
            return done.stdout.strip() or done.stderr.splitlines()[-1]

        stranger = knocks(far.prefix())
        assert stranger == "closed" or "reset" in stranger
        assert knocks(near.prefix()) == repr(b"\x02\0\0\0")
        assert f"peer={far.address}" in guarded.server.log_lines("store_client_closed")[0]


# --- what goes not together -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (("--tcpstore",), "--tcpstore goes not together with --token-file"),
        (("--insecure-no-auth",), "contradict each other"),
        (("--tls-key", "k"), "need --tls-cert"),
    ],
)
def test_t2_flags_that_would_get_past_the_token_are_refused(
    cluster: "Cluster", flags: tuple[str, ...], text: str
) -> None:
    keys = Keys(cluster.folder)
    _, path = keys.master()
    done = subprocess.run(
        [sys.executable, "-m", "rdzv_server", "--port", "0", "--token-file", str(path), *flags],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert text in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_t19_wrong_proofs_are_answered_late_and_right_ones_at_once(
    cluster: "Cluster", guarded: Guarded
) -> None:
    """A row of wrong guesses does not keep out who knows the token, from the same address."""
    wrong = guarded.keys.file(Token(EVERYTHING, os.urandom(32)))
    for _ in range(3):
        assert rdzv(
            guarded.server.endpoint, "status", credentials=Credentials(token_file=str(wrong))
        ).returncode == 1  # fmt: skip
    assert rdzv(guarded.server.endpoint, "status", credentials=guarded.access).returncode == 0
    shown = rdzv(guarded.server.endpoint, "status", "-o", "json", credentials=guarded.access)
    assert '"denied": 3' in shown.stdout


def test_the_tokenless_client_of_a_tokenless_server_sends_what_it_always_sent(
    cluster: "Cluster",
) -> None:
    """Protocol version 1: not a byte of a hello tells whether a client could authenticate."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(20)
        endpoint = f"127.0.0.1:{listening.getsockname()[1]}"
        keys = Keys(cluster.folder)
        _, path = keys.master()
        for token in ("", str(path)):
            node = cluster.node(
                endpoint, "job", token_file=token, node_id="n", name="n",
                connect_timeout_s=20,
            )  # fmt: skip
            conn, _ = listening.accept()
            with conn:
                conn.settimeout(20)
                heard.append(conn.recv(65536))
            node.kill()
    # The number of the request tells whether the join was asked for before the connection stood, and no more.
    number = PREAMBLE_BYTES + LENGTH_BYTES + len(b"\x94\x01")
    incarnation = heard[0].index(b"incarnation") + len(b"incarnation") + 2
    one, other = (
        data[:number] + data[number + 1 : incarnation] + data[incarnation + 16 :] for data in heard
    )
    assert all(data[number] in (1, 2) for data in heard)
    assert one == other
