"""Ctrl-C while a join waits."""

import signal
import subprocess
import sys

import pytest

from rdzv_client.blocking import Client
from rdzv_proto.messages import Join, Leave
from tests.unit.client.fake_server import PATIENCE_S, FakeServer
from tests.unit.client.inbox import signal_in_join

WITHDRAWN = Leave(kind="drained", detail="interrupted")

WAIT = """
import sys
from rdzv_client import Client
client = Client(sys.argv[1], run="llama")
try:
    client.join()
except KeyboardInterrupt:
    client.close()
    print("interrupted")
"""


def test_ctrl_c_in_a_join_withdraws_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeServer() as server:
        client = Client(server.address, run="llama")
        signal_in_join(monkeypatch, server, signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            client.join()
        assert server.wait_for(Leave) == WITHDRAWN
        assert client.generation is None
        client.close()


def test_a_process_that_waits_in_a_join_can_be_interrupted() -> None:
    command = [sys.executable, "-c", WAIT]
    with (
        FakeServer() as server,
        subprocess.Popen([*command, server.address], stdout=subprocess.PIPE, text=True) as waiting,
    ):
        server.on(Join, None)
        server.wait_for(Join)
        for _ in range(5):  # one that comes just before the thread blocks wakes nobody
            waiting.send_signal(signal.SIGINT)
            try:
                out, _ = waiting.communicate(timeout=PATIENCE_S / 5)
            except subprocess.TimeoutExpired:
                continue
            break
        assert out == "interrupted\n"
        assert server.all(Leave) == [WITHDRAWN]
