"""What is fuzzed: each target takes any bytes, and raises if the product did what it must not.

A target is a function of its input alone: a file in crashes/ says everything about a failure.
"""

import contextlib
import functools
import os
import random
import struct
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rdzv_proto import auth, codec, framing, limits, tcpstore
from rdzv_proto.auth import EVERYTHING, Grant, Scope, Token, Transcript
from rdzv_proto.messages import REQUESTS, Authenticate, HelloAdmin, HelloNode, HelloWorker, Request
from rdzv_server.core.coordinator import Coordinator
from rdzv_server.core.durable.restoring import UnreadableError, in_new_epoch
from rdzv_server.core.settings import Settings
from rdzv_server.shell.gate import Gate
from rdzv_server.shell.tokens import TokenBook
from tests.fuzz.grammar import Grammar, Known, golden_bodies
from tests.fuzz.scene import Scene
from tests.fuzz.watch import Watch
from tests.lab import EPOCH, identity
from tests.unit.proto import tcpstore_bytes as wire

STEPS_MAX = 24
"""Of one input: more is only slower."""


@dataclass(frozen=True)
class Target:
    """One thing to fuzz.

    Args:
        name: begins the names of its files in crashes/.
        run: takes an input.
        seeds: inputs to begin with.
        make: an input by grammar.
    """

    name: str
    run: Callable[[bytes, Watch], None]
    seeds: Callable[[], list[bytes]]
    make: Callable[[random.Random], bytes]


# --- bytes to frames --------------------------------------------------------------------------


def frames(data: bytes, watch: Watch) -> None:
    """However a stream is cut, its frames are the same; and what it is, is never said twice differently."""
    cut, stream = data[:4], data[4:]
    whole = watch.call(_bodies, stream, [len(stream)])
    pieces = watch.call(_bodies, stream, [byte + 1 for byte in cut])
    assert whole == pieces, "cut otherwise, other frames"
    said = framing.Opening.INCOMPLETE
    for end in range(min(len(stream), 2 * framing.PREAMBLE_BYTES) + 1):
        now = framing.sniff(stream[:end])
        assert said in (framing.Opening.INCOMPLETE, now), f"{said} became {now}"
        said = now


def _bodies(stream: bytes, sizes: list[int]) -> list[bytes]:
    buffer = framing.FrameBuffer(limits.FRAME_BYTES_MAX_HELLO)
    out: list[bytes] = []
    at = turn = 0
    with contextlib.suppress(framing.FrameTooLargeError):
        while at < len(stream):
            piece = stream[at : at + sizes[turn % len(sizes)]] if sizes else stream
            at, turn = at + len(piece), turn + 1
            one = buffer.single(piece)
            out += buffer.split(piece) if one is None else [one]
            assert len(buffer) <= limits.FRAME_BYTES_MAX_HELLO + framing.LENGTH_BYTES
    return out


def _framed(bodies: list[bytes]) -> bytes:
    return b"\x03\x05\x01\x07" + b"".join(struct.pack(">I", len(body)) + body for body in bodies)


def _some_frames(rng: random.Random) -> bytes:
    stream = bytearray(
        _framed([rng.randbytes(rng.choice((0, 1, 7, 300))) for _ in range(rng.randint(1, 6))])
    )
    if rng.random() < 0.4:
        stream[rng.randrange(len(stream))] = rng.randrange(256)
    return bytes(stream)


# --- frames to messages -----------------------------------------------------------------------


def decoding(data: bytes, watch: Watch) -> None:
    """Any bytes are a message or malformed; what was understood can be passed on, and is the same then."""
    with contextlib.suppress(codec.MalformedError):
        number, answer = watch.call(codec.decode_answer, data)
        assert codec.decode_answer(codec.encode(number, answer)[4:]) == (number, answer)
    try:
        request_id, message = watch.call(codec.decode_request, data)
    except codec.MalformedError as error:
        if not str(error).isprintable():
            raise AssertionError("control characters on their way into a log") from error
        return
    assert codec.decode_request(codec.encode(request_id, message)[4:]) == (request_id, message)


# --- messages to the core ---------------------------------------------------------------------


def _theme(*starts: str) -> tuple[type[Request], ...]:
    return tuple(kind for op, kind in REQUESTS.items() if op.startswith(starts))


THEMES = (
    (),
    (),
    _theme("hello_", "join", "leave", "finished", "heartbeat", "close_run"),
    _theme("barrier", "heartbeat", "leave", "finished"),
    _theme("nccl_", "heartbeat"),
    _theme("nccl_", "join", "leave", "hello_"),
    _theme("kv_", "heartbeat", "join"),
    _theme("list_", "members", "show_", "status", "barrier", "nccl_", "master_", "workers_"),
)
"""What an input is about, by three bits of its first byte: what belongs together is rarely said together by chance."""


