"""The server's end of a simulated connection: what it reads, and what it says in the version that was agreed on."""

from collections.abc import Iterator

from rdzv_proto import limits
from rdzv_proto.agreement import Spoken, announced
from rdzv_proto.codec import Codec
from rdzv_proto.framing import PREAMBLE_BYTES, FrameBuffer
from rdzv_proto.messages import AnyPush, AnyReply, AnyRequest, Welcome
from rdzv_server.shell.gate import Hello
from tests.sim.net import Link


class Peer:
    """One connection.

    Args:
        link: to the client.
        incarnation: of the process at the other end; empty: a tool.
        spoken: versions of the protocol that the server speaks.
    """

    def __init__(self, link: Link, incarnation: bytes, spoken: Spoken) -> None:
        self.link, self.incarnation, self._spoken = link, incarnation, spoken
        self.codec: Codec = spoken.oldest
        self._agreed = False
        """Its hello was accepted; one that was not is followed by another, in the oldest version again."""
        self._frames = FrameBuffer(limits.FRAME_BYTES_MAX)
        self._greeted = 0
        """Bytes of the preamble that have come."""

    def requests(self, data: bytes) -> Iterator[tuple[int, AnyRequest, bytes]]:
        """Bytes came; gives what is complete now: number, message and body. It takes frames apart as
        `rdzv_server.shell.framed` does."""
        skip = min(PREAMBLE_BYTES - self._greeted, len(data))
        if skip:
            self._greeted += skip
            data = data[skip:]
        one = self._frames.single(data)
        for body in self._frames.split(data) if one is None else (one,):
            request_id, message = self.codec.decode_request(body, agreed=self._agreed)
            yield request_id, message, body

    def agree(self, hello: Hello, body: bytes) -> int:
        """Settle the version that is spoken from here on; returns it."""
        found = self._spoken.agree(*announced(hello, body))
        assert found is not None, "in each pair of the history both speak one version at least"
        self.codec = found
        return found.version

    def say(self, request_id: int, message: AnyReply | AnyPush) -> None:
        """A reply, or a push (0), if there is such a one in this version."""
        self._agreed |= isinstance(message, Welcome) and not message.challenge
        if request_id or self.codec.has(type(message)):
            self.link.down.send(self.codec.encode(request_id, message))
