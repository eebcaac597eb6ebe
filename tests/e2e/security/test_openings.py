"""T10 and T11: those who speak another protocol, who are slow to say anything, or who say nothing at all."""

import contextlib
import random
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from rdzv_proto import codec
from rdzv_proto.framing import PREAMBLE
from rdzv_proto.messages import Heartbeat, HelloAdmin, Welcome
from tests.e2e.conftest import Cluster
from tests.e2e.kit.gauges import descriptors, log_grows_slowly, most_in_a_second, rss_mib
from tests.e2e.kit.hostile import Raw, many
from tests.e2e.kit.pulse import live_run
from tests.e2e.kit.server import Server
from tests.e2e.kit.wait import stays, until

HELLO_S = 5.0
FRAME_S = 10.0
SLACK_S = 3.0
"""For the machine. A server that waits again with each byte would be far over it."""

TLS_CLIENT_HELLO = (
    bytes.fromhex("16030100c8010000c40303")
    + bytes(range(32))
    + b"\x00\x00\x04\x13\x01\x13\x02"
    + b"\0" * 155
)
TCPSTORE_HELLO = bytes.fromhex("00cef7853c")

FOREIGN: dict[str, bytes] = {
    "GET": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "HEAD": b"HEAD / HTTP/1.0\r\n\r\n",
    "POST": b"POST /api HTTP/1.1\r\nContent-Length: 4\r\n\r\nabcd",
    "TLS": TLS_CLIENT_HELLO,
    "SSH": b"SSH-2.0-OpenSSH_9.6\r\n",
    "TCPStore": TCPSTORE_HELLO + b"\x00" * 20,
    "SMB": b"\x00\x00\x00\x85\xffSMBr\x00\x00\x00\x00\x18S\xc8",
    "RDP": b"\x03\x00\x00\x13\x0e\xe0\x00\x00\x00\x00\x00\x01\x00\x08\x00\x03\x00\x00\x00",
    "redis": b"*1\r\n$4\r\nINFO\r\n",
    "line feeds": b"\r\n\r\n\r\n\r\n",
    "zeros": b"\x00" * 64,
    "almost": b"RDZ?\x01\x00\x00\x00",
    "noise": random.Random(10).randbytes(4096),
}


def test_foreign_protocols_are_closed_at_once_and_learn_nothing(cluster: Cluster) -> None:
    """T10"""
    server = cluster.server()
    for kind, data in FOREIGN.items():
        with Raw(server) as raw:
            raw.send(data)
            said = raw.end(HELLO_S)
        if kind in ("GET", "HEAD", "POST"):
            assert said.startswith(b"HTTP/1.1 400 "), kind
        else:
            assert not said, kind
    assert not server.runs()


@pytest.mark.parametrize("kind", ["TLS", "TCPStore"])
def test_the_log_says_who_spoke_what_and_what_to_do(cluster: Cluster, kind: str) -> None:
    """T10"""
    server = cluster.server()
    with Raw(server) as raw:
        raw.send(FOREIGN[kind])
        raw.end(HELLO_S)
    (line,) = server.log_lines("foreign_protocol")
    assert "level=warning" in line
    assert "peer=127.0.0.1:" in line
    assert "TLS" in line if kind == "TLS" else "--tcpstore" in line


def _scan(server: Server, rounds: int) -> None:
    """What a port scanner does, again and again."""
    for number in range(rounds):
        for data in FOREIGN.values():
            with Raw(server) as raw:
                raw.send(data)
                if number % 2:
                    raw.end(HELLO_S)
        Raw(server).close()  # connects, and says nothing
        Raw(server).reset()
        with Raw(server) as raw:
            raw.send(PREAMBLE[:3])
        with Raw(server) as raw:
            raw.send(PREAMBLE)
            raw.reset()


def test_a_port_scan_costs_a_line_a_second_and_delays_nobody(cluster: Cluster) -> None:
    """T10"""
    server = cluster.server()
    _scan(server, 2)
    open_before = descriptors(server)
    with live_run(cluster, server) as pulse, log_grows_slowly(server, "foreign_protocol"):
        before = rss_mib(server)
        _scan(server, 60 if cluster.full else 20)
        grown = rss_mib(server) - before
        print(f"{grown:.1f} MiB more")
        assert grown < 4
    assert most_in_a_second(server, "foreign_protocol") <= 2, "one a second, and one for the start"
    gone = open_before + 2
    until(lambda: descriptors(server) <= gone, 10, lambda: f"{descriptors(server)} descriptors")
    assert server.members("live") or pulse.fence
    assert "level=error" not in server.log


def test_bytes_that_belong_to_no_frame_are_not_collected(cluster: Cluster) -> None:
    """T10: nothing is allocated for each byte of a protocol that is not ours."""
    server = cluster.server()
    before = rss_mib(server)
    for head in (b"RDZX", b"GET ", b"\x16\x03"):
        with Raw(server) as raw, contextlib.suppress(OSError):
            raw.sock.settimeout(2)
            for _ in range(64):
                raw.sock.sendall(head * (1 << 16))
    assert rss_mib(server) - before < 4