def dispatch(data: bytes, watch: Watch) -> None:
    """Steps in a core with something going on: every rule holds after each, and when everybody has gone.

    A step is a byte that says what and where, and its argument: frames of the grammar from a seed of two bytes,
    frames as they are (their length first), bytes of a TCPStore client, ends of connections, time.
    """
    first = data[0] if data else 0
    scene = Scene(watch, durable=first % 4 == 1, served=first % 8 == 2)
    known, at = scene.known(), 1
    for _ in range(STEPS_MAX):
        if at >= len(data):
            break
        place, what = data[at] & 7, data[at] >> 3
        at += 1
        if what < 16:
            seed = int.from_bytes(data[at : at + 2], "big")
            at += 2
            grammar = Grammar(random.Random(seed), known, kinds=THEMES[first >> 5])
            scene.frame(place, grammar.any_valid() if what < 12 else grammar.any())
        elif what < 26:
            size = int.from_bytes(data[at : at + 2], "big") % 2048
            at += 2
            part, at = data[at : at + size], at + size
            scene.store_bytes(part) if what >= 23 else scene.frame(place, part)
        elif what < 29:
            scene.lose(place)
        else:
            scene.wait(place + 1)
    scene.settle()


def _raw_steps(bodies: list[bytes]) -> bytes:
    steps = [
        bytes([(16 << 3) | n % 8]) + struct.pack(">H", len(body)) + body
        for n, body in enumerate(bodies)
    ]
    return b"\x00" + b"".join(steps)


def _some_steps(rng: random.Random) -> bytes:
    out = bytearray([rng.randrange(256)])
    for _ in range(rng.randint(1, STEPS_MAX)):
        out.append(rng.randrange(256))
        if out[-1] >> 3 < 16:
            out += rng.randbytes(2)
        elif out[-1] >> 3 < 26:
            body = (
                rng.choice(_store_requests()) if out[-1] >> 3 >= 23 else rng.choice(golden_bodies())
            )
            out += struct.pack(">H", len(body)) + body
    return bytes(out)


# --- who may come in --------------------------------------------------------------------------


@functools.cache
def _gate() -> tuple[Gate, tuple[Token, ...]]:
    master = Token(EVERYTHING, b"m" * auth.SECRET_BYTES)
    tokens = (
        master,
        master.derive(Grant(Scope.JOIN, "llama")),
        Token(Grant(Scope.READ, "other"), b"r" * 32),
    )
    with tempfile.TemporaryDirectory(prefix="rdzv-fuzz-") as folder:
        path = Path(folder) / "tokens"
        with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
            file.write(f"{master.text()}\n{tokens[2].text()}\n")
        return Gate(TokenBook(path)), tokens


def proofs(data: bytes, watch: Watch) -> None:
    """Only the proof of a token in force, over this very hello and challenge, opens the gate; and no text that
    is no token reads as one."""
    gate, tokens = _gate()
    with contextlib.suppress(ValueError):
        token = watch.call(auth.parse, data.decode("utf-8", "replace"))
        assert token.text() == data.decode()
    with contextlib.suppress(ValueError):
        watch.call(auth.read, data, 0o100600, "tokens")
    if len(data) < 8:
        return
    what, who, change, at = data[0], data[1] % 3, data[2], data[3]
    body = data[4:]
    try:
        _, hello = watch.call(codec.decode_request, body)
    except codec.MalformedError:
        return
    if not isinstance(hello, HelloNode | HelloWorker | HelloAdmin):
        return
    asked = watch.call(gate.challenge, hello, body)
    right = Transcript(body, asked.nonce, b"n" * auth.NONCE_BYTES, tokens[who].grant, b"c" * 32)
    proof = bytearray(right.client_proof(tokens[who].secret))
    if what & 1:
        proof[at % len(proof)] ^= change
    grant = tokens[(who + (what >> 1 & 3)) % 3].grant
    answer = Authenticate(
        key=bytes.fromhex(tokens[who].key), scope=grant.scope.value, run=grant.run,
        nonce=right.nonce, proof=bytes(proof),
    )  # fmt: skip
    passed = watch.call(gate.check, asked, answer, b"c" * 32 if not what & 8 else b"")
    good = bytes(proof) == right.client_proof(tokens[who].secret) and grant == right.grant
    assert (passed is not None) == (good and not what & 8), "the gate is open to the wrong ones"
    assert passed is None or (passed.grant == right.grant and passed.hello is hello)


def _some_proof(rng: random.Random) -> bytes:
    hello = rng.choice([body for body in golden_bodies() if b"hello_" in body[:20]])
    return (
        rng.randbytes(4) + hello
        if rng.random() < 0.8
        else _gate()[1][rng.randrange(3)].text().encode()
    )


# --- TCPStore ---------------------------------------------------------------------------------


def store_wire(data: bytes, watch: Watch) -> None:
    """However a TCPStore stream is cut, its requests are the same; and nothing is held but what came."""
    cut, stream = data[:4], data[4:]
    whole = watch.call(_requests, stream, [max(1, len(stream))])
    pieces = watch.call(_requests, stream, [byte + 1 for byte in cut])
    assert whole == pieces, "cut otherwise, other requests"


