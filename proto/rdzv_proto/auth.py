"""Tokens, and how both sides of a connection prove that they know one without sending it.

A *master token* is made once for a server (`rdzv token new`); tokens of less reach are derived from it
(HKDF, RFC 5869), so the server needs no list of them. A token is written as one line:

    rdzv1:<key id>:<scope>:<run or *>:<secret>

Opening a connection takes one more round trip than without a token:

    client                                server
    hello                          ->
                                   <-     welcome(challenge)          32 random bytes, nothing else
    authenticate(key, scope, run,
                 nonce, proof)     ->     verifies the proof, then opens the session
                                   <-     welcome(..., proof)
    verifies the server's proof

Each proof is an HMAC-SHA256 under the token's secret over the same transcript and the prover's side, so
neither can be sent back as the other. The transcript holds the hello *as it was sent*, and with that
the protocol version, the role, run and node id, and on TLS the server's certificate, which ties the
proof to this very end of the connection (RFC 5929 `tls-server-end-point`; Python offers no exporter).
The server proves nothing to a client that has not proved itself first.
"""

import base64
import enum
import functools
import hashlib
import hmac
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

SECRET_BYTES = 32
"""As many as an HMAC-SHA256 has; nobody tries them all."""

NONCE_BYTES = 32
"""Of each side; never the same twice."""

TOKENS_MAX = 16
"""Lines with a token in one file: two for a rotation, or one for each of a handful of runs."""

FILE_BYTES_MAX = 64 * 1024
"""A token file has a few hundred bytes; anything larger is another file."""

ALL_RUNS = ""
"""The run of a token that is good for every run."""

_PREFIX, _STAR = "rdzv1", "*"
KEY_BYTES = 8
"""Of a key id: enough to tell tokens apart."""

_KEY_ID = re.compile(r"[0-9a-f]{16}")


class Scope(enum.Enum):
    """What a token allows; each one includes those before it."""

    READ = "read"
    """See status, runs and members."""
    JOIN = "join"
    """Take part in runs: nodes, workers, keys, barriers."""
    ADMIN = "admin"
    """Act on runs from outside."""

    @property
    def _level(self) -> int:
        return list(Scope).index(self)

    def includes(self, other: "Scope") -> bool:
        """Whoever has this may do what needs the other."""
        return self._level >= other._level


@dataclass(frozen=True)
class Grant:
    """What somebody may do."""

    scope: Scope
    run: str = ALL_RUNS
    """The only run it is good for."""

    def covers(self, run: str) -> bool:
        """It is good for that run."""
        return self.run in (ALL_RUNS, run)

    def within(self, other: "Grant") -> bool:
        """It allows no more than the other."""
        return other.scope.includes(self.scope) and other.run in (ALL_RUNS, self.run)


EVERYTHING = Grant(Scope.ADMIN)
"""Of a master token; and of everybody where no token is in force."""


@dataclass(frozen=True)
class Token:
    """A secret and what it is good for."""

    grant: Grant
    secret: bytes = field(repr=False)
    key: str = ""
    """Id of the master token that it is, or that it comes from. Not secret."""

    def __post_init__(self) -> None:
        if not self.key:
            digest = hashlib.sha256(b"rdzv key " + self.secret).digest()
            object.__setattr__(self, "key", digest[:KEY_BYTES].hex())

    @property
    def master(self) -> bool:
        """Others can be derived from it."""
        return self.grant == EVERYTHING

    def derive(self, grant: Grant) -> "Token":
        """A token that allows less.

        Raises:
            ValueError: this one is no master token.
        """
        if grant == self.grant:
            return self
        if not self.master:
            raise ValueError(
                "tokens are derived from a master token, and this one is good for less"
            )
        info = f"rdzv {grant.scope.value}\0{grant.run}".encode()
        extracted = hmac.digest(b"rdzv token 1", self.secret, "sha256")
        return Token(grant, hmac.digest(extracted, info + b"\x01", "sha256"), self.key)

    def text(self) -> str:
        """The one line that a token file holds. Secret."""
        run = quote(self.grant.run, safe="") if self.grant.run else _STAR
        secret = base64.urlsafe_b64encode(self.secret).rstrip(b"=").decode()
        return f"{_PREFIX}:{self.key}:{self.grant.scope.value}:{run}:{secret}"


