"""Certificates of an authority that only a test knows, as files and as a server's context."""

import datetime
import ssl
from pathlib import Path

import trustme

from rdzv_client.credentials import Credentials
from rdzv_proto import auth

NAMES = ("localhost", "127.0.0.1")
NOW = datetime.datetime.now(datetime.timezone.utc)
DAY = datetime.timedelta(days=1)


class Authority:
    """One authority.

    Args:
        folder: for its files.
        name: of its files.
    """

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder, self._name, self._count = folder, name, 0
        self.ca = trustme.CA()
        self.file = str(folder / f"{name}.pem")
        self.ca.cert_pem.write_to_path(self.file)

    def issue(self, *names: str, valid: bool = True) -> trustme.LeafCert:
        """A certificate; an invalid one has expired."""
        if valid:
            return self.ca.issue_cert(*names)
        return self.ca.issue_cert(*names, not_before=NOW - 9 * DAY, not_after=NOW - DAY)

    def files(self, *names: str, valid: bool = True) -> tuple[str, str]:
        """A certificate and its key, as files with the right modes."""
        self._count += 1
        leaf = self.issue(*names, valid=valid)
        cert = self._folder / f"{self._name}-{self._count}.cert"
        key = self._folder / f"{self._name}-{self._count}.key"
        leaf.cert_chain_pems[0].write_to_path(str(cert))
        leaf.private_key_pem.write_to_path(str(key))
        key.chmod(0o600)
        return str(cert), str(key)

    def client(self, *names: str, valid: bool = True) -> Credentials:
        """Of a client that trusts this authority and has a certificate of it."""
        cert, key = self.files(*(names or ("node-1@example.com",)), valid=valid)
        return Credentials(tls_ca=self.file, tls_cert=cert, tls_key=key)


def server_context(leaf: trustme.LeafCert, clients: Authority | None = None) -> ssl.SSLContext:
    """As rdzv-server makes it.

    Args:
        leaf: its certificate.
        clients: whose certificates clients must have.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    leaf.configure_cert(context)
    if clients is not None:
        clients.ca.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def digest(leaf: trustme.LeafCert) -> bytes:
    """Of a certificate, as proofs have it."""
    return auth.certificate_digest(
        ssl.PEM_cert_to_DER_cert(leaf.cert_chain_pems[0].bytes().decode())
    )
