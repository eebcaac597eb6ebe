"""Byte for byte: what a TCPStore client sees of this server is what it sees of torch's own.

Each case is a script of bytes that is played to both servers, and everything a client can observe is
compared: what comes back on which connection after which step, and whether it is closed. Where the
C++ server has an accident that is not worth copying, the case says so and what ours does instead.
"""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.e2e.kit.server import Server
from tests.unit.proto.tcpstore_bytes import (
    CANCEL,
    HELLO,
    LIST_KEYS,
    NO,
    NUM_KEYS,
    YES,
    add,
    append,
    barrier,
    blob,
    cas,
    check,
    delete,
    get,
    length,
    many,
    multi_get,
    multi_set,
    number,
    ping,
    pop,
    push,
    set_,
    wait,
)

pytestmark = pytest.mark.torch

CLOSED = b"(closed)"
PATIENCE_S = 20.0

TORCH_SERVERS = """
import sys
from torch.distributed import TCPStore
kept = []
for _ in sys.stdin:
    kept.append(TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))
    print(kept[-1].port, flush=True)
"""
"""Each line on stdin starts another server."""

Step = tuple[str, bytes]
"""A connection by its letter, and what it sends. Lower case: with a hello first."""

Reads = dict[str, bytes]
"""What could be read on each connection after a step."""


@dataclass(frozen=True)
class Case:
    steps: tuple[Step, ...]
    sorted: bool = False
    """The answer lists keys in any order."""


def case(*steps: Step) -> Case:
    return Case(steps)


def alone(*data: bytes) -> Case:
    return Case(tuple(("a", piece) for piece in data))


