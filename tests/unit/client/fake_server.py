"""A small server on a loopback socket, in threads of this process, with the real codec.

It answers the way a server does in the good case; a test replaces the answers it is about:

    with FakeServer() as server:
        server.on(KvGet, lambda request: KvValue(value=b"v"))
        server.on(Join, None)  # is not answered
"""

import contextlib
import os
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

from msgspec.structs import replace

from rdzv_proto import codec, limits
from rdzv_proto.auth import Grant, Scope, Token, Transcript
from rdzv_proto.errors import ErrorCode
from rdzv_proto.framing import PREAMBLE, FrameBuffer
from rdzv_proto.messages import (
    Alive,
    AnyPush,
    AnyReply,
    AnyRequest,
    Authenticate,
    Barrier,
    CloseRun,
    Done,
    Error,
    Fence,
    Finished,
    GenerationStatus,
    Heartbeat,
    HelloAdmin,
    HelloNode,
    HelloWorker,
    Join,
    Joined,
    KvAdd,
    KvAppend,
    KvCas,
    KvCheck,
    KvCount,
    KvDelete,
    KvEntry,
    KvGet,
    KvList,
    KvMissing,
    KvMultiGet,
    KvMultiSet,
    KvNumber,
    KvPage,
    KvSet,
    KvSwapped,
    KvValue,
    KvValues,
    KvWait,
    Leave,
    ListRuns,
    MasterProbe,
    MemberPage,
    Members,
    MemberStatus,
    Released,
    Runs,
    RunStatus,
    ServerStatus,
    ShowGeneration,
    Status,
    Welcome,
    WorkersStarted,
)
from tests.e2e.kit.wait import until

R = TypeVar("R", bound=AnyRequest)
Answer = Callable[[Any], AnyReply | None]

FENCE = Fence(7, 1)
PATIENCE_S = 10.0
"""Deadline of conditions; far more than anything here takes."""


