"""Secrets that the tests themselves handled, and a search for them where they must not be (T16, S22).

Whoever in a test gets a secret into its hands (a token, a session's or worker's token, an NCCL id) notes it; at
the end of the whole run every file that the tests left behind is searched for all of them: raw, in hex, in
base64 at any alignment, and as Python shows bytes.
"""

import base64
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

VARIABLE = "RDZV_TEST_SECRETS"
"""Names the file that secrets are noted in; inherited by every process of a test."""

HOME = "secrets"
"""Folders of this name hold secrets on purpose: token files, keys of certificates."""

WINDOW = 20
"""Characters that are compared: 80 bits in hex, 120 in base64. Nothing else looks like that by chance."""

_RUNS = re.compile(rb"[0-9A-Za-z+/_-]{%d,}" % WINDOW)


def note(*secrets: bytes) -> None:
    """Remember secrets of at least 16 bytes."""
    path = os.environ.get(VARIABLE)
    if path:
        with open(path, "a") as file:
            file.writelines(f"{secret.hex()}\n" for secret in secrets)


def noted(path: str) -> set[bytes]:
    """All of them."""
    return {bytes.fromhex(line) for line in Path(path).read_text().split()}


class Search:
    """Looks for secrets.

    Args:
        secrets: what must not be found.
    """

    def __init__(self, secrets: Iterable[bytes]) -> None:
        self._raw = [secret[:16] for secret in secrets]
        self._shown = [repr(secret[:12])[2:-1].encode() for secret in self._raw]
        self._windows = {form: secret for secret in secrets for form in _forms(secret)}

    def __call__(self, data: bytes) -> bool:
        """Whether one of them is in there."""
        return (
            any(
                run[at : at + WINDOW] in self._windows
                for run in _RUNS.findall(data)
                for at in range(len(run) - WINDOW + 1)
            )
            or (not data.isascii() and any(raw in data for raw in self._raw))
            or (b"\\x" in data and any(shown in data for shown in self._shown))
        )

    def files(self, folder: Path) -> Iterator[Path]:
        """Files below a folder that hold one."""
        for path in sorted(folder.rglob("*")):
            home = HOME in path.relative_to(folder).parts
            if path.is_file() and not path.is_symlink() and not home and self(path.read_bytes()):
                yield path

    def processes(self, pids: Iterable[int]) -> Iterator[str]:
        """What `ps` and the environment show of processes, where it holds one."""
        for pid in pids:
            for what in ("cmdline", "environ"):
                try:
                    data = Path(f"/proc/{pid}/{what}").read_bytes()
                except OSError:
                    continue  # it has ended
                if self(data):
                    yield f"/proc/{pid}/{what}"


def _forms(secret: bytes) -> Iterator[bytes]:
    yield secret.hex()[:WINDOW].encode()
    yield secret.hex()[:WINDOW].upper().encode()
    # Encoded as a part of something longer, its groups of three bytes begin at any of three places.
    for at in range(3):
        part = secret[at : at + WINDOW * 3 // 4]
        if len(part) == WINDOW * 3 // 4:
            yield base64.b64encode(part)
            yield base64.urlsafe_b64encode(part)