SAME: dict[str, Case] = {
    # one client, one answer after the other
    "ping": alone(ping(0), ping(0xFFFFFFFF)),
    "hello and more in one piece": case(("A", HELLO + ping(1) + add(b"init/", 1))),
    "set and get": alone(set_(b"/a", b"1") + get(b"/a")),
    "a value with every byte": alone(set_(b"/a", bytes(range(256))) + get(b"/a")),
    "overwrite with a shorter value": alone(set_(b"/a", b"long" * 50) + set_(b"/a", b"s") + get(b"/a")),
    "a request in many pieces": alone(*(bytes((b,)) for b in set_(b"/a", b"12") + get(b"/a"))),
    "multi_get in the middle of a key": alone(multi_get(b"/a", b"/bb")[:-2], b"bb"),
    "the empty key": alone(set_(b"", b"x") + get(b"") + check(b"") + delete(b"")),
    "get, check, delete of nothing": alone(get(b"/x") + check(b"/x") + delete(b"/x")),
    "check of all, of some, of none": alone(
        set_(b"/a", b"") + check(b"/a") + check(b"/a", b"/b") + check()),
    "multi_set with equal keys": alone(multi_set((b"/a", b"1"), (b"/a", b"2")) + get(b"/a")),
    "multi_get with holes and doubles": alone(
        multi_set((b"/a", b"1"), (b"/b", b"")) + multi_get(b"/a", b"/x", b"/b", b"/a")),
    "append in three parts": alone(
        append(b"/a", b"x") + append(b"/a", b"") + append(b"/a", b"yz") + get(b"/a")),
    "append, then add": alone(append(b"/a", b"4") + append(b"/a", b"1") + add(b"/a", 1) + get(b"/a")),
    "append beyond the limit of a value": alone(
        set_(b"/a", b"z" * (8 << 20)), append(b"/a", b"z") + check(b"/a")),
    "num_keys": alone(NUM_KEYS, set_(b"/a", b"") + push(b"/q", b"") + NUM_KEYS, delete(b"/a") + NUM_KEYS),
    "list_keys": Case((("a", set_(b"/a", b"") + add(b"init/", 1) + push(b"/q", b"1")),
                       ("a", LIST_KEYS)), sorted=True),
    # compare_set
    "cas: missing, nothing expected": alone(cas(b"/a", b"", b"n") + get(b"/a")),
    "cas: missing, something expected": alone(cas(b"/a", b"x", b"n") + check(b"/a")),
    "cas: equal": alone(set_(b"/a", b"v") + cas(b"/a", b"v", b"w") + get(b"/a")),
    "cas: different": alone(set_(b"/a", b"v") + cas(b"/a", b"x", b"w") + get(b"/a")),
    "cas: present, nothing expected": alone(set_(b"/a", b"v") + cas(b"/a", b"", b"w")),
    "cas: an empty value is a value": alone(set_(b"/a", b"") + cas(b"/a", b"x", b"w") + cas(b"/a", b"", b"w")),
    "cas: to nothing": alone(set_(b"/a", b"v") + cas(b"/a", b"v", b"") + check(b"/a") + get(b"/a")),
    "cas: after append": alone(append(b"/a", b"x") + append(b"/a", b"y") + cas(b"/a", b"xy", b"z")),
    # counters
    "add: from nothing": alone(add(b"/n", 3) + add(b"/n", -5) + get(b"/n")),
    "add: 0": alone(add(b"/n", 0) + get(b"/n")),
    "add: least and greatest": alone(
        add(b"/n", -(1 << 63)) + add(b"/m", (1 << 63) - 1) + get(b"/n") + get(b"/m")),
    "add: over the top and back": alone(add(b"/n", (1 << 63) - 1) + add(b"/n", 1) + add(b"/n", -1)),
    **{f"add to {value!r}": case(("b", ping(1)), ("a", set_(b"/n", value) + add(b"/n", 1)), ("b", get(b"/n")))
       for value in (b"7", b" 7", b"\t\n7", b"+7", b"-7", b"--7", b"7 7", b"7x", b"0x7", b"1e3", b"007",
                     b"", b" ", b"x", b"+", b"9223372036854775807", b"9223372036854775808",
                     b"-9223372036854775808", b"-9223372036854775809", b"0" * 40 + b"5")},
    # waits
    "wait: there already": alone(set_(b"/a", b"") + wait(b"/a") + wait()),
    "wait: then set": case(("a", wait(b"/a")), ("b", set_(b"/a", b"1"))),
    "wait: then add, append, multi_set": case(
        ("a", wait(b"/a")), ("b", wait(b"/b")), ("c", wait(b"/c")), ("d", add(b"/a", 1)),
        ("d", append(b"/b", b"")), ("d", multi_set((b"/x", b""), (b"/c", b"")))),
    "wait: a cas that stores, one that does not": case(
        ("a", wait(b"/a")), ("b", wait(b"/b")), ("c", cas(b"/a", b"", b"v")), ("c", cas(b"/b", b"x", b"v"))),
    "wait: a cas that fails on a present key": case(
        ("a", wait(b"/a", b"/b")), ("c", set_(b"/a", b"v")), ("c", cas(b"/a", b"x", b"y")), ("c", set_(b"/b", b""))),
    "wait: on three keys, in another order": case(
        ("a", wait(b"/a", b"/b", b"/c")), ("b", set_(b"/c", b"")), ("b", set_(b"/a", b"")),
        ("b", set_(b"/b", b""))),
    "wait: one of two was there": case(("b", set_(b"/a", b"")), ("a", wait(b"/a", b"/b")), ("b", set_(b"/b", b""))),
    "wait: a key twice": case(("a", wait(b"/a", b"/a")), ("b", set_(b"/a", b""))),
    "wait: a key that comes and goes": case(
        ("a", wait(b"/a", b"/b")), ("b", set_(b"/a", b"") + delete(b"/a")), ("b", set_(b"/b", b""))),
    "wait: get and delete wake nobody": case(("a", wait(b"/a")), ("b", get(b"/a") + delete(b"/a"))),
    "wait: for one's own set": alone(wait(b"/a"), set_(b"/a", b"")),
    "wait: for one's own set, in one piece": alone(wait(b"/a") + set_(b"/a", b"")),
    "wait: for one's own add, in one piece": alone(wait(b"/a") + add(b"/a", 7)),
    "wait: for one's own cas, in one piece": alone(wait(b"/a") + cas(b"/a", b"", b"v")),
    "wait: three clients on one key": case(
        ("a", wait(b"/a")), ("b", wait(b"/a")), ("c", wait(b"/a")), ("d", set_(b"/a", b""))),
    "wait: requests behind it are served": case(("a", wait(b"/a") + add(b"/n", 1)), ("a", add(b"/n", 1))),
    "wait: answered once": case(("a", wait(b"/a")), ("b", set_(b"/a", b"")), ("b", set_(b"/a", b""))),
    "wait: again after it": case(
        ("a", wait(b"/a")), ("b", set_(b"/a", b"")), ("a", wait(b"/b")), ("b", set_(b"/b", b""))),
    "cancel: nothing": alone(CANCEL + CANCEL),
    "cancel: then the key": case(("a", wait(b"/a")), ("a", CANCEL), ("b", set_(b"/a", b""))),
    "cancel: too late": case(("a", wait(b"/a")), ("b", set_(b"/a", b"")), ("a", CANCEL)),
    "cancel: then wait again": case(
        ("a", wait(b"/a")), ("a", CANCEL), ("a", wait(b"/a")), ("b", set_(b"/a", b""))),
    # queues
    "queue: order": alone(push(b"/q", b"1") + push(b"/q", b"2") + length(b"/q") + pop(b"/q") * 3),
    "queue: an empty value": alone(push(b"/q", b"") + pop(b"/q")),
    "queue: present while filled": alone(
        check(b"/q") + push(b"/q", b"1") + check(b"/q") + wait(b"/q") + pop(b"/q") + check(b"/q")),
    "queue: is no key": alone(push(b"/q", b"1") + get(b"/q") + delete(b"/q") + multi_get(b"/q") + length(b"/q")),
    "queue: beside a key": alone(set_(b"/q", b"k") + push(b"/q", b"1") + delete(b"/q") + check(b"/q")),
    "queue: one push, one waiter": case(
        ("a", wait(b"/q")), ("b", wait(b"/q")), ("c", push(b"/q", b"1")), ("c", push(b"/q", b"2"))),
    "queue: a set wakes its waiters too": case(("a", wait(b"/q")), ("b", wait(b"/q")), ("c", set_(b"/q", b""))),
    "queue: who waits for more as well takes no push from others": case(
        ("a", wait(b"/q", b"/k")), ("b", wait(b"/q")), ("c", push(b"/q", b"1"))),
    # barriers
    "barrier: of two": case(("a", barrier(b"/b", 2)), ("b", barrier(b"/b", 2)), ("c", barrier(b"/b", 2))),
    "barrier: of one, none, less": alone(barrier(b"/b", 1) + barrier(b"/c", 0) + barrier(b"/d", -1)),
    "barrier: of three, with get between": case(
        ("a", barrier(b"/b", 3)), ("b", get(b"/b")), ("b", barrier(b"/b", 3)), ("c", barrier(b"/b", 3))),
    "barrier: half full is a key": case(("a", barrier(b"/b", 2)), ("b", wait(b"/b") + check(b"/b"))),
    "barrier: an arrival does not wake a wait, the last one does": case(
        ("a", wait(b"/b")), ("b", barrier(b"/b", 2)), ("c", barrier(b"/b", 2))),
    "barrier: released by set": case(("a", barrier(b"/b", 3)), ("b", set_(b"/b", b"0"))),
    "barrier: released by add": case(("a", barrier(b"/b", 3)), ("b", add(b"/b", 0))),
    "barrier: released by a push": case(("a", barrier(b"/b", 3)), ("b", push(b"/b", b"0"))),
    "barrier: given up stays counted": case(
        ("a", barrier(b"/b", 2)), ("a", CANCEL), ("b", barrier(b"/b", 2)), ("b", get(b"/b"))),
    "barrier: no number": case(("b", set_(b"/b", b"x")), ("a", barrier(b"/b", 2)), ("b", get(b"/b"))),
    "barrier: a number before": alone(set_(b"/b", b"4") + barrier(b"/b", 5) + get(b"/b")),
    # what closes a connection
    "op 19": alone(b"\x13"), "op 255": alone(b"\xff"), "a second hello": alone(HELLO),
    "an answer, then a wrong op": case(("b", ping(1)), ("a", set_(b"/a", b"1") + get(b"/a")), ("a", b"\x40"), ("b", get(b"/a"))),
    "key at its limit": alone(set_(b"k" * 8192, b"v") + get(b"k" * 8192)),
    "key beyond": alone(b"\x03" + number(8193)),
    "key beyond, in a list": alone(b"\x06" + number(2) + blob(b"/a") + number(8193)),
    "value beyond": alone(b"\x01" + blob(b"/a") + number((8 << 20) + 1)),
    "value beyond, appended": alone(b"\x09" + blob(b"/a") + number((8 << 20) + 1)),
    "value beyond, pushed": alone(b"\x0e" + blob(b"/a") + number((8 << 20) + 1)),
    "desired value beyond": alone(b"\x02" + blob(b"/a") + blob(b"") + number((8 << 20) + 1)),
    "keys at their limit": alone(b"\x05" + many((b"",) * 131072)),
    "keys beyond": alone(b"\x05" + number(131073)),
    "pairs beyond": alone(b"\x0b" + number(131073)),
    "a negative length": alone(b"\x03" + number(-1)),
}  # fmt: skip

