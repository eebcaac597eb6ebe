"""The tokens in force: read from a file, read again when it changes."""

import secrets
from pathlib import Path

from rdzv_proto import auth, token_file
from rdzv_proto.auth import EVERYTHING, Grant, Token


class TokenBook:
    """What the token file holds.

    Args:
        path: of the file.

    Raises:
        ValueError: it cannot be read, is open to others, or holds no good token; the text says what
            to do, and shows no secret.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._nobodys = Token(EVERYTHING, secrets.token_bytes(auth.SECRET_BYTES))
        self._tokens = self._read()

    @property
    def keys(self) -> list[str]:
        """Ids of the tokens in force; not secret."""
        return [token.key for token in self._tokens]

    def reload(self) -> None:
        """Take what the file holds now. Connections that stand are not asked again.

        Raises:
            ValueError: as at the start; the tokens of before stay in force.
        """
        self._tokens = self._read()

    def secret(self, key: str, grant: Grant) -> tuple[bytes, bool]:
        """The secret of a token that somebody says to have.

        Returns:
            The secret, and True; or for a token that is not in force another one, that nobody knows,
            and False: so that the answer takes the same time.
        """
        found = self._nobodys
        for token in self._tokens:
            if token.key == key and (token.master or token.grant == grant):
                found = token
        known = found is not self._nobodys
        return (found.derive(grant) if found.master else found).secret, known

    def _read(self) -> list[Token]:
        try:
            return token_file.load(str(self.path))
        except OSError as error:
            raise ValueError(
                f"cannot read token file {self.path}: {error.strerror or error} (`rdzv token new > "
                f"{self.path}` makes one)"
            ) from None
