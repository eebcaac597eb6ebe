"""Tokens and certificates of one test: files in a folder that may hold secrets."""

import os
import subprocess
import sys
from pathlib import Path

import trustme

from rdzv_client.credentials import Credentials
from rdzv_proto.auth import EVERYTHING, Grant, Scope, Token
from tests.e2e.kit import leaks


class Keys:
    """Makes them.

    Args:
        folder: of the test.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / leaks.HOME
        self.folder.mkdir(mode=0o700)
        self.ca = trustme.CA()
        self.ca_file = self.folder / "ca.pem"
        self.ca.cert_pem.write_to_path(str(self.ca_file))
        self._count = 0

    def master(self) -> tuple[Token, Path]:
        """A new master token, and its file."""
        token = Token(EVERYTHING, os.urandom(32))
        return token, self.file(token)

    def file(self, *tokens: Token) -> Path:
        """A token file."""
        self._count += 1
        path = self.folder / f"token-{self._count}"
        self.rewrite(path, *tokens)
        return path

    @staticmethod
    def rewrite(path: Path, *tokens: Token) -> None:
        """What a token file holds from now on."""
        leaks.note(*(token.secret for token in tokens))
        path.touch(mode=0o600)
        path.write_text("".join(f"{token.text()}\n" for token in tokens))

    def of_run(self, master: Token, run: str, scope: Scope = Scope.JOIN) -> Path:
        """A file with the token of one run."""
        return self.file(master.derive(Grant(scope, run)))

    def cert(self, *names: str, ca: trustme.CA | None = None, **more: object) -> Path:
        """A certificate and its key in one file."""
        self._count += 1
        path = self.folder / f"cert-{self._count}.pem"
        self.reissue(path, *names, ca=ca, **more)
        return path

    def reissue(
        self, path: Path, *names: str, ca: trustme.CA | None = None, **more: object
    ) -> None:
        """Another certificate in the same file."""
        leaf = (ca or self.ca).issue_cert(*names, **more)  # type: ignore[arg-type]
        path.touch(mode=0o600)
        leaf.private_key_and_cert_chain_pem.write_to_path(str(path))

    def node(self, *names: str) -> dict[str, str]:
        """TLS settings of a node with a certificate for these names."""
        return {"tls_ca": str(self.ca_file), "tls_cert": str(self.cert(*names))}


def rdzv(
    endpoint: str, *arguments: str, credentials: Credentials | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    environment = os.environ | (credentials.environment() if credentials is not None else {})
    return subprocess.run(
        [sys.executable, "-m", "rdzv_client", "--server", endpoint, *arguments],
        capture_output=True, text=True, timeout=60, check=False, env=environment,
    )  # fmt: skip
