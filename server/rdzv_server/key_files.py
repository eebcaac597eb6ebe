"""Private keys of this server, as TLS takes them: at its own ports, and towards etcd."""

import os
import ssl
from pathlib import Path

from rdzv_proto.auth import check_private


def load_chain(context: ssl.SSLContext, cert: Path, key: Path | None) -> None:
    """Take a certificate and its key.

    Args:
        context: to take it into.
        cert: its chain.
        key: its private key; None: it is in the file of the certificate.

    Raises:
        ValueError: others can read the key, or it is encrypted.
        OSError, ssl.SSLError: it cannot be used.
    """
    holds = key or cert
    check_private(os.stat(holds).st_mode, "it holds the key", str(holds))
    context.load_cert_chain(cert, key, password=_no_password)


def _no_password() -> str:
    raise ValueError("the key is encrypted; the server cannot ask for a password")