# --- T11 ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def drip(cluster: Cluster, server: Server, opening: str, data: bytes, count: int) -> Iterator[None]:
    """So many connections that send an opening, and then the data a byte each half second; in a process
    of their own."""
    code = (
        "import socket, sys, time\n"
        "host, port, opening, data, count = sys.argv[1:]\n"
        "socks = [socket.create_connection((host, int(port))) for _ in range(int(count))]\n"
        "for sock in socks: sock.sendall(bytes.fromhex(opening))\n"
        "for byte in bytes.fromhex(data)[:60]:\n"
        "    time.sleep(0.5)\n"
        "    for sock in socks:\n"
        "        try: sock.sendall(bytes((byte,)))\n"
        "        except OSError: pass\n"
    )
    arguments = [server.host, str(server.port), opening, data.hex(), str(count)]
    process = subprocess.Popen([sys.executable, "-c", code, *arguments])
    try:
        yield
    finally:
        process.kill()
        process.wait(10)


class Ends:
    """When connections are closed, each with its own story."""

    def __init__(self) -> None:
        self.open: dict[str, tuple[Raw, float]] = {}
        self.took: dict[str, float] = {}

    def watch(self, name: str, raw: Raw) -> None:
        raw.sock.setblocking(False)
        self.open[name] = raw, time.monotonic()

    def look(self) -> bool:
        """Look once; True when all are closed."""
        for name, (raw, since) in list(self.open.items()):
            try:
                while data := raw.sock.recv(65536):
                    raw.frames.feed(data)
            except BlockingIOError:
                continue
            except ConnectionResetError:
                pass
            del self.open[name]
            self.took[name] = time.monotonic() - since
        return not self.open

    def drip(self, name: str, data: bytes) -> None:
        """Send a byte to one that is still open."""
        if name in self.open:
            with contextlib.suppress(OSError):
                self.open[name][0].sock.send(data)


HELLO = codec.encode(1, HelloAdmin())

EARLY = ("silence", "half a preamble", "a preamble", "part of a hello", "hello by bytes")
LATE = ("half a frame", "frame by bytes")


def test_whoever_is_slow_to_say_hello_or_to_finish_a_frame_is_closed_however_steadily_it_talks(
    cluster: Cluster,
) -> None:
    """T11: five seconds for a hello and (watched in the full form) ten for a frame, in all, not since the
    last byte."""
    server = cluster.server()
    ends = Ends()
    frame = codec.encode(2, Heartbeat())
    with live_run(cluster, server, calm_s=0.5), many(lambda: Raw(server), 8) as raws:
        raws[1].send(PREAMBLE[:4])
        raws[2].send(PREAMBLE)
        raws[3].send(PREAMBLE + HELLO[:-1])
        raws[5].node("slow", "half").send(frame[:-1])
        raws[6].node("slow", "dripping").send((1 << 16).to_bytes(4, "big"))
        honest = raws[7].node("slow", "honest")
        for name, raw in zip((*EARLY, *LATE), raws, strict=False):
            ends.watch(name, raw)
        began, sent = time.monotonic(), 0

        def look() -> bool:
            nonlocal sent
            while sent < 2 * (time.monotonic() - began):  # the preamble alone takes four seconds
                ends.drip("hello by bytes", PREAMBLE[sent : sent + 1] or b"\0")
                ends.drip("frame by bytes", b"x")
                sent += 1
            return ends.look()

        told = lambda: f"closed: {ends.took}; open: {list(ends.open)}"
        until(lambda: look() or set(EARLY) <= ends.took.keys(), HELLO_S + SLACK_S, told)
        assert min(ends.took.values()) > HELLO_S - 1, f"not before their time either: {ends.took}"
        if cluster.full:
            until(look, FRAME_S - HELLO_S + SLACK_S, told)
            assert min(ends.took[name] for name in LATE) > FRAME_S - 2, ends.took
        honest.sock.setblocking(True)
        honest.ask(Heartbeat())  # was silent between two frames, which is its right


@pytest.mark.parametrize("kind", ["silent", pytest.param("dripping", marks=pytest.mark.full)])
def test_openings_that_never_end_do_not_keep_honest_clients_out(
    cluster: Cluster, kind: str
) -> None:
    """T11: 300 of them (full: 1000), of which the server holds 256 at most."""
    server = cluster.server()
    count = 1000 if cluster.full else 300
    open_before = descriptors(server)
    opening = PREAMBLE.hex() if kind == "dripping" else ""
    data = HELLO[:4] + b"x" * 100 if kind == "dripping" else b""
    with live_run(cluster, server, calm_s=0.5) as pulse:
        with (
            drip(cluster, server, opening, data, count)
            if kind == "dripping"
            else _idle(server, count)
        ):
            until(lambda: descriptors(server) > open_before + 200, 10, "it holds many of them")
            most = descriptors(server)
            began = time.monotonic()
            with Raw(server) as honest:
                honest.sock.settimeout(HELLO_S + SLACK_S + 10)
                honest.admin()
            print(f"{most} descriptors; the honest one waited {time.monotonic() - began:.2f} s")
            allowed = open_before + pulse.nodes + 256 + 8
            stays(lambda: descriptors(server) <= allowed, 1.0, "256 without a hello at most")
        with Raw(server) as after:
            after.sock.settimeout(10)
            after.admin()


@contextlib.contextmanager
def _idle(server: Server, count: int) -> Iterator[None]:
    with many(lambda: Raw(server), count):
        yield


def test_members_are_never_closed_to_make_room_for_openings(cluster: Cluster) -> None:
    """T11: whoever has said hello, and is silent within its lease, keeps its connection."""
    server = cluster.server()
    with Raw(server).node("quiet", "member", lease_s=60) as member, Raw(server).admin() as tool:
        with many(lambda: Raw(server), 300), Raw(server) as honest:
            honest.sock.settimeout(20)
            honest.send(PREAMBLE)
            assert isinstance(honest.ask(HelloAdmin()), Welcome)
        member.ask(Heartbeat())
        tool.ask(Heartbeat())
