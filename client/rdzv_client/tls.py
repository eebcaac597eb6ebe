"""TLS from the client's side: contexts, handshakes, and what went wrong in words for people.

TLS 1.3 only. The server's certificate is always checked, and its name too; a client that wants less
uses no TLS. Files are read anew when they change, so certificates can be replaced under a running job.
"""

import errno
import os
import socket
import ssl

from rdzv_client.credentials import SYSTEM, Credentials
from rdzv_proto.auth import check_private

ACTION = (
    "Check tls_ca, tls_cert and tls_server_name of this client (--rdzv-conf, RDZV_TLS_CA, --tls-ca, …), "
    "and the certificate and client CA of rdzv-server."
)

_NO_NAME, _NO_ADDRESS = 62, 64
_VERIFY = {
    9: "the server's certificate is not valid yet; are the clocks right?",
    10: "the server's certificate has expired",
    18: "the server's certificate is self-signed, and is not in {ca}",
    19: "the server's certificate comes from an authority that is not in {ca}",
    20: "the server's certificate comes from an authority that is not in {ca}",
    21: "the server's certificate comes from an authority that is not in {ca}",
}
"""By OpenSSL's X509_V_ERR_…"""

_ALERTS = {
    "CERTIFICATE_REQUIRED": "the server requires a client certificate (tls_cert, tls_key)",
    "UNKNOWN_CA": "the server does not know the authority of this client's certificate {cert}",
    "CERTIFICATE_EXPIRED": "this client's certificate {cert} has expired",
    "CERTIFICATE_REVOKED": "this client's certificate {cert} is revoked",
    "BAD_CERTIFICATE": "the server refuses this client's certificate {cert}",
    "CERTIFICATE_UNKNOWN": "the server refuses this client's certificate {cert}",
    "UNSUPPORTED_CERTIFICATE": "the server refuses this client's certificate {cert}",
    "ACCESS_DENIED": "the server refuses this client's certificate {cert}",
}
"""By the end of OpenSSL's name for what the server said."""

NOT_TLS = (
    "the server does not speak TLS: leave tls_ca and tls_cert out, or start it with --tls-cert"
)
HUNG_UP = (
    "the server closed the connection during the TLS handshake: if it runs without --tls-cert, leave "
    "tls_ca and tls_cert out"
)


class DistrustError(OSError):
    """A certificate was refused, by one side or the other: trying again does not help by itself."""


class Tls:
    """TLS of one client. No session is resumed: the server gives no tickets, since one would let a
    certificate in for hours after it expired.

    Args:
        credentials: with `tls` on.

    Raises:
        ValueError: a file cannot be used; it is named.
    """

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._stamp: object = None
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._refresh()

    def handshake(self, sock: socket.socket, host: str) -> ssl.SSLSocket:
        """Make TLS of a connection, within the socket's timeout.

        Args:
            sock: connected; it is closed or taken over.
            host: whose name the certificate must have, if no other was given.

        Raises:
            ValueError: a file cannot be used any more.
            DistrustError: a certificate was refused.
            OSError: something else.
        """
        self._refresh()
        name = self._credentials.tls_server_name or host.partition("%")[0]
        try:
            return self._context.wrap_socket(sock, server_hostname=name)
        except ssl.SSLError as error:
            raise self.explained(error, name) from None
        except ConnectionError:
            raise ConnectionAbortedError(errno.ECONNABORTED, HUNG_UP) from None

    def explained(self, error: ssl.SSLError, name: str = "") -> OSError:
        """The same error, in words for people."""
        files = {"ca": self._ca, "cert": self._credentials.tls_cert or "(it has none)"}
        if isinstance(error, ssl.SSLCertVerificationError):
            text = _VERIFY.get(error.verify_code, "the server's certificate is refused: {why}")
            if error.verify_code in (_NO_NAME, _NO_ADDRESS):
                text = "the server's certificate is not for {name} (tls_server_name: check another name)"
            words = text.format(**files, name=repr(name), why=error.verify_message)
            return DistrustError(errno.EACCES, words)
        reason = error.reason or ""
        alert = reason.partition("_ALERT_")[2]
        if alert in _ALERTS:
            return DistrustError(errno.EACCES, _ALERTS[alert].format(**files))
        if alert == "PROTOCOL_VERSION":
            return OSError(errno.EPROTO, "the server does not offer TLS 1.3")
        if isinstance(error, ssl.SSLEOFError) or reason == "UNEXPECTED_EOF_WHILE_READING":
            return OSError(errno.EPROTO, HUNG_UP)
        if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNEXPECTED_MESSAGE"):
            return OSError(errno.EPROTO, NOT_TLS)
        return OSError(errno.EPROTO, f"TLS: {reason.replace('_', ' ').lower() or error.strerror}")

    @property
    def _ca(self) -> str:
        ca = self._credentials.tls_ca or SYSTEM
        return "the system's trust store (tls_ca)" if ca == SYSTEM else f"{ca} (tls_ca)"

    def _refresh(self) -> None:
        """A new context if a file has changed: the authorities of a machine take a while to load."""
        stamp = [_stamp(path) for path in self._files()]
        if stamp != self._stamp:
            self._context, self._stamp = context(self._credentials), stamp

    def _files(self) -> list[str]:
        named = self._credentials
        paths = ("" if named.tls_ca == SYSTEM else named.tls_ca, named.tls_cert, named.tls_key)
        return [path for path in paths if path]


def context(credentials: Credentials) -> ssl.SSLContext:
    """A context from files.

    Raises:
        ValueError: one of them cannot be used; it is named.
    """
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks certificates and names
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    ca = credentials.tls_ca or SYSTEM
    if ca == SYSTEM:
        made.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        try:
            made.load_verify_locations(cafile=ca)
        except ssl.SSLError:
            raise ValueError(f"tls_ca {ca}: there is no PEM certificate in it") from None
        except OSError as error:
            raise ValueError(f"tls_ca {ca}: {error.strerror}") from None
    if credentials.tls_cert:
        _load_certificate(made, credentials.tls_cert, credentials.tls_key)
    return made


def _load_certificate(made: ssl.SSLContext, cert: str, key: str) -> None:
    _stamp(cert, "tls_cert")
    where = f"tls_key {key}" if key else f"tls_cert {cert}"
    try:
        mode = os.stat(key or cert).st_mode
    except OSError as error:
        raise ValueError(f"{where}: {error.strerror}") from None
    check_private(mode, where, key or cert)
    try:
        made.load_cert_chain(cert, key or None, password=_no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            why = f"{where}: the key does not belong to the certificate {cert}"
        elif key:
            why = f"tls_cert {cert}, tls_key {key}: no PEM certificate in the one, or no key in the other"
        else:
            why = f"tls_cert {cert}: it must hold a PEM certificate and its key, or give tls_key"
        raise ValueError(why) from None
    except OSError as error:
        raise ValueError(f"tls_cert {cert}, {where}: {error.strerror}") from None
    except _EncryptedError:
        raise ValueError(
            f"{where}: the key is encrypted; nobody is there to type the passphrase"
        ) from None


class _EncryptedError(Exception):
    """OpenSSL asked for a passphrase."""


def _no_password() -> str:
    raise _EncryptedError


def _stamp(path: str, what: str = "TLS file") -> tuple[int, ...]:
    """Changes when the file does."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise ValueError(f"{what} {path}: {error.strerror}") from None
    return found.st_mtime_ns, found.st_size, found.st_ino
