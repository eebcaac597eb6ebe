"""TLS: who may talk to whom, with which certificate, and how certificates are exchanged under running jobs."""

import datetime
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trustme

from rdzv_client.credentials import Credentials
from rdzv_proto.framing import PREAMBLE
from tests.e2e.kit.keys import Keys, rdzv
from tests.e2e.kit.server import Server
from tests.e2e.kit.wait import until

if TYPE_CHECKING:
    from tests.e2e.conftest import Cluster

PAST = datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc)
EXPIRED: dict[str, Any] = {"not_before": PAST, "not_after": PAST + datetime.timedelta(days=30)}
SERVER_NAMES = ("rdzv.example", "127.0.0.1")


class Encrypted:
    """A server that speaks TLS, and asks clients for certificates."""

    def __init__(self, cluster: "Cluster", *flags: str, mutual: bool = True) -> None:
        self.keys = Keys(cluster.folder)
        self.cert = self.keys.cert(*SERVER_NAMES)
        more = ["--tls-client-ca", str(self.keys.ca_file)] if mutual else []
        self.looking = Credentials(**self.keys.node("operator"))
        self.server: Server = cluster.server(
            "--tls-cert", str(self.cert), *more, *flags, credentials=self.looking
        )


@pytest.fixture
def encrypted(cluster: "Cluster") -> Encrypted:
    return Encrypted(cluster)


def serial(server: Server, ca: Path, cert: Path) -> int:
    """Of the certificate that a new connection is shown."""
    context = ssl.create_default_context(cafile=str(ca))
    context.load_cert_chain(cert)
    with (
        socket.create_connection(("127.0.0.1", server.port), 10) as sock,
        context.wrap_socket(sock, server_hostname=SERVER_NAMES[0]) as tls,
    ):
        found: Any = tls.getpeercert()
        return int(found["serialNumber"], 16)


# --- certificates of clients ------------------------------------------------------------------


def test_t4_a_certificate_lets_a_node_in_under_its_own_name_only(
    cluster: "Cluster", encrypted: Encrypted
) -> None:
    tls = encrypted.keys.node("node-3")
    cluster.node(encrypted.server, "job", node_id="node-3", **tls).joined(1, 10)
    made_up = cluster.node(encrypted.server, "other", name="node-3", **tls)
    made_up.joined(1, 10)
    assert made_up.node_id.startswith("node-3-")
    thief = cluster.node(encrypted.server, "job", node_id="node-4", **tls)
    refused = thief.wait_for("refused", 10)
    assert "the certificate is for node-3, not for node id 'node-4'" in refused["message"]
    assert [m.node_id for m in encrypted.server.members("job")] == ["node-3"]


@pytest.mark.parametrize("kind", ["none", "of another authority", "expired"])
def test_t4_bad_certificates_of_clients_get_nowhere(
    cluster: "Cluster", encrypted: Encrypted, kind: str
) -> None:
    keys = encrypted.keys
    tls = {"tls_ca": str(keys.ca_file)}
    if kind == "of another authority":
        tls["tls_cert"] = str(keys.cert("node-3", ca=trustme.CA()))
    elif kind == "expired":
        tls["tls_cert"] = str(keys.cert("node-3", **EXPIRED))
    done = rdzv(
        encrypted.server.endpoint, "--timeout", "1", "status", credentials=Credentials(**tls)
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "certificate" in line
    until(
        lambda: encrypted.server.log_lines("handshake_failed"), 5,
        lambda: f"the server says so: {encrypted.server.log}",
    )  # fmt: skip
    assert rdzv(encrypted.server.endpoint, "status", credentials=encrypted.looking).returncode == 0


# --- certificates of servers ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("expired", "the server's certificate has expired"),
        ("of another authority", "an authority that is not in"),
        ("for another name", "the server's certificate is not for '127.0.0.1'"),
    ],
)
def test_t4_bad_certificates_of_servers_are_refused_at_once(
    cluster: "Cluster", kind: str, text: str
) -> None:
    keys = Keys(cluster.folder)
    cert = {
        "expired": lambda: keys.cert(*SERVER_NAMES, **EXPIRED),
        "of another authority": lambda: keys.cert(*SERVER_NAMES, ca=trustme.CA()),
        "for another name": lambda: keys.cert("elsewhere.example"),
    }[kind]()
    server = cluster.server("--tls-cert", str(cert))
    done = rdzv(
        server.endpoint, "--timeout", "30", "status",
        credentials=Credentials(tls_ca=str(keys.ca_file)),
    )  # fmt: skip
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert text in line
    assert "RDZV-E014" in line