class Peer:
    """One connection."""

    def __init__(self, server: "FakeServer", sock: socket.socket) -> None:
        self.server, self.sock = server, sock
        self.gone = threading.Event()
        """The other side ended the connection."""
        self.local_port = sock.getpeername()[1]
        self._thread = threading.Thread(target=self._serve, name="fake-peer", daemon=True)
        self.asked: tuple[bytes, AnyRequest, bytes] | None = None
        """Frame and content of a hello that was challenged, and the challenge."""

    def start(self) -> None:
        self._thread.start()

    def send(self, request_id: int, message: AnyReply | AnyPush) -> None:
        with contextlib.suppress(OSError):
            self.sock.sendall(codec.encode(request_id, message))

    def cut(self) -> None:
        """End the connection from the server's side."""
        with contextlib.suppress(OSError):
            self._shut(socket.SHUT_RDWR)

    def reset(self) -> None:
        """End it with a reset, as the kernel does for a process that left bytes unread."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._shut(socket.SHUT_RD)  # wakes the thread; says nothing to the other side
        self._thread.join(PATIENCE_S)
        self.sock.close()

    def close(self) -> None:
        self.cut()
        self._thread.join(PATIENCE_S)
        self.sock.close()

    def _shut(self, how: int) -> None:
        """The socket's own shutdown: that of TLS makes a plain socket of it, and the thread would read
        what is still encrypted as frames."""
        socket.socket.shutdown(self.sock, how)

    def _serve(self) -> None:
        greeting, frames = b"", FrameBuffer(limits.FRAME_BYTES_MAX)
        with contextlib.suppress(OSError):
            if self.server.tls is not None:
                self.sock = self.server.tls.wrap_socket(self.sock, server_side=True)
            while data := self.sock.recv(65536):
                if len(greeting) < len(PREAMBLE):
                    greeting += data
                    if len(greeting) < len(PREAMBLE):
                        continue
                    assert greeting[: len(PREAMBLE)] == PREAMBLE, greeting
                    data = greeting[len(PREAMBLE) :]
                frames.feed(data)
                while (body := frames.pop()) is not None:
                    self._take(body)
        self.gone.set()

    def _take(self, body: bytes) -> None:
        try:
            request = codec.decode_request(body)
        except codec.MalformedError as error:
            self.send(error.request_id, Error(code=ErrorCode.MALFORMED, message=str(error)))
        else:
            self.server.take(self, *request, body)


class FakeServer:
    """Listens on a free port of 127.0.0.1 until the `with` block ends.

    Attributes:
        got: every request with its id, heartbeats included, in order of arrival.
        peers: all connections so far.
        values: the keys, whichever key space they are in.
        revisions: of the keys, counted in changes.

    Args:
        lease_ms: in force for every session.
        token: a master token; then hellos are challenged.
        tls: of a server; then it speaks TLS only.
        certificate: digest of its own.
    """

    def __init__(
        self,
        *,
        lease_ms: int = 15_000,
        token: Token | None = None,
        tls: ssl.SSLContext | None = None,
        certificate: bytes = b"",
    ) -> None:
        self.lease_ms = lease_ms
        self.token, self.tls, self.certificate = token, tls, certificate
        self.prove: Callable[[Transcript, bytes], bytes | None] = Transcript.server_proof
        """What it answers to a right proof."""
        self.got: list[tuple[int, AnyRequest]] = []
        self.peers: list[Peer] = []
        self.values: dict[str, bytes] = {}
        self.revisions: dict[str, int] = {}
        self.revision = 0
        self.status = ServerStatus(
            server="fake 1", protocol=1, instance="fake", epoch=7, state="memory"
        )
        self.runs: dict[str, RunStatus] = {}
        self.members: list[MemberStatus] = []
        self.page_rows = 100
        self.inside = GenerationStatus()
        self._answers: dict[type[Any], Answer | None] = {
            HelloNode: self.welcome,
            HelloWorker: self.welcome,
            HelloAdmin: self.welcome,
            Heartbeat: lambda m: Alive(),
            Join: lambda m: joined(),
            Finished: lambda m: Done(),
            Leave: lambda m: Done(),
            MasterProbe: lambda m: Done(),
            WorkersStarted: lambda m: Done(),
            CloseRun: lambda m: Done(),
            KvSet: lambda m: self._set([m.key], [m.value]),
            KvMultiSet: lambda m: self._set(m.keys, m.values),
            KvGet: lambda m: KvValue(
                value=self.values[m.key], revision=self.revisions.get(m.key, 0)
            ),
            KvMultiGet: lambda m: KvValues(values=[self.values[key] for key in m.keys]),
            KvWait: lambda m: Done(),
            KvAdd: self._add,
            KvAppend: self._append,
            KvCas: self._cas,
            KvCheck: lambda m: KvMissing(keys=[k for k in m.keys if k not in self.values]),
            KvCount: lambda m: KvNumber(value=len(self._named(m.prefix, ""))),
            KvDelete: lambda m: KvNumber(
                value=sum(self.values.pop(key, None) is not None for key in m.keys)
            ),
            KvList: self._list_keys,
            Barrier: lambda m: Released(round=1),
            Status: lambda m: self.status,
            ListRuns: self._list_runs,
            Members: self._list_members,
            ShowGeneration: lambda m: self.inside,
        }
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=50)
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, name="fake-accept", daemon=True)
        self._thread.start()

    def __enter__(self) -> "FakeServer":
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop_listening()
        for peer in self.peers:
            peer.close()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    # --- what a test arranges -----------------------------------------------------------------

    def on(self, kind: type[R], answer: Callable[[R], AnyReply | None] | None) -> None:
        """Answer requests of a kind like this; None: do not answer them."""
        self._answers[kind] = cast("Answer | None", answer)

    def push(self, message: AnyPush) -> None:
        """To the newest connection."""
        self.peers[-1].send(0, message)

    def stop_listening(self) -> None:
        """New connections are refused from now on."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE_S)
        self._listener.close()

    # --- what a test looks at -----------------------------------------------------------------

    def all(self, kind: type[R]) -> list[R]:
        return [m for _, m in list(self.got) if isinstance(m, kind)]

    def ids(self, kind: type[AnyRequest]) -> list[int]:
        return [i for i, m in list(self.got) if isinstance(m, kind)]

    def wait_for(self, kind: type[R], count: int = 1) -> R:
        """The newest request of a kind, once `count` have arrived."""
        what = f"{count} x {kind.op} at the server"
        return until(lambda: self.all(kind)[count - 1 :], PATIENCE_S, what)[-1]

    # --- inside -------------------------------------------------------------------------------

    def take(self, peer: Peer, request_id: int, message: AnyRequest, body: bytes) -> None:
        """A request arrived."""
        self.got.append((request_id, message))
        if isinstance(message, Authenticate):
            peer.send(request_id, self._authenticated(peer, message))
            return
        if self.token is not None and isinstance(message, HelloNode | HelloWorker | HelloAdmin):
            peer.asked = (body, message, os.urandom(32))
            challenge = peer.asked[2]
            peer.send(request_id, Welcome(server="rdzv", instance="", epoch=0, challenge=challenge))
            return
        answer = self._answers[type(message)]
        reply = None if answer is None else answer(message)
        if reply is not None:
            peer.send(request_id, reply)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                self.peers.append(Peer(self, sock))
                self.peers[-1].start()

    def _authenticated(self, peer: Peer, answer: Authenticate) -> AnyReply:
        assert peer.asked is not None, "nobody asked"
        assert self.token is not None
        body, hello, challenge = peer.asked
        grant = Grant(Scope(answer.scope), answer.run)
        transcript = Transcript(body, challenge, answer.nonce, grant, self.certificate)
        secret = self.token.derive(grant).secret
        good = answer.key.hex() == self.token.key
        if not good or answer.proof != transcript.client_proof(secret):
            return Error(code=ErrorCode.UNAUTHENTICATED, message="the proof is wrong")
        welcome = self._answers[type(hello)]
        assert welcome is not None
        reply = welcome(hello)
        assert isinstance(reply, Welcome)
        return replace(reply, proof=self.prove(transcript, secret))

    def welcome(self, hello: HelloNode | HelloWorker | HelloAdmin) -> Welcome:
        """What it answers to a hello, as long as the test does not say otherwise."""
        if isinstance(hello, HelloAdmin):
            return Welcome(server="fake 1", instance="fake", epoch=7)
        return Welcome(
            server="fake 1",
            instance="fake",
            epoch=7,
            session=1,
            token=b"t" * 16,
            lease_ms=self.lease_ms,
            resumed=hello.resume is not None,
            observed_host="127.0.0.1",
        )

    def _set(self, keys: list[str], values: list[bytes]) -> Done:
        self.revision += 1
        for key, value in zip(keys, values, strict=True):
            self.values[key], self.revisions[key] = value, self.revision
        return Done(revision=self.revision)

    def _add(self, ask: KvAdd) -> KvNumber:
        total = int(self.values.get(ask.key, b"0")) + ask.delta
        self._set([ask.key], [b"%d" % total])
        return KvNumber(value=total)

    def _append(self, ask: KvAppend) -> KvNumber:
        value = self.values.get(ask.key, b"") + ask.value
        self._set([ask.key], [value])
        return KvNumber(value=len(value))

    def _cas(self, ask: KvCas) -> KvSwapped:
        value = self.values.get(ask.key)
        revision = 0 if value is None else self.revisions[ask.key]
        if ask.expected != value if ask.revision is None else ask.revision != revision:
            return KvSwapped(value=value, revision=revision)
        self._set([ask.key], [ask.value])
        return KvSwapped(swapped=True, value=ask.value, revision=self.revision)

    def _named(self, prefix: str, after: str) -> list[str]:
        return [key for key in sorted(self.values) if key.startswith(prefix) and key > after]

    def _list_keys(self, ask: KvList) -> KvPage:
        names = self._named(ask.prefix, ask.after)
        entries = [
            KvEntry(
                key=key,
                revision=self.revisions[key],
                value_bytes=len(self.values[key]),
                value=self.values[key] if ask.values else None,
            )
            for key in names[: self.page_rows]
        ]
        return KvPage(entries=entries, more=len(names) > len(entries), revision=self.revision)

    def _list_runs(self, ask: ListRuns) -> Runs:
        names = [n for n in sorted(self.runs) if n > ask.after and ask.only in ("", n)]
        page = names[: self.page_rows]
        return Runs(runs=[self.runs[n] for n in page], more=len(names) > len(page))

    def _list_members(self, ask: Members) -> MemberPage:
        page = self.members[ask.offset : ask.offset + self.page_rows]
        return MemberPage(members=page, total=len(self.members))


def joined(fence: Fence = FENCE, rank: int = 0, world_size: int = 2) -> Joined:
    return Joined(
        fence=fence,
        group_rank=rank,
        world_size=world_size,
        digest=b"digest",
        reason="2 of 2 joined",
        worker_token=b"w" * 32,
    )
