"""How a client answers a challenge, and when it believes a server. Without IO: nonces are handed in.

What is proved, and how, is described with `rdzv_proto.auth`.
"""

from collections.abc import Callable

from rdzv_proto import auth
from rdzv_proto.auth import Token, Transcript
from rdzv_proto.errors import ErrorCode, info
from rdzv_proto.messages import Authenticate, Error, Welcome

Draw = Callable[[], bytes]
"""Gives `auth.NONCE_BYTES` random bytes, others at each call."""


def unauthenticated(message: str, action: str = "") -> Error:
    """The end of a session whose sides do not trust each other."""
    action = action or info(ErrorCode.UNAUTHENTICATED).action
    return Error(code=ErrorCode.UNAUTHENTICATED, message=message, action=action)


class Prover:
    """The proofs of one connection, this side's and the server's.

    Args:
        token: None: this client has none.
        draw: source of nonces; needed with a token.
        certificate: `auth.certificate_digest` of the server's; empty without TLS.
        source: where the token comes from, for texts.
    """

    def __init__(
        self,
        token: Token | None = None,
        draw: Draw | None = None,
        *,
        certificate: bytes = b"",
        source: str = "",
    ) -> None:
        self._token, self._draw = token, draw
        self._certificate = certificate
        self._source = f" in {source}" if source else ""
        self._hello = b""
        self._expected: bytes | None = None
        """The server's proof; None: it has not asked for ours."""

    @property
    def required(self) -> bool:
        """Nothing may be believed before the server has proved itself."""
        return self._token is not None

    def hello(self, body: bytes) -> None:
        """A hello goes out, as these bytes: whatever was proved before counts no more."""
        self._hello, self._expected = body, None

    def answer(self, welcome: Welcome) -> Authenticate | None:
        """What to say to a challenge; None if this is none, or one too many, or there is no token."""
        token, draw = self._token, self._draw
        if not welcome.challenge or token is None or draw is None or self._expected is not None:
            return None
        nonce = draw()
        transcript = Transcript(
            self._hello, welcome.challenge, nonce, token.grant, self._certificate
        )
        self._expected = transcript.server_proof(token.secret)
        return Authenticate(
            key=bytes.fromhex(token.key),
            scope=token.grant.scope.value,
            run=token.grant.run,
            nonce=nonce,
            proof=transcript.client_proof(token.secret),
        )

    def doubt(self, welcome: Welcome, where: str) -> Error | None:
        """Why the server cannot be believed; None if it can.

        Args:
            welcome: what it claims to be the last word of the opening.
            where: the server, for texts.
        """
        if self._token is None:
            if not welcome.challenge:
                return None
            return unauthenticated(f"{where} demands authentication; this client has no token")
        if self._expected is None:
            return unauthenticated(
                f"{where} did not ask for proof of the token{self._source}: it is not the server that "
                "the token belongs to, or it runs without --token-file",
                "Check the address; if the server is the right one, start it with --token-file.",
            )
        # A second challenge has no proof either.
        if welcome.proof is None or not auth.same(welcome.proof, self._expected):
            return unauthenticated(
                f"{where} could not prove that it knows the token{self._source}: somebody else answers "
                "there, or stands between",
                "Check the address and who answers there; nothing it said was believed.",
            )
        return None
