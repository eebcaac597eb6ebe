"""TLS of the main port: TLS 1.3 only, certificates that can be exchanged while the server runs."""

import ssl
from pathlib import Path
from typing import Any

from rdzv_proto.auth import certificate_digest
from rdzv_server.key_files import load_chain


class TlsContext(ssl.SSLContext):
    """A context that knows its own certificate."""

    digest: bytes
    """SHA-256 of the certificate (DER), for `auth.Transcript`."""


class Tls:
    """Certificate, key, and who must have a certificate as well.

    Args:
        cert: chain in PEM, the server's own certificate first.
        key: its private key in PEM; None if it is in `cert`.
        client_ca: authorities in PEM whose certificates clients must have; None: they need none.

    Raises:
        ValueError: a file cannot be read, or they do not belong together.
    """

    def __init__(self, cert: Path, key: Path | None, client_ca: Path | None) -> None:
        self.cert, self.key, self.client_ca = cert, key, client_ca
        self.context = self._load()
        """For the next connection."""

    @property
    def paths(self) -> list[Path]:
        """Files whose change is a new certificate."""
        return [path for path in (self.cert, self.key, self.client_ca) if path is not None]

    def reload(self) -> None:
        """Take what the files hold now, for connections from now on.

        Raises:
            ValueError: as at the start; the certificate of before stays in use.
        """
        self.context = self._load()

    def _load(self) -> TlsContext:
        context = TlsContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        # A ticket would let a certificate in for hours after it expired or its authority was removed.
        context.num_tickets = 0
        context.options |= ssl.OP_NO_RENEGOTIATION
        what, path = "certificate", self.cert
        try:
            context.digest = certificate_digest(_first_certificate(self.cert))
            if self.key is not None:  # the loader's error does not say which file it means
                what, path = "key", self.key
            load_chain(context, self.cert, self.key)
            if self.client_ca is not None:
                what, path = "client CA", self.client_ca
                context.load_verify_locations(path)
                context.verify_mode = ssl.CERT_REQUIRED
        except ssl.SSLError as error:
            raise ValueError(f"TLS {what} {path}: {_reason(error)}") from None
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise ValueError(f"TLS {what} {path}: {reason}") from None
        return context


def own_digest(ssl_object: Any) -> bytes:
    """Of the server's certificate on one connection; empty without TLS."""
    context = getattr(ssl_object, "context", None)
    return context.digest if isinstance(context, TlsContext) else b""


def peer_names(ssl_object: Any) -> tuple[str, ...] | None:
    """Whom the client's certificate is for: its DNS, address and URI names, or its common name if it has
    none of these. None if no certificate was asked for."""
    if ssl_object is None or ssl_object.context.verify_mode is not ssl.CERT_REQUIRED:
        return None
    found = ssl_object.getpeercert() or {}
    names = [value for kind, value in found.get("subjectAltName", ()) if kind != "email"]
    if not names:
        names = [v for part in found.get("subject", ()) for k, v in part if k == "commonName"]
    return tuple(names)


def _first_certificate(path: Path) -> bytes:
    text = path.read_text("ascii", "replace")
    begin, end = text.find(ssl.PEM_HEADER), text.find(ssl.PEM_FOOTER)
    if not 0 <= begin < end:
        raise ValueError("holds no certificate in PEM")
    return ssl.PEM_cert_to_DER_cert(text[begin : end + len(ssl.PEM_FOOTER)])


def _reason(error: ssl.SSLError) -> str:
    return {
        "KEY_VALUES_MISMATCH": "key and certificate do not belong together",
        "NO_CERTIFICATE_OR_CRL_FOUND": "no PEM of the right kind",
        "PEM lib": "no PEM of the right kind",
    }.get(error.reason or error.args[-1].removeprefix("[SSL] ").partition(" (")[0], str(error))