QUEUE_1 = number(1) + blob(b"1")

OURS: dict[str, tuple[Case, list[Reads]]] = {
    "a hello in two pieces is a hello": (
        case(("A", HELLO[:2]), ("A", HELLO[2:] + ping(7))), [{}, {"A": b"\x07\0\0\0"}]),
    "without a hello it is closed at once": (case(("A", ping(7))), [{"A": CLOSED}]),
    "with a wrong hello too": (case(("A", b"\0\xde\xad\xbe\xef")), [{"A": CLOSED}]),
    "who was woken by a push and waits elsewhere hears nothing of the next push": (
        case(("a", wait(b"/q")), ("b", push(b"/q", b"1")), ("a", pop(b"/q") + wait(b"/x")),
             ("b", push(b"/q", b"2"))),
        [{}, {"a": YES}, {"a": QUEUE_1}, {}]),
    "a filled queue counts as present in a wait for more": (
        case(("a", push(b"/q", b"1") + wait(b"/q", b"/k")), ("b", set_(b"/k", b""))),
        [{}, {"a": YES}]),
    "two pushes are not a key": (
        case(("a", wait(b"/q", b"/k")), ("b", push(b"/q", b"1")), ("b", push(b"/q", b"2")),
             ("b", set_(b"/k", b""))),
        [{}, {}, {}, {"a": YES}]),
    "of two waits on one connection the newer counts": (
        case(("a", wait(b"/k") + wait(b"/l")), ("b", set_(b"/k", b"")), ("b", set_(b"/l", b""))),
        [{}, {}, {"a": YES}]),
    "half a multi_set is not visible": (
        case(("a", multi_set((b"/k", b"1"), (b"/l", b"2"))[:-9]), ("b", check(b"/k"))),
        [{}, {"b": NO}]),
}  # fmt: skip
"""Accidents of the C++ server that are not copied, and what a client reads here after each step."""