def parse(text: str) -> Token:
    """Read a token.

    Raises:
        ValueError: it is none. The text is not in the message, it may be a secret.
    """
    parts = text.split(":")
    if len(parts) != 5 or parts[0] != _PREFIX or not _KEY_ID.fullmatch(parts[1]):
        raise ValueError("that is no rdzv token (`rdzv token new` makes one)")
    _, key, scope, run, secret = parts
    try:
        grant = Grant(Scope(scope), ALL_RUNS if run == _STAR else unquote(run, errors="strict"))
        raw = base64.b64decode(secret + "=" * (-len(secret) % 4), altchars=b"-_", validate=True)
    except ValueError:
        raise ValueError("the rdzv token is damaged") from None
    token = Token(grant, raw, key)
    whole = len(raw) == SECRET_BYTES and token.text() == text
    if not whole or (token.master and Token(grant, raw).key != key):
        raise ValueError("the rdzv token is damaged")
    return token


def check_private(mode: int, what: str, path: str) -> None:
    """That nobody but its owner can change a secret's file, and nobody else but its group can read it:
    that is how containers hand secrets to a user of their own.

    Args:
        mode: from `fstat`.
        what: for texts.
        path: for texts.

    Raises:
        ValueError
    """
    if not stat.S_ISREG(mode):
        raise ValueError(f"{what}: that is no ordinary file")
    if mode & (stat.S_IRWXO | stat.S_IWGRP):
        raise ValueError(
            f"{what}: others can read or change it (mode {stat.S_IMODE(mode):04o}); "
            f"`chmod 600 {path}`"
        )


def read(content: bytes, mode: int, path: str) -> list[Token]:
    """The tokens of a file: one a line; empty lines and those that begin with # are passed over.

    Args:
        content: up to one byte more than `FILE_BYTES_MAX`.
        mode: of the file, from `fstat`.
        path: for texts.

    Raises:
        ValueError: others may read or change the file, or it holds no token, a damaged one, or too many.
    """
    check_private(mode, f"token file {path}", path)
    if len(content) > FILE_BYTES_MAX:
        raise ValueError(f"token file {path}: longer than {FILE_BYTES_MAX} bytes")
    tokens = []
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
        text = line.strip()
        if text and not text.startswith("#"):
            try:
                tokens.append(parse(text))
            except ValueError as error:
                raise ValueError(f"token file {path}, line {number}: {error}") from None
    if not 0 < len(tokens) <= TOKENS_MAX:
        raise ValueError(
            f"token file {path}: {len(tokens)} tokens; there must be 1 to {TOKENS_MAX}"
        )
    return tokens


def choose(tokens: Iterable[Token], wanted: Grant) -> Token | None:
    """The first token that allows something, if one does; otherwise none."""
    return next((token for token in tokens if wanted.within(token.grant)), None)


@dataclass(frozen=True)
class Transcript:
    """What both sides know of the opening of one connection."""

    hello: bytes
    """Body of the hello's frame, as it was sent."""
    challenge: bytes
    nonce: bytes
    """Of the client."""
    grant: Grant
    certificate: bytes = b""
    """SHA-256 of the server's certificate (DER); empty without TLS."""

    @functools.cached_property
    def _joined(self) -> bytes:
        parts = (
            self.hello, self.challenge, self.nonce, self.grant.scope.value.encode(),
            self.grant.run.encode(), self.certificate,
        )  # fmt: skip
        # Each with its length: no two different transcripts have the same bytes.
        return b"".join(len(part).to_bytes(4, "big") + part for part in parts)

    def client_proof(self, secret: bytes) -> bytes:
        """That the client knows the secret."""
        return hmac.digest(secret, b"rdzv auth 1 client" + self._joined, "sha256")

    def server_proof(self, secret: bytes) -> bytes:
        """That the server knows it."""
        return hmac.digest(secret, b"rdzv auth 1 server" + self._joined, "sha256")


def same(one: bytes, other: bytes) -> bool:
    """Compared in constant time."""
    return hmac.compare_digest(one, other)


def certificate_digest(der: bytes | None) -> bytes:
    """For `Transcript.certificate`."""
    return hashlib.sha256(der).digest() if der else b""
