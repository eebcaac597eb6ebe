"""The other end of the server's connections, in bytes and messages."""

import asyncio
import contextlib

from rdzv_proto import codec, limits
from rdzv_proto.framing import PREAMBLE, FrameBuffer
from rdzv_proto.messages import AnyPush, AnyReply, HelloNode, Message, Welcome
from rdzv_server.shell.server import Server

PATIENCE_S = 10.0


class Peer:
    """The other end of a connection, in bytes and messages."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer
        self._frames = FrameBuffer(limits.FRAME_BYTES_MAX_CLIENT)
        self._ids = iter(range(1, 10_000))

    def send(self, message: Message) -> int:
        request_id = next(self._ids)
        self.writer.write(codec.encode(request_id, message))
        return request_id

    async def next_frame(self) -> tuple[int, AnyReply | AnyPush] | None:
        """Request id and message that come next, or None at the end of the stream."""
        while (body := self._frames.pop()) is None:
            data = await asyncio.wait_for(self._reader.read(65536), PATIENCE_S)
            if not data:
                return None
            self._frames.feed(data)
        return codec.decode_answer(body)

    async def next(self) -> AnyReply | AnyPush | None:
        """The next message, or None at the end of the stream."""
        frame = await self.next_frame()
        return None if frame is None else frame[1]

    async def until(self, kind: type[Message]) -> Message:
        """The next message of a kind."""
        while not isinstance(message := await self.next(), kind):
            assert message is not None, f"the stream ended before a {kind.__name__}"
        return message

    async def rest(self) -> bytes:
        """Everything up to the end of the stream."""
        return await asyncio.wait_for(self._reader.read(-1), PATIENCE_S)

    async def hello(self, name: str = "a", lease_s: float = 5) -> Welcome:
        self.writer.write(PREAMBLE)
        self.send(
            HelloNode(
                run="r", node_id=name, name=name, incarnation=name.encode().ljust(16, b"."),
                lease_ms=round(lease_s * 1000),
            )
        )  # fmt: skip
        welcome = await self.until(Welcome)
        assert isinstance(welcome, Welcome)
        return welcome


class Shell:
    def __init__(self, server: Server, port: int, accepting: asyncio.Server) -> None:
        self.server, self.port, self.accepting = server, port, accepting
        self._peers: list[Peer] = []

    async def connect(self) -> Peer:
        peer = Peer(*await asyncio.open_connection("127.0.0.1", self.port))
        self._peers.append(peer)
        return peer

    async def node(self, name: str, lease_s: float = 5) -> Peer:
        peer = await self.connect()
        await peer.hello(name, lease_s)
        return peer

    async def close(self) -> None:
        self.accepting.close()
        await self.server.shut_down()
        for peer in self._peers:
            peer.writer.close()
            with contextlib.suppress(ConnectionError):
                await peer.writer.wait_closed()
