"""Who may come in, as the configuration names it: tokens and certificates."""

from pathlib import Path

from rdzv_server.config import Config
from rdzv_server.shell.reload import Reloadable, Reloads
from rdzv_server.shell.tls import Tls
from rdzv_server.shell.tokens import TokenBook


class AccessError(Exception):
    """A token file or certificate cannot be used; the text is for the operator."""


class Access:
    """Who may come in: tokens and certificates, as the configuration names them.

    Args:
        config: of the server.

    Raises:
        AccessError
    """

    def __init__(self, config: Config) -> None:
        self.tokens: TokenBook | None = None
        self.tls: Tls | None = None
        try:
            if config.token_file:
                self.tokens = TokenBook(Path(config.token_file))
            if config.tls_cert:
                key, ca = (Path(p) if p else None for p in (config.tls_key, config.tls_client_ca))
                self.tls = Tls(Path(config.tls_cert), key, ca)
        except ValueError as error:
            raise AccessError(str(error)) from None

    def reloads(self, *more: Reloadable) -> Reloads:
        """What keeps them current, and what else is read from files."""
        items = list(more)
        if self.tokens is not None:
            items.append(Reloadable("tokens", [self.tokens.path], self.tokens.reload))
        if self.tls is not None:
            items.append(Reloadable("certificate", self.tls.paths, self.tls.reload))
        return Reloads(items)
