"""Who may come in: the production challenge and proof, with nonces of the seed."""

import random

from rdzv_proto import auth
from rdzv_proto.auth import Grant, Token
from rdzv_proto.errors import ErrorCode
from rdzv_proto.messages import (
    AnyRequest,
    Authenticate,
    Error,
    Welcome,
)
from rdzv_server.core.events import Identified
from rdzv_server.shell.gate import Challenge, Gate, Hello
from rdzv_server.shell.tokens import TokenBook


class _Book(TokenBook):
    """Tokens that no file holds."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._nobodys = Token(auth.EVERYTHING, bytes(auth.SECRET_BYTES))


class SimGate:
    """The door of a simulated server.

    Args:
        tokens: in force; none: it stands open.
    """

    def __init__(self, rng: random.Random, tokens: list[Token]) -> None:
        self._rng = rng
        self._gate = Gate(_Book(tokens)) if tokens else None
        self._asked: dict[int, Challenge] = {}
        self._hellos: dict[int, Hello] = {}
        self._proofs: dict[int, bytes] = {}
        self._greeted: set[int] = set()

    def admit(
        self, conn: int, message: AnyRequest, body: bytes
    ) -> AnyRequest | Identified | Welcome | Error:
        """What becomes of a request: it goes on, or its sender proved who he is, or is asked, or turned away."""
        gate = self._gate
        if gate is None or conn in self._greeted:
            return message
        if isinstance(message, Hello):
            nonce = self._rng.randbytes(auth.NONCE_BYTES)
            self._asked[conn] = Challenge(message, body, nonce)
            return Welcome(server="rdzv", instance="", epoch=0, challenge=nonce)
        asked = self._asked.pop(conn, None)
        passed = None
        if isinstance(message, Authenticate) and asked is not None:
            passed = gate.check(asked, message, b"")
        if passed is None:
            return Error(code=ErrorCode.UNAUTHENTICATED, message="the token is not in force")
        self._hellos[conn], self._proofs[conn] = passed.hello, passed.proof
        grant: Grant = passed.grant
        return Identified(conn, grant)

    def hello(self, conn: int) -> Hello:
        """Of a connection that was let in."""
        return self._hellos.pop(conn)

    def proof(self, conn: int) -> bytes | None:
        """The server's own, for its welcome; from then on nothing more is asked."""
        if conn in self._proofs:
            self._greeted.add(conn)
        return self._proofs.pop(conn, None)

    def gone(self, conn: int) -> None:
        """The connection is closed."""
        for held in (self._asked, self._hellos, self._proofs):
            held.pop(conn, None)
        self._greeted.discard(conn)