class Player:
    """Plays a case to one server."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socks: dict[str, socket.socket] = {}
        self._control = self._connect(HELLO)

    def _connect(self, hello: bytes) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self._port), PATIENCE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(hello)
        return sock

    def ask(self, data: bytes, answer_bytes: int) -> bytes:
        """On a connection of its own."""
        self._control.sendall(data)
        got = b""
        while len(got) < answer_bytes:
            got += self._control.recv(answer_bytes - len(got))
        return got

    def play(self, script: Case) -> list[Reads]:
        """What every connection could read after each step."""
        return [self._step(name, data) for name, data in script.steps]

    def _step(self, name: str, data: bytes) -> Reads:
        if name not in self._socks:
            self._socks[name] = self._connect(HELLO if name.islower() else b"")
        with contextlib.suppress(ConnectionError):
            self._socks[name].sendall(data)
        # Both servers are one loop: when these are answered, what was sent before has been done, and
        # what it wakes has been written.
        for _ in range(6 + len(data) // 32768):
            self.ask(ping(1), 4)
        reads = {letter: self._read(sock) for letter, sock in self._socks.items()}
        return {letter: got for letter, got in reads.items() if got}

    def _read(self, sock: socket.socket) -> bytes:
        sock.setblocking(False)
        got = b""
        try:
            while chunk := sock.recv(1 << 20):
                got += chunk
        except BlockingIOError:
            return got
        except ConnectionError:
            pass
        finally:
            sock.settimeout(PATIENCE_S)
        return got + CLOSED

    def close(self) -> None:
        for sock in (*self._socks.values(), self._control):
            sock.close()


@pytest.fixture(scope="module")
def torch_servers() -> Iterator["subprocess.Popen[str]"]:
    """A process that starts one of torch's own servers for each line it is given."""
    process = subprocess.Popen(
        [sys.executable, "-c", TORCH_SERVERS],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        # It asks DNS for the name of every fiftieth client, and waits for it.
        env=os.environ | {"RES_OPTIONS": "timeout:1 attempts:1"},
    )  # fmt: skip
    yield process
    process.kill()
    process.communicate()


