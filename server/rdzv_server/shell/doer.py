"""Does what the core wants: speaks on connections, opens and closes ports, writes the log."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rdzv_proto.codec import Codec
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import AnyPush, AnyReply, Error, Welcome
from rdzv_server.core.coordinator import Coordinator
from rdzv_server.core.events import (
    Broadcast,
    Close,
    CloseListener,
    Effect,
    ListenerFailed,
    ListenerOpened,
    OpenListener,
    Persist,
    Release,
    Report,
    Send,
    StoreClose,
    StoreSend,
)
from rdzv_server.shell import log
from rdzv_server.shell.admission import Admission
from rdzv_server.shell.connection import Connection
from rdzv_server.shell.memory import Memory
from rdzv_server.shell.peer import JOINED_BYTES_MAX

if TYPE_CHECKING:
    from rdzv_server.shell.server import Server

_NOT_LET_IN = (ErrorCode.UNAUTHENTICATED, ErrorCode.NOT_PERMITTED)


class Doer:
    """Executes effects.

    Args:
        server: whose ports and events these are.
        core: whose effects these are.
        connections: by number.
        admission: the books of all connections.
    """

    def __init__(
        self,
        server: "Server",
        core: Coordinator,
        connections: dict[int, Connection],
        admission: Admission,
    ) -> None:
        self._server, self._core = server, core
        self._connections = connections
        self._admission = admission
        self._memory = Memory()

    def do(self, effects: list[Effect]) -> None:
        """One after the other."""
        answers: list[ListenerOpened | ListenerFailed] = []
        for effect in effects:
            match effect:
                case Send() | Broadcast() | Release() | Close():
                    self._speak(effect)
                case Persist():
                    pass  # the ledger has it
                case StoreSend() | StoreClose() | CloseListener():
                    self._server.stores.execute(effect)
                case OpenListener(listener):
                    answers.append(self._server.stores.listen(listener))
                case Report():
                    log.write(effect)
                    if effect.event == "run_forgotten":
                        self._memory.freed()
        for event in answers:
            self._server.handle(event)

    def _speak(self, effect: Send | Broadcast | Release | Close) -> None:
        match effect:
            case Send(conn, request_id, message):
                connection = self._connections.get(conn)
                if connection is None:
                    return
                if connection.greeted:
                    self._send(connection, request_id, message)
                else:
                    self.answer_hello(connection, request_id, message)
            case Broadcast(conns, push):
                self._send_to_all(push, conns)
            case Release(to, reply):
                self._send_tails(reply, to)
            case Close(conn, goodbye):
                connection = self._connections.pop(conn, None)
                if connection is not None:
                    connection.goodbye(goodbye)

    def answer_hello(
        self, connection: Connection, request_id: int, message: AnyReply | AnyPush
    ) -> None:
        """What goes to a connection that was not welcomed yet."""
        match message:
            case Welcome():
                message = connection.welcome(message, self._core.run_of(connection.conn))
                self._admission.greeted(connection)
            case Error() if message.code in _NOT_LET_IN:
                connection.deny(request_id, message)
                return
        self._send(connection, request_id, message)

    @staticmethod
    def _send(connection: Connection, request_id: int, message: AnyReply | AnyPush) -> None:
        """A push that the version of the connection does not have is not sent."""
        if request_id or connection.codec.has(type(message)):
            connection.send(connection.codec.encode(request_id, message))

    def _send_tails(self, reply: AnyReply, to: Iterable[tuple[int, int]]) -> None:
        """A large tail is shared by all who get it in the same version."""
        tails: dict[Codec, bytes] = {}
        for conn, number in to:
            connection = self._connections.get(conn)
            if connection is None:
                continue
            codec = connection.codec
            if (tail := tails.get(codec)) is None:
                tail = tails[codec] = codec.encode_tail(reply)
            if len(tail) < JOINED_BYTES_MAX:
                connection.send(codec.frame(number, tail))
            else:
                connection.send(codec.head(number, tail))
                connection.send(tail)

    def _send_to_all(self, push: AnyPush, conns: Iterable[int]) -> None:
        """Encoded once for each version; nothing where it does not have that push."""
        frames: dict[Codec, bytes] = {}
        for conn in conns:
            connection = self._connections.get(conn)
            if connection is None:
                continue
            codec = connection.codec
            if (frame := frames.get(codec)) is None:
                frame = codec.encode(0, push) if codec.has(type(push)) else b""
                frames[codec] = frame
            if frame:
                connection.send(frame)
