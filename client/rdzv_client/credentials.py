"""What a client shows a server, and what it demands of it: the files that are named for that.

    RDZV_TOKEN_FILE, RDZV_TLS_CA, RDZV_TLS_CERT, RDZV_TLS_KEY, RDZV_TLS_SERVER_NAME

Secrets come from files only: arguments and environments can be looked at by others.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from rdzv_proto import auth, token_file
from rdzv_proto.auth import Grant, Token
from rdzv_proto.text import visible

SYSTEM = "system"
"""As `tls_ca`: the certificate authorities that this machine trusts."""

_PATHS = ("token_file", "tls_ca", "tls_cert", "tls_key")


@dataclass(frozen=True)
class Credentials:
    """Names of files; invalid combinations raise ValueError. Relative paths are those of now: the
    files are read again whenever a connection is made."""

    token_file: str = ""
    """Tokens, one a line (`rdzv token new`). Then only servers that know the token are talked to."""
    tls_ca: str = ""
    """PEM file with the authorities that the server's certificate may come from, or `system`. Turns TLS
    on; so does `tls_cert`, with the system's authorities."""
    tls_cert: str = ""
    """PEM file with this client's certificate, for servers that ask for one."""
    tls_key: str = ""
    """PEM file with its key; empty: in the same file."""
    tls_server_name: str = ""
    """Name in the server's certificate, where that is not the host of the endpoint."""

    def __post_init__(self) -> None:
        for name in _PATHS:
            path = getattr(self, name)
            if path and not (name == "tls_ca" and path == SYSTEM):
                whole = os.path.abspath(os.path.expanduser(os.fspath(path)))
                object.__setattr__(self, name, whole)
        if self.tls_key and not self.tls_cert:
            raise ValueError(
                "tls_key is given, but not the certificate that belongs to it (tls_cert)"
            )
        if self.tls_server_name and not self.tls:
            raise ValueError(
                "tls_server_name is given, but nothing that turns TLS on (tls_ca=FILE or system)"
            )

    @property
    def tls(self) -> bool:
        """Connections are encrypted, and the server shows a certificate."""
        return bool(self.tls_ca or self.tls_cert)

    @classmethod
    def find(cls, environ: Mapping[str, str] | None = None, **given: str | None) -> "Credentials":
        """What is given; for the rest, what the environment names.

        Raises:
            ValueError: they do not go together.
        """
        environ = os.environ if environ is None else environ
        names = [field.name for field in fields(cls)]
        return cls(**{n: given.get(n) or environ.get(variable(n), "") for n in names})

    @classmethod
    def take(cls, options: dict[str, Any]) -> "Credentials":
        """Take what is about credentials out of a client's options: `credentials` as they are, or the
        single names as in `find`.

        Raises:
            ValueError: as in `find`, or both are given.
        """
        ready: Credentials | None = options.pop("credentials", None)
        given = {f.name: options.pop(f.name) for f in fields(cls) if f.name in options}
        if ready is None:
            return cls.find(**given)
        if given:
            raise ValueError(f"credentials and {', '.join(given)} exclude each other")
        return ready

    def environment(self) -> dict[str, str]:
        """The variables with which another process finds the same; empty ones are not to be there."""
        return {variable(field.name): getattr(self, field.name) for field in fields(self)}

    def tokens(self) -> list[Token]:
        """Read the token file; without one there are none.

        Raises:
            ValueError: it is not there, others can read it, or what it holds is wrong.
        """
        if not self.token_file:
            return []
        try:
            return token_file.load(self.token_file)
        except OSError as error:
            raise ValueError(f"token file {self.token_file}: {error.strerror}") from None

    def token(self, wanted: Grant) -> Token | None:
        """The token to use; None if there is no token file.

        Args:
            wanted: what for. Without a run: for whatever there is; a token for all runs is preferred.

        Raises:
            ValueError: as in `tokens`, or none of them allows it.
        """
        tokens = self.tokens()
        found = auth.choose(tokens, wanted)
        if found is None and not wanted.run:
            allowed = (token for token in tokens if token.grant.scope.includes(wanted.scope))
            found = next(allowed, None)
        if found is None and tokens:
            there = ", ".join(shown(token.grant) for token in tokens)
            raise ValueError(
                f"token file {self.token_file}: no token in it allows "
                f"{shown(wanted) if wanted.run else wanted.scope.value}; there is: {there}"
            )
        return found


def variable(name: str) -> str:
    """The environment's name of a field."""
    return f"RDZV_{name.upper()}"


def shown(grant: Grant) -> str:
    """`join for run llama`, for texts."""
    return f"{grant.scope.value} for " + (f"run {visible(grant.run)}" if grant.run else "all runs")