def _requests(stream: bytes, sizes: list[int]) -> list[object]:
    parser = tcpstore.Parser()
    out: list[object] = []
    at = turn = 0
    try:
        while at < len(stream):
            piece = stream[at : at + (sizes[turn % len(sizes)] if sizes else len(stream))]
            at, turn = at + len(piece), turn + 1
            parser.feed(piece)
            while (request := parser.next()) is not None:
                out.append(request)
            assert len(parser) <= at, "more is held than came"
    except tcpstore.BadRequestError as error:
        out.append(str(error))
    return out


@functools.cache
def _store_requests() -> tuple[bytes, ...]:
    return (
        wire.HELLO, wire.set_(b"k", b"v"), wire.cas(b"k", b"v", b"w"), wire.get(b"k"), wire.add(b"n", 1),
        wire.check(b"k", b"l"), wire.wait(b"k"), wire.wait(b"missing"), wire.NUM_KEYS, wire.delete(b"k"),
        wire.append(b"k", b"x"), wire.multi_get(b"k", b"k"), wire.multi_set((b"a", b"b"), (b"c", b"d")),
        wire.CANCEL, wire.ping(7), wire.push(b"q", b"1"), wire.pop(b"q"), wire.length(b"q"), wire.LIST_KEYS,
        wire.barrier(b"w", 2), wire.add(b"k", 1), wire.add(b"n", (1 << 63) - 1), wire.pop(b"missing"),
    )  # fmt: skip


def some_store_bytes(rng: random.Random) -> bytes:
    stream = bytearray(wire.HELLO + b"".join(rng.choices(_store_requests(), k=rng.randint(1, 8))))
    if rng.random() < 0.5:
        stream[rng.randrange(len(stream))] = rng.randrange(256)
    return rng.randbytes(4) + bytes(stream)


def store(data: bytes, watch: Watch) -> None:
    """Two clients of one store, with any bytes; then both go."""
    lab = Scene(watch).lab
    clients = [lab.store(), lab.store()]
    for number, part in enumerate(_parts(data)):
        client = clients[number % 2]
        if client.closed:
            client = clients[number % 2] = lab.store()
        watch.call(client.send, part)
    for client in clients:
        if not client.closed:
            client.lose()


def _parts(data: bytes) -> Iterator[bytes]:
    at = 0
    for _ in range(STEPS_MAX):
        if at >= len(data):
            return
        size = data[at] + 1
        yield data[at + 1 : at + 1 + size]
        at += 1 + size


def _some_parts(rng: random.Random) -> bytes:
    parts = [some_store_bytes(rng)[9:][:200] for _ in range(rng.randint(1, 8))]
    return b"".join(bytes([max(1, len(part)) - 1]) + part for part in parts)


# --- records ----------------------------------------------------------------------------------


@functools.cache
def _records() -> tuple[tuple[bytes, bytes], ...]:
    return tuple(sorted(Scene(Watch(), durable=True).lab.stored.items()))


def records(data: bytes, watch: Watch) -> None:
    """Whatever the records of an earlier server are, it begins with them or says that it cannot."""
    stored = dict(_records())
    for part in _parts(data):
        if len(part) < 2:
            continue
        key, value = _records()[part[0] % len(_records())]
        match part[1] % 4:
            case 0:
                stored.pop(key, None)
            case 1:
                stored[key] = part[2:]
            case 2:
                at = part[2] % (len(value) + 1) if len(part) > 2 else 0
                stored[key] = value[:at] + part[3:] + value[at + len(part[3:]) :]
            case _:
                stored.pop(key, None)
                stored[part[2:]] = value
    with contextlib.suppress(UnreadableError):
        watch.call(in_new_epoch, stored, EPOCH)
    with contextlib.suppress(UnreadableError):
        watch.call(Coordinator(Settings(), identity(), durable=True).resume, 1.0, stored)


def _some_records(rng: random.Random) -> bytes:
    parts = [rng.randbytes(rng.randint(2, 9)) for _ in range(rng.randint(1, 4))]
    return b"".join(bytes([len(part) - 1]) + part for part in parts)


# --- all of them ------------------------------------------------------------------------------


@functools.cache
def _known() -> Known:
    return Scene(Watch()).known()


TARGETS = {
    target.name: target
    for target in (
        Target("frames", frames, lambda: [_framed(list(golden_bodies()[:8]))], _some_frames),
        Target("decoding", decoding, lambda: list(golden_bodies()), lambda rng: Grammar(rng, _known()).any()),
        Target("dispatch", dispatch, lambda: [_raw_steps(list(golden_bodies()))], _some_steps),
        Target("proofs", proofs, lambda: [_some_proof(random.Random(n)) for n in range(20)], _some_proof),
        Target("store_wire", store_wire, lambda: [b"\x00\x01\x05\x09" + b"".join(_store_requests())],
               some_store_bytes),
        Target("store", store, lambda: [_some_parts(random.Random(n)) for n in range(20)], _some_parts),
        Target("records", records, lambda: [_some_records(random.Random(n)) for n in range(20)], _some_records),
    )
}  # fmt: skip
