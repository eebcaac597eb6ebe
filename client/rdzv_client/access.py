"""What one client shows a server, made anew for every connection: tokens and certificates are
replaced under running jobs."""

import secrets
import socket
import ssl

from rdzv_client.credentials import Credentials
from rdzv_client.proving import Prover
from rdzv_client.tls import DistrustError, Tls
from rdzv_proto import auth
from rdzv_proto.auth import Grant, Token


class Access:
    """The credentials of one client, for one purpose.

    Args:
        credentials: which files.
        wanted: what the token must allow.

    Raises:
        ValueError: a file is missing or wrong, or no token in it allows what is wanted.
    """

    def __init__(self, credentials: Credentials, wanted: Grant) -> None:
        self._credentials, self._wanted = credentials, wanted
        self.tls = Tls(credentials) if credentials.tls else None
        self.token()

    def token(self) -> Token | None:
        """Read it from its file; None if there is none to read.

        Raises:
            ValueError: it cannot be had any more.
        """
        return self._credentials.token(self._wanted)

    def prover(self, token: Token | None, sock: socket.socket) -> Prover:
        """For a connection that was made."""
        certificate = sock.getpeercert(True) if isinstance(sock, ssl.SSLSocket) else None
        return Prover(
            token,
            lambda: secrets.token_bytes(auth.NONCE_BYTES),
            certificate=auth.certificate_digest(certificate),
            source=self._credentials.token_file,
        )

    def hint(self, reason: str, error: Exception) -> str:
        """What may be wrong if a server hangs up before it has welcomed this client."""
        if isinstance(error, DistrustError):
            return reason
        guess = "want TLS (tls_ca)"
        if self.tls is not None:
            own = self._credentials.tls_cert
            guess = (
                f"accept the certificate {own}"
                if own
                else "require a client certificate (tls_cert)"
            )
        return f"{reason} during the hello; does it {guess}?"