@pytest.fixture
def theirs(torch_servers: "subprocess.Popen[str]") -> Iterator[Player]:
    assert torch_servers.stdin is not None
    assert torch_servers.stdout is not None
    torch_servers.stdin.write("\n")
    torch_servers.stdin.flush()
    player = Player(int(torch_servers.stdout.readline()))
    yield player
    player.close()


@pytest.fixture(scope="module")
def our_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"), "wire", "--tcpstore")
    yield server
    server.kill()
    assert "Traceback" not in server.log


@pytest.fixture
def ours(our_server: Server) -> Iterator[Player]:
    """At an empty store: the last case's clients may not all be gone yet."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        player = Player(our_server.port)
        if player.ask(NUM_KEYS, 8) == number(0) and player.ask(length(b"/q"), 8) == number(0):
            break
        player.close()
        assert time.monotonic() < deadline
    yield player
    player.close()


def sorted_keys(reads: list[Reads]) -> list[Reads]:
    """With the keys of the last answer in order."""
    data = reads[-1]["a"]
    keys, at = [], 8
    while at < len(data):
        size = int.from_bytes(data[at : at + 8], "little")
        keys.append(data[at + 8 : at + 8 + size])
        at += 8 + size
    return [*reads[:-1], {"a": data[:8] + b"|".join(sorted(keys))}]


@pytest.mark.parametrize("script", SAME.values(), ids=SAME)
def test_a_client_cannot_tell_it_from_torch_s_own(
    ours: Player, theirs: Player, script: Case
) -> None:
    seen, meant = ours.play(script), theirs.play(script)
    assert any(meant), "nothing to compare"
    if script.sorted:
        seen, meant = sorted_keys(seen), sorted_keys(meant)
    assert seen == meant


@pytest.mark.parametrize(("script", "meant"), OURS.values(), ids=OURS)
def test_accidents_of_the_other_server_are_not_copied(
    ours: Player, theirs: Player, script: Case, meant: list[Reads]
) -> None:
    assert ours.play(script) == meant
    assert theirs.play(script) != meant, "no accident any more: move the case to SAME"
