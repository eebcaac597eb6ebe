"""A client that keeps to no rule: raw bytes on a socket, messages without the client library's manners."""

import contextlib
import itertools
import secrets
import socket
import struct
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TypeVar

from rdzv_proto import codec, limits
from rdzv_proto.framing import PREAMBLE, FrameBuffer
from rdzv_proto.messages import (
    AnyPush,
    AnyReply,
    Error,
    Goodbye,
    HelloAdmin,
    HelloNode,
    Join,
    Joined,
    Message,
    Policy,
    Reply,
    Request,
    Resume,
    Welcome,
)
from tests.e2e.kit.server import Server

M = TypeVar("M", bound=Message)

PATIENCE_S = 20.0
"""For an answer that must come. Long: other people's load must not fail a test."""

_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER so that the kernel ends the connection with a reset."""


class Raw:
    """One connection.

    Args:
        server: where to.
        receive_bytes: size of the kernel's receive buffer; None leaves it as it is.
        source: the address to come from, one of the loopback network's.
    """

    def __init__(
        self, server: Server | tuple[str, int], receive_bytes: int | None = None, source: str = ""
    ) -> None:
        where = server if isinstance(server, tuple) else (server.host, server.port)
        self.sock = socket.socket(socket.AF_INET6 if ":" in where[0] else socket.AF_INET)
        if receive_bytes is not None:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        if source:
            self.sock.bind((source, 0))
        self.sock.settimeout(PATIENCE_S)
        self.sock.connect(where)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.ids = itertools.count(1)
        self.frames = FrameBuffer(limits.FRAME_BYTES_MAX_CLIENT)
        self.pushes: list[AnyPush] = []
        self.welcome: Welcome | None = None
        self.hello_sent: HelloNode | None = None

    # --- bytes --------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Send bytes; a peer that has closed already is fine."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.sock.sendall(data)

    def end(self, timeout_s: float = PATIENCE_S) -> bytes:
        """Read to the end of the stream and return what came; a reset is an end too.

        Raises:
            AssertionError: it is still open after the time.
        """
        got, deadline = b"", time.monotonic() + timeout_s
        with contextlib.suppress(ConnectionResetError):
            while True:
                self.sock.settimeout(max(0.001, deadline - time.monotonic()))
                try:
                    data = self.sock.recv(65536)
                except TimeoutError:
                    raise AssertionError(f"still open after {timeout_s:g} s: {got!r}") from None
                if not data:
                    break
                got += data
        return got

    def reset(self) -> None:
        """End the connection with a reset."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.sock.close()

    def close(self) -> None:
        self.sock.close()

    # --- messages -----------------------------------------------------------------------------

    def post(self, message: Request, request_id: int | None = None) -> int:
        """Send a request and do not wait; returns its id."""
        request_id = next(self.ids) if request_id is None else request_id
        self.send(codec.encode(request_id, message))
        return request_id

    def next(self, timeout_s: float = PATIENCE_S) -> tuple[int, AnyReply | AnyPush] | None:
        """Request id and message of the next frame; None at the end of the stream."""
        deadline = time.monotonic() + timeout_s
        while (body := self.frames.pop()) is None:
            self.sock.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                data = self.sock.recv(1 << 18)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self.frames.feed(data)
        return codec.decode_answer(body)

    def answer(self, request_id: int, timeout_s: float = PATIENCE_S) -> Reply:
        """The reply to a request; pushes on the way are kept in `pushes`."""
        deadline = time.monotonic() + timeout_s
        while (frame := self.next(deadline - time.monotonic())) is not None:
            number, message = frame
            if number == request_id:
                assert isinstance(message, Reply)
                return message
            if number == 0:
                self.pushes.append(message)  # type: ignore[arg-type]
        raise AssertionError(f"the stream ended before the reply; pushes: {self.pushes}")

    def ask(self, message: Request, timeout_s: float = PATIENCE_S) -> Reply:
        """Send a request and return its reply."""
        return self.answer(self.post(message), timeout_s)

    def good(self, message: Request, kind: type[M]) -> M:
        """Send a request whose reply must be of a kind."""
        reply = self.ask(message)
        assert isinstance(reply, kind), reply
        return reply

    def refused(self, message: Request) -> Error:
        """Send a request that must be refused."""
        return self.good(message, Error)

    def goodbye(self, timeout_s: float = PATIENCE_S) -> Goodbye | None:
        """Read to the end of the stream; the server's last words, if it had any."""
        last: Goodbye | None = None
        deadline = time.monotonic() + timeout_s
        while (frame := self.next(deadline - time.monotonic())) is not None:
            if isinstance(frame[1], Goodbye):
                last = frame[1]
        return last

    # --- a node -------------------------------------------------------------------------------

    def hello(self, run: str, node: str, /, *, lease_s: float = 30, **more: object) -> Reply:
        """Preamble and a node's hello; returns the reply, whatever it is."""
        fields: dict[str, object] = {"name": node, "incarnation": secrets.token_bytes(16)}
        fields |= {"run": run, "node_id": node, "lease_ms": round(lease_s * 1000), **more}
        self.hello_sent = HelloNode(**fields)  # type: ignore[arg-type]
        self.send(PREAMBLE)
        reply = self.ask(self.hello_sent)
        if isinstance(reply, Welcome):
            self.welcome = reply
        return reply

    def node(self, run: str, node: str, /, **more: object) -> "Raw":
        """Say hello as a node and be welcome."""
        reply = self.hello(run, node, **more)  # type: ignore[arg-type]
        assert isinstance(reply, Welcome), reply
        return self

    def admin(self) -> "Raw":
        """Say hello as a tool."""
        self.send(PREAMBLE)
        self.welcome = self.good(HelloAdmin(), Welcome)
        return self

    @property
    def resume(self) -> Resume:
        """What proves this node's session on another connection."""
        assert self.welcome is not None
        return Resume(
            epoch=self.welcome.epoch, session=self.welcome.session, token=self.welcome.token
        )

    def __enter__(self) -> "Raw":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()


def join(world: int, **more: object) -> Join:
    """A join of a world of fixed size."""
    policy: dict[str, object] = {"min_nodes": world, "max_nodes": world, "last_call_timeout_ms": 0}
    return Join(policy=Policy(**policy), **more)  # type: ignore[arg-type]


@contextlib.contextmanager
def many(make: Callable[[], Raw], count: int) -> Iterator[list[Raw]]:
    """So many connections at a time, all of them closed at the end."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(make()) for _ in range(count)]


@contextlib.contextmanager
def world(
    server: Server | tuple[str, int], run: str, size: int,
    names: Callable[[int], str] = lambda i: f"n{i}",
    **more: object,
) -> Iterator[tuple[list[Raw], list[Joined]]]:  # fmt: skip
    """Raw nodes that have formed a generation, in rank order, with what they were told. Their lease
    is long, since nobody beats for them."""
    with contextlib.ExitStack() as stack:
        nodes = [
            stack.enter_context(Raw(server)).node(run, names(i), lease_s=600, **more)
            for i in range(size)
        ]
        ids = [node.post(join(size)) for node in nodes]
        told: list[Joined] = []
        for node, number in zip(nodes, ids, strict=True):
            reply = node.answer(number)
            assert isinstance(reply, Joined), reply
            told.append(reply)
        pairs = sorted(zip(nodes, told, strict=True), key=lambda pair: pair[1].group_rank)
        yield [node for node, _ in pairs], [joined for _, joined in pairs]