def test_a_server_known_by_another_name_is_asked_for_that(cluster: "Cluster") -> None:
    keys = Keys(cluster.folder)
    server = cluster.server("--tls-cert", str(keys.cert("elsewhere.example")))
    tls = Credentials(tls_ca=str(keys.ca_file), tls_server_name="elsewhere.example")
    assert rdzv(server.endpoint, "status", credentials=tls).returncode == 0


# --- one side with, the other without ---------------------------------------------------------


def test_t4_plain_text_on_the_tls_port_is_closed(encrypted: Encrypted) -> None:
    for data in (PREAMBLE, b"GET / HTTP/1.1\r\n\r\n", b"\0" * 64):
        with socket.create_connection(("127.0.0.1", encrypted.server.port), 10) as sock:
            sock.settimeout(10)
            sock.sendall(data)
            answer = b""
            try:
                while more := sock.recv(4096):
                    answer += more
            except ConnectionResetError:
                pass
            assert b"RDZV" not in answer
            assert b"HTTP" not in answer
    plain = rdzv(encrypted.server.endpoint, "--timeout", "1", "status", credentials=Credentials())
    assert plain.returncode == 1
    assert "tls_ca" in plain.stderr


def test_tls_against_a_plain_server_says_so(cluster: "Cluster") -> None:
    server, keys = cluster.server(), Keys(cluster.folder)
    tls = Credentials(tls_ca=str(keys.ca_file))
    done = rdzv(server.endpoint, "--timeout", "1", "status", credentials=tls)
    assert done.returncode == 1
    assert "tls_ca" in done.stderr
    assert len(done.stderr.splitlines()) == 1


# --- exchange ---------------------------------------------------------------------------------


def test_t4_a_new_certificate_is_shown_after_a_reload_and_nodes_stay(
    cluster: "Cluster", encrypted: Encrypted
) -> None:
    keys, server = encrypted.keys, encrypted.server
    node = cluster.node(server, "job", node_id="node-3", **keys.node("node-3"))
    node.joined(1, 10)
    own = keys.cert("operator")
    before = serial(server, keys.ca_file, own)
    keys.reissue(encrypted.cert, *SERVER_NAMES)
    encrypted.server.reload()
    assert serial(server, keys.ca_file, own) != before
    assert node.ask("set", key="k", value="v")["event"] == "done"
    assert node.number == 1


def test_a_bad_new_certificate_is_logged_and_the_old_one_stays(encrypted: Encrypted) -> None:
    keys, server = encrypted.keys, encrypted.server
    own = keys.cert("operator")
    before = serial(server, keys.ca_file, own)
    encrypted.cert.write_text("rubbish")
    server.signal(signal.SIGHUP)
    until(lambda: server.log_lines("reload_failed"), 5, "the server says so")
    assert serial(server, keys.ca_file, own) == before


@pytest.mark.parametrize("flag", ["--tls-cert", "--tls-key", "--tls-client-ca"])
def test_a_bad_file_is_one_line_and_exit_code_2(cluster: "Cluster", flag: str) -> None:
    keys = Keys(cluster.folder)
    missing = str(keys.folder / "missing")
    flags = {"--tls-cert": str(keys.cert(*SERVER_NAMES)), flag: missing}
    done = subprocess.run(
        [sys.executable, "-m", "rdzv_server", "--port", "0",
         *(word for pair in flags.items() for word in pair)],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert f"{missing}: No such file" in done.stderr.splitlines()[-1]


# --- everything together ----------------------------------------------------------------------


@pytest.mark.torch
def test_a_torchrun_job_trains_over_mutual_tls_with_a_token_and_survives_a_loss(
    cluster: "Cluster",
) -> None:
    keys = Keys(cluster.folder)
    master, file = keys.master()
    host = socket.gethostname()
    access = Credentials(token_file=str(file), **keys.node(host))
    server = cluster.server(
        "--token-file", str(file), "--tls-cert", str(keys.cert(*SERVER_NAMES)),
        "--tls-client-ca", str(keys.ca_file), credentials=access,
    )  # fmt: skip
    conf: dict[str, str | None] = {
        "token_file": str(keys.of_run(master, "job")), **keys.node(host),
    }  # fmt: skip
    script = str(Path(__file__).parent / "kit" / "attaching.py")
    attaching = [cluster.agent(server, "job", "2", conf=conf, script=script) for _ in range(2)]
    assert [agent.wait(60) for agent in attaching] == [0, 0], attaching[0].log
    agents = [
        cluster.agent(server, "job", "1:2", "gloo", "sleep=60", restarts=3, conf=conf)
        for _ in range(2)
    ]
    for agent in agents:
        agent.in_world(2, 60, event="all_reduce")
    agents[0].kill_group()
    agents[1].in_world(1, 60, event="all_reduce")
