"""Where in etcd a cluster of servers has its state, and how they get in: pure, but for files of secrets."""

import ssl
from dataclasses import dataclass
from pathlib import Path

from rdzv_proto import small_file
from rdzv_proto.auth import check_private
from rdzv_server.key_files import load_chain
from rdzv_server.storage.base import StorageError

SCHEME = "etcd://"
PORT_DEFAULT = 2379
SECRET_BYTES_MAX = 4096
"""Of a password file: a password, not a file given by mistake."""


@dataclass(frozen=True, slots=True)
class Place:
    """`etcd://h1:2379,h2:2379/prefix`."""

    endpoints: tuple[str, ...]
    """HOST:PORT each."""
    prefix: str
    """Without slashes at its ends."""

    @property
    def name(self) -> str:
        """For people."""
        return f"{SCHEME}{','.join(self.endpoints)}/{self.prefix}"

    def key(self, *parts: bytes) -> bytes:
        """A key of this cluster."""
        return b"/".join((b"/" + self.prefix.encode(), *parts))


def parse(text: str) -> Place:
    """Read `--state etcd://…`.

    Raises:
        ValueError: with the right form.
    """
    form = "must be etcd://HOST:PORT[,HOST:PORT…]/PREFIX"
    hosts, slash, prefix = text.removeprefix(SCHEME).partition("/")
    prefix = prefix.strip("/")
    endpoints = tuple(_endpoint(host, text, form) for host in hosts.split(",") if host)
    if not text.startswith(SCHEME) or not endpoints:
        raise ValueError(f"--state {text}: {form}")
    if not slash or not prefix:
        raise ValueError(
            f"--state {text}: {form}; the prefix keeps this cluster's keys apart from those of others"
        )
    if not prefix.isprintable():
        raise ValueError(f"--state {text!r}: the prefix must be printable")
    return Place(endpoints, prefix)


def _endpoint(host: str, text: str, form: str) -> str:
    name, colon, port = host.rpartition(":")
    if not colon or host.endswith("]"):
        name, port = host, str(PORT_DEFAULT)
    bare = ":" in name and not (name.startswith("[") and name.endswith("]"))
    if not name or bare or not (port.isascii() and port.isdigit() and 0 < int(port) <= 65535):
        raise ValueError(f"--state {text}: {host!r} is no address; {form}")
    return f"{name}:{port}"


@dataclass(frozen=True, slots=True)
class Credentials:
    """How to get into etcd. Files are read when a connection or a sign-in needs them."""

    ca: Path | None = None
    """Authorities to trust; None with a certificate: those of the system."""
    cert: Path | None = None
    key: Path | None = None
    """None: it is in the file of the certificate."""
    user: str = ""
    password_file: Path | None = None

    @property
    def tls(self) -> bool:
        """Speak TLS."""
        return self.ca is not None or self.cert is not None

    def context(self) -> ssl.SSLContext | None:
        """For connections; None for plain ones.

        Raises:
            StorageError: a file cannot be used.
        """
        if not self.tls:
            return None
        try:
            context = ssl.create_default_context(cafile=None if self.ca is None else str(self.ca))
            if self.cert is not None:
                load_chain(context, self.cert, self.key)
        except (OSError, ssl.SSLError, ValueError) as error:
            files = ", ".join(str(path) for path in (self.ca, self.cert, self.key) if path)
            why = getattr(error, "strerror", None) or str(error)
            raise StorageError(f"{files}: TLS for etcd cannot use it: {why}", "access") from None
        return context

    def password(self) -> str:
        """Of the user.

        Raises:
            StorageError: the file cannot be used.
        """
        path = self.password_file
        assert path is not None, "a user has a password file; the configuration saw to that"
        try:
            content, mode = small_file.read(path, SECRET_BYTES_MAX + 1)
            check_private(mode, f"password file {path}", str(path))
            secret = content.decode().rstrip("\r\n")
        except UnicodeDecodeError:
            raise StorageError(f"{path}: cannot be read: it is no text", "access") from None
        except OSError as error:
            raise StorageError(f"{path}: cannot be read: {error.strerror}", "access") from None
        except ValueError as error:
            raise StorageError(str(error), "access") from None
        if not secret or len(secret) > SECRET_BYTES_MAX:
            what = "is empty" if not secret else "is no password: it is too long"
            raise StorageError(f"{path}: {what}", "access")
        return secret
