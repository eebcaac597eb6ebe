"""What all commands of `rdzv` share: where the server is, what to show it, and how lines are printed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from rdzv_client.admin import Admin
from rdzv_client.blocking import Client
from rdzv_client.credentials import Credentials, variable
from rdzv_proto.auth import Scope
from rdzv_proto.text import visible

Function = Callable[..., Any]

_FILES = (
    ("token_file", "FILE", "Token that proves you to the server, and the server to you."),
    ("tls_ca", "FILE|system", "Authorities of the server's certificate; turns TLS on."),
    ("tls_cert", "FILE", "Your certificate, for servers that ask for one."),
    ("tls_key", "FILE", "Its key; in --tls-cert if not given."),
    ("tls_server_name", "NAME", "Name in the server's certificate, if that is not the host."),
)


@dataclass(frozen=True)
class Target:
    """The server, and how to come before it."""

    server: str | None
    timeout_s: float
    credentials: Credentials

    def admin(self, run: str = "", scope: Scope = Scope.READ) -> Admin:
        """A connection to look, or to act, with a token that allows it."""
        return Admin(
            self.server, self.timeout_s, scope=scope, run=run, credentials=self.credentials
        )

    def visit(self, run: str, who: str = "") -> Client:
        """A client of a run that does not join it."""
        client = Client(
            self.server,
            run=run,
            name=who,
            connect_timeout_s=self.timeout_s,
            credentials=self.credentials,
        )
        try:
            client.connect()
        except BaseException:
            client.close()
            raise
        return client


def credential_options(command: Function) -> Function:
    """The options with the names of `Credentials`."""
    for name, metavar, text in reversed(_FILES):
        command = click.option(
            f"--{name.replace('_', '-')}",
            envvar=variable(name),
            show_envvar=True,
            metavar=metavar,
            help=text,
        )(command)
    return command


def say(text: str, *, err: bool = False) -> None:
    """Print lines for people: whatever a client or the server put into one cannot leave it, move the
    cursor or turn the line around."""
    click.echo("\n".join(visible(line) for line in text.split("\n")), err=err)
