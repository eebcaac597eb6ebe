"""Processes forked from one that has a client."""

import os
import subprocess
import sys
from pathlib import Path

from rdzv_proto.messages import KvSet
from tests.unit.client.certificates import NAMES, Authority, server_context
from tests.unit.client.fake_server import PATIENCE_S, FakeServer

LIVE = """
import os, sys
from rdzv_client import Client
client = Client(sys.argv[1], run="llama")
client.join()
child = os.fork()
if child == 0:
    sys.stdin.read()  # lives until the test lets it go
    os._exit(0)
print(child, flush=True)
os._exit(0)  # like a kill: nothing is said, the kernel closes the files
"""

ASK = """
import os, sys
from rdzv_client import Client
from rdzv_proto.messages import Heartbeat
client = Client(sys.argv[1], run="llama")
client.join()
child = os.fork()
if child == 0:
    answers = []
    client.engine.submit(Heartbeat(), answers.append)
    os._exit(0 if answers else 3)
status = os.waitpid(child, 0)[1]
client.close()
sys.exit(os.waitstatus_to_exitcode(status))
"""


GO_ON = """
import os, sys
from rdzv_client import Client
client = Client(sys.argv[1], run="llama")
client.join()
child = os.fork()
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
client.kv.set("k", "v")
client.close()
"""

UNUSED = """
import os, sys
from rdzv_client import Client
client = Client(sys.argv[1], run="llama")
child = os.fork()
if child == 0:
    try:
        client.connect()
    except Exception as error:
        os._exit(0 if "belongs to the process" in str(error) else 3)
    os._exit(4)
status = os.waitpid(child, 0)[1]
client.connect()
client.close()
sys.exit(os.waitstatus_to_exitcode(status))
"""


def start(
    code: str, server: FakeServer, environment: dict[str, str] | None = None
) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code, server.address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | (environment or {}),
    )


def test_the_death_of_the_parent_ends_the_connection_though_a_child_lives_on() -> None:
    with FakeServer() as server, start(LIVE, server) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert server.peers[-1].gone.wait(PATIENCE_S), "the child holds the connection open"
        os.kill(child, 0)  # raises if the child is gone
        parent.stdin.close()


def test_a_forked_child_is_told_that_the_connection_is_not_its_own() -> None:
    with FakeServer() as server, start(ASK, server) as parent:
        assert parent.wait(PATIENCE_S) == 0


def test_a_forked_child_does_not_end_the_tls_of_its_parent(tmp_path: Path) -> None:
    ca = Authority(tmp_path)
    with (
        FakeServer(tls=server_context(ca.issue(*NAMES))) as server,
        start(GO_ON, server, {"RDZV_TLS_CA": ca.file}) as parent,
    ):
        assert parent.wait(PATIENCE_S) == 0
        assert len(server.peers) == 1
        assert len(server.all(KvSet)) == 1


def test_a_client_that_was_not_used_before_the_fork_is_the_parents_too() -> None:
    with FakeServer() as server, start(UNUSED, server) as parent:
        assert parent.wait(PATIENCE_S) == 0
        assert len(server.peers) == 1
